"""glibc's malloc keeps what steps free, unless the user chose otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import armllm
from armllm.utils import malloc

MIB = 1 << 20
STEPS = f"""
import ctypes, resource
from armllm import LLM
llm = LLM({str(Path(armllm.__file__).parent / "smoke/model")!r})
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def step():
    memory = ctypes.c_void_p(libc.malloc(20 << 20))
    ctypes.memset(memory, 1, 20 << 20)
    libc.free(memory)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
before = faults()
for _ in range(5):
    step()
print(faults() - before)
"""


def faults(**variables: str) -> int:
    """Pages that five steps get from the system, in a process that has loaded a model."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MALLOC_")}
    run = subprocess.run(
        [sys.executable, "-c", STEPS],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return int(run.stdout.split()[-1])


@pytest.mark.skipif(malloc.allocated() is None, reason="needs glibc's malloc")
def test_a_step_gets_the_memory_of_the_last_one():
    """Without it each of 4 KiB comes from the system, cleared; and who set a variable has chosen."""
    assert faults() < 100
    assert faults(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 1000


@pytest.mark.skipif(malloc.allocated() is None, reason="needs glibc's malloc")
def test_what_is_allocated_is_counted():
    before = malloc.allocated()
    kept = bytearray(8 * MIB)
    assert 8 * MIB <= malloc.allocated() - before < 9 * MIB
    del kept
    malloc.trim()
    assert malloc.allocated() - before < MIB


def test_a_library_without_these_calls_is_left_alone(monkeypatch):
    """musl's, for example."""
    for name in ("_mallopt", "_mallinfo2", "_malloc_trim"):
        monkeypatch.setattr(malloc, name, None)
    malloc.keep_freed_memory()
    malloc.trim()
    assert malloc.allocated() is None


def test_older_versions_get_the_most_that_they_take(monkeypatch):
    """glibc before 2.35 refuses to allocate so much from its heap; Amazon Linux 2023 has 2.34."""
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    calls = []
    monkeypatch.setattr(malloc, "_mallopt", lambda *option: calls.append(option) or option[1] != malloc.KEPT)
    malloc.keep_freed_memory()
    assert calls[-1] == (malloc.M_MMAP_THRESHOLD, 32 * MIB)
