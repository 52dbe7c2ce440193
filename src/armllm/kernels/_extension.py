"""Load the extension module and give it torch's tensor type; an ImportError says what is wrong."""

from __future__ import annotations

import warnings

import torch

try:
    import armllm._kernels as extension
except ImportError as error:
    raise ImportError(
        f"armllm's compiled kernels (armllm._kernels) are not available: {error}. "
        "Install the wheel for this machine, or run `pip install .` in a checkout."
    ) from error

__all__ = ["ALIGNMENT", "aligned_bytes", "extension"]

ALIGNMENT = 64  # bytes: a cache line
_TENSOR = torch.zeros(1, 1)

try:
    extension.use_torch(torch.Tensor, _TENSOR, torch._neg_view(_TENSOR))  # noqa: SLF001 - how such a tensor is made
except AttributeError as error:
    raise ImportError(
        f"armllm's compiled kernels ({extension.__file__}) were built from other sources: build them again"
    ) from error
except ValueError as error:
    raise ImportError(f"torch {torch.__version__}: {error}") from error

if problem := extension.problem():
    warnings.warn(problem, RuntimeWarning, stacklevel=2)


def aligned_bytes(size: int) -> torch.Tensor:
    """Return uninitialized memory, uint8 [size], that starts at a multiple of 64 bytes."""
    memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size]
