"""What glibc's malloc offers beyond the C standard; other libraries have less, or nothing, of it.

Source: mallopt(3), mallinfo2(3), malloc_trim(3).
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 1 << 30  # bytes
MOST_BEFORE_2_35 = 32 << 20  # the largest M_MMAP_THRESHOLD of older versions


class _Info(ctypes.Structure):
    """What mallinfo2 returns; of its ten counts hblkhd is number 4, and uordblks number 7."""

    _fields_ = [("counts", ctypes.c_size_t * 10)]


_libc = ctypes.CDLL(None)
_mallopt: Any = getattr(_libc, "mallopt", None)
_mallinfo2: Any = getattr(_libc, "mallinfo2", None)  # since glibc 2.33
_malloc_trim: Any = getattr(_libc, "malloc_trim", None)
if _mallinfo2 is not None:
    _mallinfo2.restype = _Info


def keeps_freed_memory() -> bool:
    """Whether `keep_freed_memory` has an effect: who has set one of malloc's own variables has chosen."""
    is_tuned = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    return _mallopt is not None and not is_tuned


def keep_freed_memory() -> None:
    """Let malloc keep what a step frees, because the next one needs as much.

    Else the system takes the pages back, and clears each one that it gives again: some 5% of the time of a
    prefill. What is allocated from now on is kept, up to 1 GiB of it.
    """
    if not keeps_freed_memory():
        return
    _mallopt(M_TRIM_THRESHOLD, KEPT)
    if not _mallopt(M_MMAP_THRESHOLD, KEPT):
        _mallopt(M_MMAP_THRESHOLD, MOST_BEFORE_2_35)


def allocated() -> int | None:
    """Bytes that malloc has given out; None where it does not say."""
    if _mallinfo2 is None:
        return None
    counts = _mallinfo2().counts
    return int(counts[4] + counts[7])


def trim() -> None:
    """Give free memory back to the system."""
    if _malloc_trim is not None:
        _malloc_trim(0)
