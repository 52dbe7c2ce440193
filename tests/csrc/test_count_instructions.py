"""Instructions are counted exactly, and those of marked loops apart from the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import count_instructions as tool
import qemu_trace

TOOLS = Path(__file__).parents[2] / "tools"

# A function of a prologue, a loop of three instructions around a mark at 0x108, and a return; it runs three
# times round. QEMU's first block has the prologue and a first turn, its second the other turns.
TRANSLATED = """IN: w4a8_tile
0x00000100:  d2800000  mov      x0, #0
0x00000104:  91000400  add      x0, x0, #1
0x00000108:  f1000c1f  cmp      x0, #3
0x0000010c:  54ffffc1  b.ne     #0x104

"""
AGAIN = """IN: w4a8_tile
0x00000104:  91000400  add      x0, x0, #1
0x00000108:  f1000c1f  cmp      x0, #3
0x0000010c:  54ffffc1  b.ne     #0x104

"""
RETURN = """IN: w4a8_tile
0x00000110:  d65f03c0  ret

"""


def ran(place, address, symbol):
    return f"Trace 0: {place:#x} [00000000/{address:016x}/00000001/00000200] {symbol}\n"


def edge(place, address, symbol):
    return f"IN: {symbol}\n0x{address:08x}:  d65f03c0  ret      \n\n" + ran(place, address, symbol)


LOG = (
    edge(0x7000, 0x10, "main")
    + edge(0x7100, 0x20, "count_begin")
    + "----------------\n"
    + TRANSLATED
    + ran(0x7200, 0x100, "w4a8_tile")
    + AGAIN
    + ran(0x7300, 0x104, "w4a8_tile") * 2
    + RETURN
    + ran(0x7400, 0x110, "w4a8_tile")
    + edge(0x7500, 0x200, "matmul_w4a8_quantize_f32")
    + edge(0x7600, 0x30, "count_end")
    + edge(0x7700, 0x40, "main")
)


def read(log):
    return qemu_trace.read(log.encode().splitlines(keepends=True), "count_begin", "count_end")


def test_every_instruction_between_the_two_functions_is_counted():
    trace = read(LOG)
    assert trace.times == {0x100: 1, 0x104: 3, 0x108: 3, 0x10C: 3, 0x110: 1, 0x200: 1}
    assert trace.loop_around(0x108) == (0x104, 0x10C)
    assert trace.loop_around(0x100) is None


def test_the_loop_is_parted_from_what_is_around_it():
    counted = tool.split(read(LOG), [0x108, 0x999])
    assert counted.parts == {tool.LOOP: 9, tool.TILE: 2, tool.QUANTIZE: 1}
    assert counted.total == 12
    assert counted.outside == pytest.approx(0.25)
    assert counted.share(tool.EPILOGUE) == 0


def test_updates_of_what_threads_share_are_counted():
    """A store-exclusive or an atomic instruction; a load-exclusive or a plain store is none."""
    texts = (
        "stxr w9, x8, [x0]",
        "ldaddal x1, x2, [x0]",
        "casal w1, w2, [x0]",
        "ldxr x8, [x0]",
        "str x0, [x1]",
    )
    trace = qemu_trace.Trace()
    for number, text in enumerate(texts):
        address = 4 * number
        trace.text[address], trace.function[address], trace.times[address] = text, "run", 10**number
    assert tool.split(trace, []).updates == 111


def test_loops_within_loops_count_once():
    loops = qemu_trace.merged([(8, 12), (0, 4), (8, 12), (9, 10)])
    assert loops == [(0, 4), (8, 12)]
    assert [qemu_trace.within(at, loops) for at in (0, 4, 5, 8, 10, 12, 13)] == [1, 1, 0, 1, 1, 1, 0]


def test_code_that_replaces_other_code_in_the_same_place_is_counted_as_its_own():
    log = (
        edge(0x7100, 0x20, "count_begin")
        + edge(0x7200, 0x100, "one")
        + edge(0x7200, 0x300, "other")
        + edge(0x7300, 0x30, "count_end")
    )
    assert read(log).times == {0x100: 1, 0x300: 1}


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        (LOG.replace(TRANSLATED, ""), "before it was translated"),
        (LOG.replace("count_end", "somewhere"), "count_end did not run"),
        (LOG.replace("Trace 0: 0x7200 ", "Trace 0: "), "not a line of QEMU 10"),
    ],
)
def test_a_log_that_lacks_something_is_refused(log, problem):
    with pytest.raises(ValueError, match=problem):
        read(log)


@pytest.mark.slow
def test_less_than_a_quarter_is_outside_the_loops(tmp_path):
    """Those of each target that have the most there: decoded panels, or loops with little to do."""
    for target, schemes in (("i8mm", ("int8", "int4-g32-bf16", "int4")), ("dotprod", ("int4",))):
        options = [word for scheme in schemes for word in ("--scheme", scheme)]
        done = subprocess.run(
            [
                *(sys.executable, TOOLS / "count_instructions.py", "--rows", "64", "--check"),
                *("--keep", tmp_path, "--target", target, *options),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        heading = 2
        assert done.stdout.count("\n") == heading + len(schemes)
