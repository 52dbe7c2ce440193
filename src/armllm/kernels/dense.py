"""Products with floating-point weights as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.kernels import _check
from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor


def linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Write ``x @ weight.T + bias`` to ``out``, as `torch.nn.functional.linear` gives it.

    ``x`` is [tokens, in_features], ``weight`` [out_features, in_features] and contiguous, ``bias``
    [out_features], ``out`` [tokens, out_features]; one dtype, float32, float16 or bfloat16. Sums are float32,
    with one rounding at the end; a row's result is the same beside any others. ``out`` must not overlap
    ``x``. Kernels on bfloat16's own instructions may take subnormal numbers for zero (Arm ARM, BFMMLA; Intel
    SDM, TDPBF16PS). Raises ValueError naming the argument that doesn't fit.
    """
    kind = _check.storage("x", x.dtype)
    rows, in_features = _check.matrix("x", x, "in_features")
    if weight.ndim != 2:
        _check.tensor("weight", weight, x.dtype, ("out_features", in_features))
    out_features = weight.shape[0]
    _check.tensor("weight", weight, x.dtype, (out_features, in_features))
    if not weight.is_contiguous():
        raise ValueError(f"weight must be contiguous, its strides are {list(weight.stride())}")
    _check.tensor("out", out, x.dtype, (rows, out_features))
    _check.output("out", out)
    if bias is not None:
        _check.tensor("bias", bias, x.dtype, (out_features,))
    extension.matmul(
        0,
        kind,
        out.data_ptr(),
        x.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        weight.data_ptr(),
        rows,
        out_features,
        in_features,
        0,
        False,
        out.stride(0),
        x.stride(0),
        0.0,
    )
