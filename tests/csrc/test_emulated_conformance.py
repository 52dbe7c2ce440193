"""The conformance runner passes on emulated cores, of what they choose.

Apart from the native ones, so that both can be run side by side.
"""

from __future__ import annotations

import os
import re
import subprocess

import pytest

import conformance as tool
from armbuild.target import qemu


@pytest.fixture(scope="session")
def arm64(tmp_path_factory):
    return tool.build(tmp_path_factory.mktemp("aarch64"), arm64=True)


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.parametrize("cpu", tool.CPUS)
def test_what_a_core_chooses_conforms_on_it(arm64, cpu):
    emulator = qemu.find((cpu.partition(",")[0],))
    done = subprocess.run(
        [emulator, "-cpu", cpu, arm64, *tool.CPUS[cpu]],
        env={**os.environ, **tool.QEMU},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout

    def ran(op, target):
        return bool(re.search(rf"^{op} +{target} +ok ", done.stdout, re.MULTILINE))

    if cpu == "max,sve-max-vq=3":
        assert ran("silu_and_mul_f32", "neon")
        return
    if cpu.startswith("max"):
        assert ran("silu_and_mul_(f32|bf16)", "sve")
        return
    newer = cpu in {"neoverse-n2", "neoverse-v1"}
    wide = cpu in {"neoverse-v1", "a64fx"}
    assert ran("paged_attention_f32", "sve" if wide else "neon")
    assert ran("paged_attention_bf16", "sve") is (cpu == "a64fx")
    assert ran("paged_attention_bf16", "bf16") is newer
    assert ran("paged_attention_f16", "fhm") is newer
    assert ran("paged_attention_int8_f16", "i8mm") is newer
    assert ran("paged_attention_int8_bf16", "dotprod") is (cpu in {"cortex-a76", "neoverse-n1"})
    assert ran("matmul_w4a8_f32", "i8mm") is newer
    assert ran("matmul_w8a8_bf16", "dotprod") is (cpu in {"cortex-a76", "neoverse-n1"})
    assert ran("silu_and_mul_f32", "sve") is wide
