"""What the faces ask of their arguments. Each check names the argument that fails it.

They run before every call, a decode step included: plain attribute comparisons, no tensor operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from armllm._kernels import Storage

STORAGE = {
    torch.float32: extension.Storage.f32,
    torch.float16: extension.Storage.f16,
    torch.bfloat16: extension.Storage.bf16,
}
extension.plain_types(torch.Tensor, torch.nn.Parameter)


def storage(name: str, dtype: torch.dtype) -> Storage:
    """Return the extension's name of a storage type."""
    found = STORAGE.get(dtype)
    if found is None:
        supported = ", ".join(str(known) for known in STORAGE)
        raise ValueError(f"{name} has dtype {dtype}; the kernels take {supported}")
    return found


def tensor(name: str, value: Tensor, dtype: torch.dtype, shape: Sequence[int | str]) -> None:
    """Check device, dtype and shape; an int in ``shape`` is the size, a str names a free one."""
    # First what most calls come with: the checks of a token take as long as its kernel.
    if value.dtype is dtype and value.shape == shape and value.is_contiguous() and value.is_cpu:
        return
    _tensor(name, value, dtype, shape)


def matrix(name: str, value: Tensor, columns: str) -> torch.Size:
    """Check device and layout of [tokens, ``columns``], of any dtype; return its shape."""
    shape = value.shape
    if len(shape) != 2 or not value.is_contiguous() or not value.is_cpu:
        _tensor(name, value, value.dtype, ("tokens", columns))
    return shape


def output(name: str, value: Tensor) -> None:
    """Refuse an output whose rows share memory (an expanded tensor, or strides shorter than a row)."""
    if value.is_contiguous():
        return
    extent = 1
    for size, stride in sorted(zip(value.shape, value.stride(), strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if stride < extent:
                raise ValueError(f"{name} overlaps itself in memory: strides {list(value.stride())}")
            extent = stride * (size - 1) + extent


def _tensor(name: str, value: Tensor, dtype: torch.dtype, shape: Sequence[int | str]) -> None:
    if not value.is_cpu:
        raise ValueError(f"{name} is on {value.device}; the kernels run on the CPU")
    if value.dtype is not dtype:
        raise ValueError(f"{name} has dtype {value.dtype}, expected {dtype}")
    actual = value.shape
    fits = len(actual) == len(shape)
    if fits:
        for size, wanted in zip(actual, shape):  # noqa: B905 - the lengths are equal
            if size != wanted and wanted.__class__ is not str:
                fits = False
    if not fits:
        expected = ", ".join(map(str, shape))
        raise ValueError(f"{name} has shape {list(actual)}, expected [{expected}]")
    if not value.is_contiguous() and actual[-1] > 1 and value.stride(-1) != 1:
        raise ValueError(
            f"{name} must be contiguous in its last dimension, its stride there is {value.stride(-1)}"
        )
