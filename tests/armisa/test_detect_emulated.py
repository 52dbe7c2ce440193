"""Detection inside emulated AArch64 machines agrees with what the kernel interface there says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from armbuild.target import arm64_root, qemu
from armisa import Isa

ROOT = Path(__file__).parents[2]
CODE = """
import ctypes, json
from armisa import detect
library = ctypes.CDLL(None)
library.getauxval.restype = ctypes.c_ulong
lengths = [library.prctl(number, 0, 0, 0, 0) for number in (51, 64)]
listed = [line.split(":")[1].split() for line in open("/proc/cpuinfo") if line.startswith("Features")][0]
print(json.dumps({"isa": detect().as_dict(), "lengths": lengths, "listed": listed}))
"""
CPUS = [
    "cortex-a53",
    "cortex-a72",
    "cortex-a76",
    "cortex-a710",
    "neoverse-n1",
    "neoverse-n2",
    "neoverse-v1",
    "a64fx",
    "max",
    "max,sve-max-vq=2",
    "max,sve-default-vector-length=256",
    "max,sve=off,sme=off",
]


@pytest.mark.emulated
@pytest.mark.network
@pytest.mark.parametrize("cpu", CPUS)
def test_detect_agrees_with_the_emulated_kernel(cpu):
    root = arm64_root.make("3.11")
    program = qemu.find(("max", qemu.NEWER))
    command = [program, "-L", root, "-cpu", cpu, arm64_root.interpreter(root, "3.11"), "-c", CODE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    seen = json.loads(result.stdout)
    isa = seen["isa"]
    assert isa["machine"] == "aarch64"
    assert isa["emulated"]
    assert isa["features"] == sorted(seen["listed"])
    assert isa["sve_vector_bits"] == (seen["lengths"][0] * 8 if seen["lengths"][0] > 0 else None)
    assert isa["sme_vector_bits"] == (seen["lengths"][1] * 8 if seen["lengths"][1] > 0 else None)
    if "," not in cpu:
        assert isa["kernels"] == Isa.from_target(cpu).kernels()
