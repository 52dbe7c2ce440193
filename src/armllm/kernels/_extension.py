"""Load the extension module, or say in one sentence why it can't be."""

from __future__ import annotations

import warnings

try:
    import armllm._kernels as extension
except ImportError as error:
    raise ImportError(
        f"armllm's compiled kernels (armllm._kernels) are not available: {error}. "
        "Install the wheel for this machine, or run `pip install .` in a checkout."
    ) from error

__all__ = ["extension"]

if problem := extension.problem():
    warnings.warn(problem, RuntimeWarning, stacklevel=2)
