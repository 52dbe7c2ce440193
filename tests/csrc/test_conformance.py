"""The conformance runner passes on this machine, with sanitizers too, and knows its command line."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import conformance as tool

ROOT = Path(__file__).parents[2]


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    return tool.build(tmp_path_factory.mktemp("native"))


@pytest.mark.slow
def test_every_target_of_this_machine_conforms(native):
    done = run(native)
    assert done.returncode == 0, done.stdout
    for op in ("rms_norm_f32", "paged_attention_bf16", "dispatch", "threads", "rejects", "exp"):
        assert re.search(rf"^{op} +\S+ +ok ", done.stdout, re.MULTILINE), op


@pytest.mark.slow
def test_another_seed_conforms_too(native):
    done = run(native, "--seed", 20261120)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_runner_knows_its_options(native):
    listed = run(native, "--list")
    assert listed.returncode == 0
    assert "chosen here" in listed.stdout
    only = run(native, "--target", "scalar", "--op", "rms_norm_f32")
    assert [line.split()[:2] for line in only.stdout.splitlines()[:-1]] == [["rms_norm_f32", "scalar"]]
    for wrong in (["--target", "warp9"], ["--op", "no_op"], ["--seed", "x"], ["--seed"], ["--frobnicate"]):
        assert run(native, *wrong).returncode == 2, wrong


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="they are kernels for x86-64")
def test_kernels_for_avx512_and_amx_conform_on_every_cpu(native):
    """Catches a defect in kernels that this CPU may not have: their instructions are functions in C++."""
    targets = ("avx512", "avx512_vnni", "avx512_bf16", "amx")
    runner = tool.build(native.parents[1], program="conformance_x86")
    done = run(runner, *(word for name in targets for word in ("--target", name)))
    assert done.returncode == 0, done.stdout
    for op in ("paged_attention_bf16", "matmul_w4a8_f16", "linear_bf16", "lora_expand_bf16"):
        assert re.search(rf"^{op} +amx +ok ", done.stdout, re.MULTILINE), op


@pytest.mark.slow
def test_no_kernel_reads_or_writes_outside_its_buffers(native, tmp_path):
    """Targets that this CPU cannot run are not compiled, which would take minutes."""
    unused = re.findall(r"^- +(\S+) +not run: this CPU", run(native, "--list").stdout, re.MULTILINE)
    done = run(tool.build(tmp_path, *(f"-DARMLLM_{name.upper()}=OFF" for name in unused), sanitize=True))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_missing_emulator_is_named_and_nothing_is_built(tmp_path):
    """No PATH, no cache, no Debian archive: exit status 3, one line that says what to do."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "conformance.py", "--cpu", "neoverse-v1"],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "qemu" in done.stderr.lower()
    assert len(done.stderr.splitlines()) <= 2
