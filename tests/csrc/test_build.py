"""CMake refuses machines the kernels don't know; the dispatch table refuses what can't be right."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


GCC = shutil.which("aarch64-linux-gnu-g++") or "aarch64-linux-gnu-g++"
ZIG = f'"{sys.executable}" -m ziglang c++'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (f"{GCC} -mbig-endian", "needs a little-endian target"),
        (f"{GCC} -mabi=ilp32", "needs a 64-bit target"),
        (f"{ZIG} -target riscv64-linux-musl", "builds for AArch64 and x86-64 Linux"),
    ],
    ids=["big-endian", "32-bit", "riscv64"],
)
def test_an_unsupported_machine_is_refused_in_a_sentence(tmp_path, call, problem):
    compiler = tmp_path / "c++"
    # There is no C library for these machines, and zig would take its time to make one.
    compiler.write_text(f'#!/bin/sh\nexec {call} -nostdlib "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    done = subprocess.run(
        [
            sys.executable, "-m", "cmake", "-G", "Ninja", "-S", ROOT, "-B", tmp_path / "build",
            f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).parent / 'ninja'}", "-DARMLLM_PYTHON=OFF",
            "-DCMAKE_SYSTEM_NAME=Linux",
            "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", f"-DCMAKE_CXX_COMPILER={compiler}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert problem in " ".join(done.stderr.split())


def make_table(tmp_path, text, *, machine="x86_64", compiled="scalar"):
    toml = tmp_path / "kernels.toml"
    toml.write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, ROOT / "cmake" / "kernel_table.py", toml, machine, compiled, tmp_path / "table.inc"],
        capture_output=True,
        text=True,
        check=False,
    )


SCALAR = """[ops]
each = ["rms_norm", "kv_cache_layout", "write_kv_cache", "paged_attention", "kv_cache_layout_int8",
    "write_kv_cache_int8", "paged_attention_int8", "matmul_w4a8"]
others = ["convert_f32_to_f16"]
[[target]]
name = "scalar"
machine = "any"
features = []
ops = [{ops}]
"""


def test_the_ops_of_a_kv_cache_come_together(tmp_path):
    done = make_table(tmp_path, SCALAR.format(ops='"kv_cache_layout_f32", "paged_attention_f32"'))
    assert done.returncode != 0
    assert "scalar lacks write_kv_cache_f32" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_ops_of_an_int8_kv_cache_come_for_all_storage_types(tmp_path):
    names = ("kv_cache_layout", "write_kv_cache", "paged_attention")
    present = [f'"{name}_int8_{storage}"' for name in names for storage in ("f32", "f16")]
    done = make_table(tmp_path, SCALAR.format(ops=", ".join(present)))
    assert done.returncode != 0
    assert "scalar lacks kv_cache_layout_int8_bf16, paged_attention_int8_bf16, write" in done.stderr


def test_the_products_of_all_storage_types_come_together(tmp_path):
    done = make_table(tmp_path, SCALAR.format(ops='"matmul_w4a8_f32", "matmul_w4a8_bf16"'))
    assert done.returncode != 0
    assert "scalar lacks matmul_w4a8_f16" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_pattern_that_changes_nothing_is_refused(tmp_path):
    done = make_table(tmp_path, SCALAR.format(ops='"rms_norm_*", "!silu_*"'))
    assert done.returncode != 0
    assert "target scalar: !silu_* changes nothing" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_patterns_name_the_ops_of_a_target(tmp_path):
    assert make_table(tmp_path, SCALAR.format(ops='"*_f16", "!*_int8_*", "!matmul_*"')).returncode == 0
    table = (tmp_path / "table.inc").read_text(encoding="utf-8")
    assert (
        "{Op::rms_norm_f16, Op::kv_cache_layout_f16, Op::write_kv_cache_f16, Op::paged_attention_f16, "
        in table
    )
    assert "Op::convert_f32_to_f16}" in table
    assert "int8" not in table


def test_a_target_to_build_must_be_in_the_table(tmp_path):
    done = make_table(tmp_path, SCALAR.format(ops='"rms_norm_f32"'), compiled="scalar,warp9")
    assert done.returncode != 0
    assert "no target named warp9 for x86_64" in done.stderr


def test_the_table_is_not_touched_when_nothing_changed(tmp_path):
    text = SCALAR.format(ops='"rms_norm_f32"')
    assert make_table(tmp_path, text).returncode == 0
    before = (tmp_path / "table.inc").stat().st_mtime_ns
    assert make_table(tmp_path, text).returncode == 0
    assert (tmp_path / "table.inc").stat().st_mtime_ns == before
