#!/usr/bin/env python3
"""Published AArch64 wheels on old and new cores: what emulation says beside what the audit said before.

    python tools/judge_published.py --package numpy --cpu cortex-a72 --cpu max

Prints a Markdown table. Each wheel is imported and made to compute under QEMU, on each CPU. Fails when the
audit's "yes" dies, or its "no" runs; "only if dispatched" promises neither. Needs `armllm[build]`, a Python
package index and a Debian archive; without arguments (all packages, all CPUs) about five minutes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from armbuild.audit import audit_path
from armbuild.errors import ArmbuildError
from armbuild.host import pythons
from armbuild.target import arm64_root, qemu, target_packages
from armisa.tables import Product, find_target

PYTHON = "3.11"
CPUS = ("cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1", "neoverse-v1", "a64fx", "max")
NUMPY = """
import numpy as np
a = np.arange(4096, dtype="f4").reshape(64, 64) / 4096
assert np.allclose(a @ a, (a.astype("f8") @ a.astype("f8")))
assert (np.sort(a[::-1].ravel()) == a.ravel()).all()
assert np.isfinite(np.linalg.svd(a)[1]).all() and np.exp(a.astype("f2")).dtype == "f2"
"""
TOKENIZERS = """
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE(unk_token="?"))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
trainer = trainers.BpeTrainer(special_tokens=["?"], show_progress=False)
tokenizer.train_from_iterator(["the quick brown fox " * 50], trainer)
assert tokenizer.encode("the quick fox").ids
"""
# A model of one MatMul, as protocol buffers (onnx.proto3): 64x64 floats in, 64x64 floats out.
ONNXRUNTIME = """
import numpy as np, onnxruntime
def field(number, value):
    if isinstance(value, int):
        return bytes([number << 3, value])
    value = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(value)]) + value
shape = field(1, field(1, 64)) + field(1, field(1, 64))
value = lambda name: field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))
node = field(1, "a") + field(1, "a") + field(2, "b") + field(4, "MatMul")
graph = field(1, node) + field(2, "g") + field(11, value("a")) + field(12, value("b"))
model = field(1, 8) + field(7, graph) + field(8, field(2, 13))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
a = np.arange(4096, dtype="f4").reshape(64, 64) / 4096
assert np.allclose(session.run(None, {"a": a})[0], a @ a, rtol=1e-3)
"""
TORCH = """
import torch
torch.set_num_threads(1)
a = torch.arange(4096.0).reshape(64, 64) / 4096
assert torch.allclose(a @ a, (a.double() @ a.double()).float(), rtol=1e-3)
assert torch.isfinite(torch.nn.functional.linear(a.bfloat16(), a.bfloat16())).all()
"""
LLAMA = """
import xllamacpp
assert xllamacpp.get_device_info()
"""
PACKAGES = {
    "numpy": ("numpy==2.3.5", NUMPY),
    "tokenizers": ("tokenizers==0.22.1", TOKENIZERS),
    "onnxruntime": ("onnxruntime==1.23.2", ONNXRUNTIME),
    "torch": ("torch==2.10.0", TORCH),
    "xllamacpp": ("xllamacpp==2026.10.11549", LLAMA),
}


@dataclass(frozen=True)
class Finding:
    """What one wheel did on one CPU, and the audit's verdict."""

    package: str
    cpu: str
    verdict: str
    missing: tuple[str, ...]
    outcome: str

    @property
    def contradicts(self) -> bool:
        """Whether the audit's answer is wrong, not merely careful."""
        died = self.outcome == "SIGILL"
        return (self.verdict == "yes" and died) or (self.verdict == "no" and self.outcome == "runs")


def verdicts(requirement: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the audit's verdict, and what is missing, for each core, of the wheel without what it needs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target_packages.install(
            [requirement], PYTHON, folder / "site", log=folder / "uv.log", dependencies=False
        )
        return {item.core: (item.verdict, item.missing) for item in audit_path(folder / "site").cores}


def outcome(code: str, site: Path, cpu: str) -> str:
    """Return "runs", a signal's name, or the last line of what the program said."""
    root = arm64_root.make(PYTHON)
    # Without SVE of its own size QEMU's max is slow; the instruction set stays the whole one.
    model = "max,sve-max-vq=1" if cpu == "max" else cpu
    program = arm64_root.interpreter(root, PYTHON)
    command: list[str | Path] = [qemu.find((cpu,)), "-L", root, "-cpu", model, program, "-c", code]
    environment = {
        "PYTHONPATH": str(site),
        "PATH": "/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",  # noqa: S108 - nothing is written there
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return "runs"
    number = -done.returncode if done.returncode < 0 else done.returncode - 128
    if number in set(signal.Signals):
        return signal.Signals(number).name
    return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]


def judge(package: str, cpus: tuple[str, ...]) -> list[Finding]:
    """Audit and run one package on each CPU."""
    requirement, code = PACKAGES[package]
    by_core = verdicts(requirement)
    with tempfile.TemporaryDirectory() as name:
        log = Path(name, "uv.log")
        site = target_packages.cached([requirement], PYTHON, host=_host(), log=log)
    findings = []
    for cpu in cpus:
        verdict, missing = by_core[core_name(cpu)]
        findings.append(Finding(package, cpu, verdict, missing, outcome(code, site, cpu)))
        print(findings[-1], file=sys.stderr, flush=True)
    return findings


def core_name(cpu: str) -> str:
    """Return the name of QEMU's model in the audit's table of cores."""
    found = find_target(cpu)
    return next(iter(found.cores)) if isinstance(found, Product) else found.name


def _host() -> pythons.HostPython | None:
    try:
        return pythons.find(PYTHON)
    except ArmbuildError:
        return None


def main() -> int:
    """Print the table; 1 when the audit was wrong somewhere."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--package", action="append", choices=PACKAGES)
    parser.add_argument("--cpu", action="append", choices=CPUS)
    arguments = parser.parse_args()
    cpus = tuple(arguments.cpu or CPUS)
    wrong = 0
    print("| wheel | " + " | ".join(cpus) + " |")
    print("| --- |" + " --- |" * len(cpus))
    for package in arguments.package or PACKAGES:
        findings = judge(package, cpus)
        wrong += sum(item.contradicts for item in findings)
        cells = [f"{item.outcome}; {item.verdict}" for item in findings]
        print(f"| {PACKAGES[package][0]} | " + " | ".join(cells) + " |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
