"""The conformance runner fails when one line of a kernel is wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import conformance as tool

ROOT = Path(__file__).parents[2]
# A mutant breaks what all targets are made of, so one target shows it.
SCALAR = ("-DARMLLM_AVX2=OFF", "-DARMLLM_AVX512=OFF")

MUTANTS = {
    "attention forgets what earlier keys weighed": (
        "csrc/kernels/softmax.h",
        "sum = sum * factor + total;",
        "sum = sum + total;",
    ),
    "a query sees one token of the future": (
        "csrc/kernels/softmax.h",
        "- queries + row / group + 1;",
        "- queries + row / group + 2;",
    ),
    "rotation turns the wrong way": (
        "csrc/kernels/rotary.h",
        "a = sub(mul(x, cosine), mul(b, sine));",
        "a = add(mul(x, cosine), mul(b, sine));",
    ),
    "a group's scale is that of the first": (
        "csrc/kernels/matmul_plain.h",
        "p.scales[g * 16 + n]",
        "p.scales[n]",
    ),
    "a weight on an int8 cache loses its low digit": (
        "csrc/kernels/attention_int8.h",
        "upper(sums[r][c]) * 128 + lower(sums[r][c])",
        "upper(sums[r][c]) * 128",
    ),
    "a value of an int8 cache gets its key's scale": (
        "csrc/kernels/attention_int8.h",
        "scales[j / 16] = key_scales + block_size;",
        "scales[j / 16] = key_scales;",
    ),
    "a scale that no token wrote is used": (
        "csrc/kernels/attention_int8.h",
        "where_less(zero(), p, mul(p, load(scales[i / 16] + j - i)), zero())",
        "mul(p, load(scales[i / 16] + j - i))",
    ),
    "a token's rows all get the first share": (
        "csrc/kernels/weighted_sum.h",
        "splat(weights[j])",
        "splat(weights[0])",
    ),
    "an expert gets every other of its tokens twice": (
        "csrc/kernels/matmul.h",
        "const int64_t row = from.ids[r];",
        "const int64_t row = from.ids[r - r % 2];",
    ),
    "the last weights of a dense panel are the first": (
        "csrc/kernels/dense.h",
        "(column + c < last ? column + c : last) * n",
        "(column + c < last ? column + c : 0) * n",
    ),
    "an expert has the weights of the one before": (
        "csrc/moe.cpp",
        "args.weight = weights[group.expert];",
        "args.weight = weights[group.expert > 0 ? group.expert - 1 : 0];",
    ),
    "experts activate the rows of the first": (
        "csrc/moe.cpp",
        "products + (group.first - first_row + first) * 2 * width",
        "products + (group.first / 2 - first_row / 2 + first) * 2 * width",
    ),
    "an activation is rounded down": (
        "csrc/kernels/quantize.h",
        "sub(add(div(x, scale), splat(kRounder)), splat(kRounder));",
        "sub(add(sub(div(x, scale), splat(0.5f)), splat(kRounder)), splat(kRounder));",
    ),
    "a norm reads one element too far": (
        "csrc/kernels/norm.h",
        "for (; i + kLanes <= n; i += kLanes) {\n    const Vf v = load(x + i);",
        "for (; i + kLanes <= n + 1; i += kLanes) {\n    const Vf v = load(x + i);",
    ),
}


@pytest.fixture(scope="session")
def copy(tmp_path_factory):
    """A copy of the sources to break, built once so that a mutant compiles only what it touches."""
    folder = tmp_path_factory.mktemp("mutants")
    for name in ("csrc", "cmake", "tests/csrc"):
        shutil.copytree(ROOT / name, folder / "source" / name)
    for name in ("CMakeLists.txt", "pyproject.toml", "src/armbuild/data/kernels.toml"):
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    tool.build(folder / "build", *SCALAR, source=folder / "source")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("file", "line", "broken"), MUTANTS.values(), ids=MUTANTS.keys())
def test_one_broken_line_fails_the_runner(copy, file, line, broken):
    path = copy / "source" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(line) == 1
    path.write_text(text.replace(line, broken), encoding="utf-8")
    try:
        runner = tool.build(copy / "build", *SCALAR, source=copy / "source")
    finally:
        path.write_text(text, encoding="utf-8")
    done = subprocess.run([runner], capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
