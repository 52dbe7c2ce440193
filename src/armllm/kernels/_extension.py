"""Load the extension module, or say in one sentence why it can't be."""

from __future__ import annotations

import warnings

try:
    from armllm import _kernels as extension
except ImportError as error:
    raise ImportError(
        "armllm's compiled kernels (armllm._kernels) are not available: "
        f"{error}. Install the wheel for this machine, or run `pip install .` in a checkout."
    ) from error

if problem := extension.problem():
    warnings.warn(problem, RuntimeWarning, stacklevel=2)
