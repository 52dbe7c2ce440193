"""The cycle report finds marked loops, puts figures to them, and fails when a loop got slower."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import cycles as tool

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"


ASSEMBLY = """
_ZN6armllm4neon11silu_f32Ev:
.LBB0_1:
	mov	x1, x2
.LBB0_2:
	ldr	q0, [x0], #16
	//APP
	armllm_loop.apply.2.17:
	//NO_APP
	fmla	v1.4s, v0.4s, v0.4s
	subs	x3, x3, #1
	b.ne	.LBB0_2
	cbnz	x4, .LBB0_1
	ret
"""


def test_the_innermost_loop_around_a_mark_is_found():
    ((key, body),) = tool.find_loops(ASSEMBLY.splitlines()).items()
    assert key == ("_ZN6armllm4neon11silu_f32Ev", "apply", 2)
    assert [line.split()[0] for line in body] == ["ldr", "fmla", "subs", "b.ne", "//"]
    assert tool.macs(body, tool.CORES[0]) == (4, 8)


def test_a_vector_of_sve_has_as_many_products_as_lanes():
    (core,) = (core for core in tool.CORES if core.name == "a64fx")
    body = ["fmla\tz1.s, z2.s, z3.s[1]", "movprfx\tz4, z5", "fmla\tz4.s, p0/m, z1.s, z2.s"]
    assert tool.macs(body, core) == (32, 32)


def test_a_post_index_access_is_split_as_the_cores_do():
    assert tool.crack("\tstp\tq0, q1, [x10], #64") == "\tstp\tq0, q1, [x10]\n\tadd\tx10, x10, #64"
    assert tool.crack("\tldr\tq0, [x1], #-16") == "\tldr\tq0, [x1]\n\tsub\tx1, x1, #16"
    assert tool.crack("\tldr\tq0, [x1, #16]") == "\tldr\tq0, [x1, #16]"


def row(rate):
    return tool.Row(
        title="silu: apply", target="neon", core="neoverse-n1", cycles=1, rate=rate, peak="", limit=""
    )


def test_a_loop_that_lost_more_than_5_percent_is_named():
    key = ("silu: apply", "neon", "neoverse-n1")
    assert tool.losses([row("1.050 per element")], {key: "1.001 per element"}) == []
    assert tool.losses([row("1.060 per element")], {key: "1.000 per element"})
    assert tool.losses([row("15.0 MAC")], {key: "16.0 MAC"})
    assert tool.losses([row("15.5 MAC")], {key: "16.0 MAC"}) == []


def test_a_loop_that_came_or_went_is_named():
    assert "not in the table" in tool.losses([row("1.0 per element")], {})[0]
    assert "no longer" in tool.losses([], {("silu: apply", "neon", "neoverse-n1"): "1.0 per element"})[0]


def test_attention_of_one_row_must_use_the_loads_of_its_core():
    loop = tool.Loop(target="bf16", entry="attention_split_bf16", marker="logits", rows=2)
    (core,) = (core for core in tool.CORES if core.name == "neoverse-v2")
    body = ["bfmmla\tv1.4s, v2.8h, v3.8h"] * 16
    quick, slow = (tool.row(loop, core, body, cycles, "") for cycles in (5.9, 6.0))
    assert quick.rate == "43.4 MAC, 43.4 bytes of KV (90% of loads)"
    assert tool.slow_rows([quick]) == []
    assert "89% of what loads can do, not 90%" in tool.slow_rows([slow])[0]
    assert tool.slow_rows([dataclasses.replace(slow, target="fhm")]) == []
    assert tool.slow_rows([dataclasses.replace(slow, title="attention_split_f16: logits, 1 row")]) == []


def test_a_product_of_one_row_must_read_enough_weights_on_a64fx():
    (core,) = (core for core in tool.CORES if core.name == "a64fx")
    packed = tool.Loop(
        target="sve512", entry="w4a8_tile", marker="group", rows=1, length=32, bits=4, columns=128
    )
    dense = tool.Loop(target="sve512", entry="dense_multiply_bf16", marker="dense", rows=1)
    for loop, body, quick, slow in (
        (packed, ["// 1032"], 127, 130),
        (dense, ["fmla\tz4.s, p0/m, z1.s, z2.s"] * 8, 15.9, 16.1),
    ):
        assert tool.slow_rows([tool.row(loop, core, body, quick, "")]) == []
        assert (
            "bytes of weights per cycle, not 16" in tool.slow_rows([tool.row(loop, core, body, slow, "")])[0]
        )
    several = dataclasses.replace(packed, rows=2)
    assert tool.slow_rows([tool.row(several, core, ["// 2032"], 1000, "")]) == []


@pytest.mark.parametrize("operation", ["smmla z{0}.s, z30.b, z31.b", "and z{0}.d, z30.d, z31.d"])
def test_sve_multiplies_no_faster_where_its_vectors_are_long(operation):
    """On Neoverse-V1, of 256 bits: why quantized products have no SVE version (docs/kernels.md)."""
    (core,) = (core for core in tool.CORES if core.name == "neoverse-v1")
    neon = operation.replace("z", "v").replace(".s", ".4s").replace(".b", ".16b").replace(".d", ".16b")
    bodies = [[text.format(index) for index in range(24)] for text in (operation, neon)]
    (wide, _), (narrow, _) = tool.simulate(tool.find_llvm_mca(), bodies, core)
    assert wide == pytest.approx(12, abs=0.2)
    assert narrow == pytest.approx(6, abs=0.2)


@pytest.mark.slow
def test_no_loop_is_slower_than_the_table_says():
    done = subprocess.run(
        [sys.executable, TOOLS / "cycles.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
