"""The model of a core's caches sees what does not fit, and which rows push each other out."""

from __future__ import annotations

import pytest

import cache_model as tool
from armbuild.errors import BuildError
from kernel_loops import LOOPS, Loop

WEIGHTS = tool.Stream(bytes=4)


def activations(rows):
    return tool.Stream(bytes=rows, stays=True)


def test_activations_that_fit_are_read_from_memory_once():
    assert tool.missing_bytes((activations(16), WEIGHTS), 2048, tool.Block()) == pytest.approx(4)


def test_activations_that_fill_the_cache_come_again_for_each_panel():
    assert tool.missing_bytes((activations(16), WEIGHTS), 4096, tool.Block()) == pytest.approx(20)


def test_a_block_of_features_keeps_them():
    blocked = tool.Block(features=2048, panels=16, above=32768)
    assert tool.missing_bytes((activations(16), WEIGHTS), 4096, blocked) == pytest.approx(4 + 16 / 16)
    assert blocked.of(4096, 32768) == (4096, 1)  # few rows need none


def test_rows_of_weights_a_way_apart_push_each_other_out():
    beside = (tool.Stream(bytes=16, stays=True), tool.Stream(bytes=16))
    apart = (tool.Stream(bytes=16, stays=True), tool.Stream(bytes=2, rows=8))
    assert tool.missing_bytes(apart, 8192, tool.Block()) > 1.4 * tool.missing_bytes(
        beside, 8192, tool.Block()
    )


LIMITS = tool.Limits(panels=2**18, rows=3 * 2**19)


def quantized(**changes):
    """A tile of 16 rows and a panel of 4 columns, a byte each."""
    loop = Loop(target="i8mm", entry="tile", marker="channel", rows=16, length=16)
    given = {"loop": loop, "chunk": 16, "bits": 8, "columns": 4, "streams": (activations(16), WEIGHTS)}
    return tool.Tile(**{**given, **changes})


def test_a_prompt_is_cut_into_items_as_the_kernels_do():
    """512 rows of 4096 are 2 MiB, so two items of rows; 64 threads take four items of panels each."""
    items = tool._items(quantized(), 4096, LIMITS)
    assert len(items) == 512
    assert items[0] == (range(16), range(4))
    assert items[-1] == (range(16, 32), range(1020, 1024))
    assert len(tool._items(quantized(packed=2), 4096, LIMITS)) == 256


def test_rows_that_fit_the_second_cache_are_read_once_for_all_items():
    """256 rows of 4096 bytes fill it: with 2 MiB only panels come anew, 4 bytes for 16 tiles."""
    miss = tool.missing_second(quantized(), 4096, tool.Block(), LIMITS)
    assert miss == pytest.approx(4 + 4 / 16)
    fits = tool.missing_second(quantized(), 4096, tool.Block(), LIMITS, size=2 * tool.SECOND_SIZE)
    assert fits == pytest.approx(4 / 16)


def test_a_decoded_panel_is_read_packed_once_for_all_rows():
    decoded = quantized(packed=2)
    miss = tool.missing_second(decoded, 4096, tool.Block(), LIMITS, size=4 * tool.SECOND_SIZE)
    assert miss == pytest.approx(2 / 32)
    assert decoded.title == "tile: channel, 16 rows, decoded int4"


def test_limits_are_read_from_the_driver():
    assert tool.find_limits(tool.PRODUCT.read_text()) == LIMITS
    with pytest.raises(BuildError, match="were they renamed"):
        tool.find_limits("constexpr int64_t kBlockBytes = 4;")


def test_registers_that_are_loaded_count_but_addresses_do_not():
    body = [
        "\tldp\tq0, q1, [x8, #32]",
        "\tldr q30, [x9, x10]",
        "\tld1\t{ v2.16b, v3.16b }, [x1]",
        "\tstr\tq0, [x2]",
    ]
    assert tool.loads_of(body) == 5


def test_blocks_are_read_from_labels():
    lines = ["\tarmllm_block.8.2048.16.32768.51:", "\tarmllm_loop.channel.16016.80:"]
    assert tool.find_blocks(lines) == {8: tool.Block(features=2048, panels=16, above=32768)}


def test_every_tile_has_a_loop_that_is_counted():
    assert {tile.loop for tile in tool.TILES} <= set(LOOPS)
    assert len({tile.title for tile in tool.TILES if tile.loop.target == "i8mm"}) == 8


def line(pace, least=0.95):
    return tool.Line(
        title="a tile", target="i8mm", core="neoverse-v1", features=4096, loads=2.5, missing=10,
        missing_second=5, pace=pace, least=least,
    )  # fmt: skip


def test_a_tile_behind_its_pace_lost_or_gone_is_named():
    before = tool.committed(tool.table([line(1.0)]))
    assert tool.losses([line(1.0)], dict(before), 1.05) == []
    lost, least = tool.losses([line(0.8)], dict(before), 1.05)
    assert "80% of its loop's pace now, 100% in the table" in lost
    assert "wanted 95%" in least
    assert "not in the table" in tool.losses([line(1.0)], {}, 1.05)[0]
    assert "no longer" in tool.losses([], dict(before), 1.05)[0]


@pytest.mark.parametrize(("first", "second", "pace"), [(0, 0, 1.0), (20, 0, 0.8), (20, 14, 0.5), (0, 7, 1.0)])
def test_what_is_behind_a_cache_may_be_slower_than_the_loop(monkeypatch, first, second, pace):
    """16 features in 8 cycles: 20 bytes for each are 40 in a cycle, and 32 come; 14 come from behind both."""
    loop = Loop(target="i8mm", entry="tile", marker="channel", rows=16, length=16, cores=("neoverse-v1",))
    monkeypatch.setattr(tool, "TILES", (quantized(loop=loop),))
    monkeypatch.setattr(tool, "missing_bytes", lambda *_: first)
    monkeypatch.setattr(tool, "missing_second", lambda *_: second)
    lines = tool.measure({"i8mm": {}}, lambda *_: (8.0, 1, 20))
    assert [found.pace for found in lines] == pytest.approx([pace] * 3)
    assert lines[0].loads == 2.5
