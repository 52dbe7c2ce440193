"""Mapped files, and their pages given back to the system when what they hold was copied.

Only for mappings of this module, which nobody writes to: private changes would be lost, such as those of a
model that another package has mapped from the same file. What is used where it is mapped comes back from the
page cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import TYPE_CHECKING

from armllm.environment import uses_huge_pages

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor

Span = tuple[int, int]  # addresses, the second one past the end
MAP_NORESERVE = 0x4000  # Linux on x86-64 and AArch64; Python has no name for it before 3.13


def map_file(path: Path) -> mmap.mmap:
    """All of a file: copy on write, since torch warns of memory that can't be written to.

    Nothing is set aside for what might be written, so the file may be larger than memory. Where the file
    system has huge pages in its cache (ext4 and XFS of newer kernels), they are asked for.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(
            file.fileno(),
            0,
            flags=mmap.MAP_PRIVATE | MAP_NORESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
    if uses_huge_pages():
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def span_of(mapped: mmap.mmap) -> Span:
    """Where a file is mapped."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    return start, start + len(mapped)


def release(spans: Iterable[Span]) -> None:
    """Give back the pages in these spans, which must be those of `map_file`."""
    libc = ctypes.CDLL(None)
    for start, end in spans:
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def release_tensor(tensor: Tensor, span: Span) -> None:
    """Give back the whole pages below a tensor, if it lies in ``span``."""
    first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    end = last // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end and span[0] <= first and last <= span[1]:
        release([(start, end)])
