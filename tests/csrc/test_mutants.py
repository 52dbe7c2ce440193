"""The conformance runner fails when one line of a kernel is wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

import conformance as tool

ROOT = Path(__file__).parents[2]
# A mutant breaks what all targets are made of, so one target shows it, and one op.
SCALAR = (
    *(f"-DARMLLM_{target}=OFF" for target in ("AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX")),
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
)


class Mutant(NamedTuple):
    """One line that is broken, and an op that must fail for it."""

    what: str
    op: str
    file: str
    line: str
    broken: str


# Those of a group break different ops, so they are built together.
GROUPS = (
    (
        Mutant(
            "attention forgets what earlier keys weighed",
            "paged_attention_f32",
            "csrc/kernels/softmax.h",
            "state.sum[r] * factor[r] + weights_of_row",
            "state.sum[r] + weights_of_row",
        ),
        Mutant(
            "rotation turns the wrong way",
            "rotary_embedding_f32",
            "csrc/kernels/rotary.h",
            "a = sub(mul(x, cosine), mul(b, sine));",
            "a = add(mul(x, cosine), mul(b, sine));",
        ),
        Mutant(
            "a group's scale is that of the first",
            "matmul_w4a8_f32",
            "csrc/kernels/matmul_plain.h",
            "p.scales[g * 16 + n]",
            "p.scales[n]",
        ),
        Mutant(
            "a weight's high half is looked up as its low one",
            "matmul_w8a8_f32",
            "csrc/kernels/matmul.h",
            "table[panel[i] >> 4]",
            "table[panel[i] & 15]",
        ),
        Mutant(
            "a token's rows all get the first share",
            "weighted_sum_f32",
            "csrc/kernels/weighted_sum.h",
            "splat(weights[j])",
            "splat(weights[0])",
        ),
        Mutant(
            "the second row of an adapter gets what the first does",
            "lora_expand_f32",
            "csrc/kernels/lora.h",
            "splat(other_low[r])",
            "splat(low[r])",
        ),
        Mutant(
            "a state decays twice",
            "state_scan_f32",
            "csrc/kernels/recurrence.h",
            "fma(k, u0, mul(load(four.state[0] + at), decay))",
            "fma(k, u0, mul(mul(load(four.state[0] + at), decay), decay))",
        ),
        Mutant(
            "what stands behind a row weighs something",
            "chunk_weights_f32",
            "csrc/kernels/sampling.h",
            "zero()), n - i, 0)",
            "zero()), kLanes, 0)",
        ),
        Mutant(
            "a token below the least is kept",
            "chunk_weights_f32",
            "csrc/kernels/sampling.h",
            "splat(a.least), nothing,",
            "splat(-INFINITY), nothing,",
        ),
        Mutant(
            "a convolution meets the newest token first",
            "causal_conv_f32",
            "csrc/kernels/recurrence.h",
            "rows[j] = input(t - before + j)",
            "rows[j] = input(t - j)",
        ),
        Mutant(
            "the last weights of a dense panel are the first",
            "dense_matmul_f32",
            "csrc/kernels/dense.h",
            "(column + c < last ? column + c : last) * n",
            "(column + c < last ? column + c : 0) * n",
        ),
        Mutant(
            "a panel's odd elements meet the even activations",
            "panel_matmul_f32",
            "csrc/kernels/panels.h",
            "fma_lane<lane + 1>(odd",
            "fma_lane<lane>(odd",
        ),
        Mutant(
            "a panel of E4M3 has the scales of its first group",
            "decode_fp8_f32",
            "csrc/matmul.cpp",
            "a.fp8_scales[row * groups + g]",
            "a.fp8_scales[row * groups]",
        ),
        Mutant(
            "a norm reads one element too far",
            "rms_norm_f32",
            "csrc/kernels/norm.h",
            "for (; i + kLanes <= n; i += kLanes) {\n    const Vf v = load(x + i);",
            "for (; i + kLanes <= n + 1; i += kLanes) {\n    const Vf v = load(x + i);",
        ),
    ),
    (
        Mutant(
            "a query sees one token of the future",
            "paged_attention_f32",
            "csrc/kernels/softmax.h",
            "return a.seq_lens[tile.sequence] - queries + row / group;",
            "return a.seq_lens[tile.sequence] - queries + row / group + 1;",
        ),
        Mutant(
            "a negative number of E4M3 is positive",
            "decode_fp8_bf16",
            "csrc/simd/scalar.h",
            "(*p & 0x80u) << 24 | ",
            "",
        ),
        Mutant(
            "an expert has the weights of the one before",
            "moe_w4a8_f32",
            "csrc/moe.cpp",
            "args.weight = weights[group.expert];",
            "args.weight = weights[group.expert > 0 ? group.expert - 1 : 0];",
        ),
    ),
    (
        Mutant(
            "a weight on an int8 cache loses its low digit",
            "paged_attention_int8_f32",
            "csrc/kernels/attention_int8.h",
            "upper(sums[c]) * 128 + lower(sums[c])",
            "upper(sums[c]) * 128",
        ),
        Mutant(
            "an expert gets every other of its tokens twice",
            "moe_w4a8_f32",
            "csrc/kernels/matmul_activations.h",
            "const int64_t row = from.ids[r];",
            "const int64_t row = from.ids[r - r % 2];",
        ),
    ),
    (
        Mutant(
            "a value of an int8 cache gets its key's scale",
            "paged_attention_int8_f32",
            "csrc/kernels/attention_int8.h",
            "scales[i] = key_scales[i] + block_size;",
            "scales[i] = key_scales[i];",
        ),
        Mutant(
            "experts activate the rows of the first",
            "moe_w4a8_f32",
            "csrc/moe.cpp",
            "at = group.first - experts.batch.first + first;",
            "at = group.first / 2 - experts.batch.first / 2 + first;",
        ),
    ),
    (
        Mutant(
            "a scale that no token wrote is used",
            "paged_attention_int8_f32",
            "csrc/kernels/attention_int8.h",
            "where_less(zero(), p, mul(p, load(scales[i / 16] + j - i)), zero())",
            "mul(p, load(scales[i / 16] + j - i))",
        ),
        Mutant(
            "a power of two loses its last term",
            "exp",
            "csrc/kernels/exp.h",
            "fma(r, splat(0x1.5bb9bap-10f), addend(kPower4, r))",
            "fma(r, splat(0.0f), addend(kPower4, r))",
        ),
        Mutant(
            "an activation is rounded down",
            "quantize_rows_f32",
            "csrc/kernels/quantize.h",
            "sub(add(div(x, scale), splat(kRounder)), splat(kRounder));",
            "sub(add(sub(div(x, scale), splat(0.5f)), splat(kRounder)), splat(kRounder));",
        ),
    ),
)


@pytest.fixture(scope="session")
def copy(tmp_path_factory):
    """A copy of the sources to break, built once so that a mutant compiles only what it touches."""
    folder = tmp_path_factory.mktemp("mutants")
    for name in ("csrc", "cmake", "tests/csrc"):
        shutil.copytree(ROOT / name, folder / "source" / name)
    table = ("src/armisa/data/kernels.toml", "src/armisa/kernel_ops.py")
    for name in ("CMakeLists.txt", "pyproject.toml", *table):
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    tool.build(folder / "build", *SCALAR, source=folder / "source")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].what)
def test_one_broken_line_fails_the_runner(copy, group):
    sources = {copy / "source" / mutant.file for mutant in group}
    whole = {path: path.read_text(encoding="utf-8") for path in sources}
    try:
        for mutant in group:
            path = copy / "source" / mutant.file
            text = path.read_text(encoding="utf-8")
            assert text.count(mutant.line) == 1, mutant.what
            path.write_text(text.replace(mutant.line, mutant.broken), encoding="utf-8")
        runner = tool.build(copy / "build", *SCALAR, source=copy / "source")
    finally:
        for path, text in whole.items():
            path.write_text(text, encoding="utf-8")
    for mutant in group:
        done = subprocess.run([runner, "--op", mutant.op], capture_output=True, text=True, check=False)
        assert done.returncode != 0, (mutant.what, done.stdout)
