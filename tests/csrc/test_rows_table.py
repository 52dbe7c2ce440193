"""The table of products by their rows reads the kernels' own cuts, and fails when a figure falls."""

from __future__ import annotations

import pytest

import rows_table as tool
from armbuild.errors import BuildError

ASSEMBLY = """
	//APP
	armllm_tiles.4.1.17.60605.51:
	//NO_APP
	armllm_tiles.4.0.12.12.9:
	armllm_loop.group.6032.80:
"""


def test_cuts_are_read_two_digits_at_a_time():
    cuts = tool.find_cuts(ASSEMBLY.splitlines())
    assert cuts == {(4, True, 17): (5, 6, 6), (4, False, 12): (12,)}


def line(rate):
    return tool.Line(weights="int4-g32", core="neoverse-n1", rates=(rate,) * 17)


def test_tiles_of_a_cut_add_up():
    """Two tiles of 10 and 20 cycles per element over 4 columns: 13 rows in 7.5 cycles per weight."""
    cut = dict.fromkeys(
        (bits, grouped, rows) for bits in (4, 8) for grouped in (False, True) for rows in tool.ROWS
    )
    cuts = {target: dict.fromkeys(cut, (8, 5)) for target in ("dotprod", "i8mm")}
    cycles = {1: 100.0, 8: 20.0, 5: 10.0}
    lines = tool.measure(cuts, lambda loop, _core: cycles[loop.rows])
    found = next(one for one in lines if one.weights == "int8" and one.core == "neoverse-n1")
    assert found.rates[12] == pytest.approx(13 / (30 / 4))
    assert found.rates[0] == pytest.approx(1 / (100 / 16))  # a single row meets four panels
    cuts["i8mm"] = {}
    with pytest.raises(BuildError, match="target i8mm does not tell how it cuts 1 rows"):
        tool.measure(cuts, lambda loop, _core: cycles[loop.rows])


def test_what_is_below_its_aim_is_named():
    assert tool.misses(line(24.0)) == []
    said = tool.misses(line(23.9))
    assert len(said) == 6  # 11 to 16 rows: less would do, of 2.3 each
    assert said[0] == "int4-g32 on neoverse-n1, 11 rows: 23.90 MAC per cycle, wanted 24.0"
    assert len(tool.misses(line(4.5))) == 15  # a single row and 17 have none


def test_lines_that_lost_came_or_went_are_named():
    now = line(30.0)
    before = tool.committed(tool.table([now]))
    assert tool.losses([now], dict(before), 1.05) == []
    worse = tool.losses([line(28.0)], dict(before), 1.05)
    assert len(worse) == 17
    assert "28.0 MAC per cycle now, 30.0 in the table" in worse[0]
    assert "not in the table" in tool.losses([now], {}, 1.05)[0]
    assert "no longer" in tool.losses([], dict(before), 1.05)[0]
