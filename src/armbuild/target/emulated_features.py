"""The CPU features that an emulator really gives to a program, for each CPU that it can emulate.

A name is no promise: the ``neoverse-v1`` of QEMU 10 has BF16, that of QEMU 11 has not. A program of a hundred
bytes is run on the CPU, and prints the auxiliary vector that the emulator hands to it.
"""

from __future__ import annotations

import functools
import os
import struct
import subprocess
import tempfile
from typing import TYPE_CHECKING

from armbuild.host import cache
from armisa import Isa, host, kernel_targets, tables

if TYPE_CHECKING:
    from pathlib import Path

PRINT_AUXILIARY_VECTOR = bytes.fromhex(
    "e20340f9"  # ldr  x2, [sp]              argc
    "e1430091"  # add  x1, sp, #16
    "210c028b"  # add  x1, x1, x2, lsl #3    the environment, behind the arguments
    "238440f8"  # ldr  x3, [x1], #8
    "e3ffffb5"  # cbnz x3, .-4
    "f30301aa"  # mov  x19, x1               the auxiliary vector, behind the environment
    "200080d2"  # mov  x0, #1
    "e10313aa"  # mov  x1, x19
    "020280d2"  # mov  x2, #16
    "080880d2"  # mov  x8, #64
    "010000d4"  # svc  #0                    write(1, x19, 16)
    "630641f8"  # ldr  x3, [x19], #16
    "43ffffb5"  # cbnz x3, .-24              up to AT_NULL
    "000080d2"  # mov  x0, #0
    "a80b80d2"  # mov  x8, #93
    "010000d4"  # svc  #0                    exit(0)
)
"""AArch64 code; a process's first stack is laid out as in the ELF ABI, system calls are Linux's."""
ADDRESS = 0x400000
HEADERS = 64 + 56
SECONDS = 30


@functools.cache
def given_by(program: Path, cpu: str) -> frozenset[str] | None:
    """The features (Linux names) that the emulator ``program`` gives to ``-cpu cpu``, None if it fails."""
    size = HEADERS + len(PRINT_AUXILIARY_VECTOR)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 183, 1, ADDRESS + HEADERS, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, ADDRESS, ADDRESS, size, size, 1 << 16)
    with tempfile.NamedTemporaryFile(prefix=".armbuild-", dir=cache.root()) as file:
        file.write(header + segment + PRINT_AUXILIARY_VECTOR)
        file.flush()
        os.fchmod(file.fileno(), 0o700)
        try:
            done = subprocess.run(
                [program, "-cpu", cpu, file.name],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    if done.returncode or len(done.stdout) % 16:
        return None
    vector = dict(struct.iter_unpack("<QQ", done.stdout))
    bits = tables.hwcap_bits()
    return frozenset(
        name
        for word, entry in host.AUXV.items()
        for bit, name in bits[word].items()
        if vector.get(entry, 0) >> bit & 1
    )


def fault(program: Path, cpu: str) -> str:
    """Return how ``-cpu cpu`` of ``program`` differs from the core where code is chosen by it, else nothing.

    On a core that lacks a feature other kernels run; on one with a feature too many, code runs that the core
    would end with SIGILL.
    """
    features = given_by(program, cpu)
    if features is None:
        return f"does not run a program as {cpu}"
    if cpu == "max":
        return ""
    core = Isa.from_target(cpu).features
    decisive = frozenset({"atomics"}).union(*(target.features for target in kernel_targets()))
    if lacking := (core - features) & decisive:
        return f"emulates {cpu} without {', '.join(sorted(lacking))}"
    vectors = {name for name in features if name.startswith(("sve", "sme"))}
    if added := (features - core) & (decisive | vectors):
        return f"emulates {cpu} with {', '.join(sorted(added))}, which it lacks"
    return ""
