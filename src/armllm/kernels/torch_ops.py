"""The kernels as operators of torch: `torch.ops.armllm.*`, which `torch.compile` and `torch.export` see.

Importing this module registers them. They take any dimensions before the last, and return new tensors.
`fused_add_rms_norm` and `rotary_embedding` change their arguments instead. A scale of inputs is a tensor,
because a compiled graph holds numbers, also when other weights are loaded. The checks are those of the
functions in `armllm.kernels`. Every operator has a fake implementation, which gives shape and dtype of the
result (PyTorch, "Custom Python Operators").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from armllm.kernels._extension import extension
from armllm.kernels.elementwise import layer_norm

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARY: Any = torch.library.Library("armllm", "DEF")  # type: ignore[no-untyped-call]
# PackedWeight.description without its first, the bits
_PACKED = (
    "int out_features, int in_features, int group_size, int zero_points, str scales, str values, str layout,"
    " str target"
)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _result(x: Tensor, features: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], features))


def _define(signature: str, implementation: Callable[..., Tensor], fake: Callable[..., Tensor]) -> None:
    name = signature.partition("(")[0]
    _LIBRARY.define(f"{signature} -> Tensor")
    _LIBRARY.impl(name, implementation, "CPU")
    torch.library.register_fake(f"armllm::{name}", fake, lib=_LIBRARY)


def _define_in_place(signature: str, implementation: Callable[..., None]) -> None:
    """An operator that changes arguments and returns nothing."""
    name = signature.partition("(")[0]
    _LIBRARY.define(f"{signature} -> ()")
    _LIBRARY.impl(name, implementation, "CPU")
    torch.library.register_fake(f"armllm::{name}", lambda *_: None, lib=_LIBRARY)


def _define_same_shape(name: str, parameters: str, kernel: Callable[..., None]) -> None:
    """An operator whose result has the shape of ``x``."""

    def compute(x: Tensor, *arguments: object) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        kernel(_rows(out), _rows(x), *arguments)
        return out

    _define(
        f"{name}(Tensor x{parameters})",
        compute,
        lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format),
    )


def _define_gated(name: str, kernel: Callable[[Tensor, Tensor], None]) -> None:
    """An operator whose result has half the features of ``x``."""

    def compute(x: Tensor) -> Tensor:
        out = _result(x, x.shape[-1] // 2)
        kernel(_rows(out), _rows(x))
        return out

    _define(f"{name}(Tensor x)", compute, lambda x: _result(x, x.shape[-1] // 2))


def _define_quantized(bits: int, kernel: Callable[..., None]) -> None:
    def compute(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        x_scale: Tensor | None,
        out_features: int,
        *description: int | str,
    ) -> Tensor:
        out = _result(x, out_features)
        scale = None if x_scale is None else float(x_scale)
        kernel(_rows(out), _rows(x), weight, (bits, out_features, *description), bias, scale)
        return out

    _define(
        f"matmul_w{bits}a8(Tensor x, Tensor weight, Tensor? bias, Tensor? x_scale, {_PACKED})",
        compute,
        lambda x, _weight, _bias, _scale, features, *_: _result(x, features),
    )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = _result(x, weight.shape[0])
    extension.linear(_rows(out), _rows(x), weight, bias)
    return out


def _panel_linear(
    x: Tensor, panels: Tensor, bias: Tensor | None, out_features: int, in_features: int
) -> Tensor:
    out = _result(x, out_features)
    extension.panel_linear(_rows(out), _rows(x), panels, bias, out_features, in_features)
    return out


def _fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float
) -> None:
    columns = x.shape[-1]
    extension.fused_add_rms_norm(x.view(-1, columns), residual.view(-1, columns), weight, eps, weight_offset)


for _name, _parameters, _kernel in (
    ("rms_norm", ", Tensor weight, float eps, float weight_offset", extension.rms_norm),
    ("layer_norm", ", Tensor weight, Tensor? bias, float eps", layer_norm),
    ("gelu", "", extension.gelu),
    ("gelu_tanh", "", extension.gelu_tanh),
    ("quick_gelu", "", extension.quick_gelu),
    ("relu", "", extension.relu),
):
    _define_same_shape(_name, _parameters, _kernel)
for _name, _gated in (
    ("silu_and_mul", extension.silu_and_mul),
    ("gelu_and_mul", extension.gelu_and_mul),
    ("gelu_tanh_and_mul", extension.gelu_tanh_and_mul),
):
    _define_gated(_name, _gated)
_define_quantized(4, extension.matmul_w4a8)
_define_quantized(8, extension.matmul_w8a8)
_define(
    "linear(Tensor x, Tensor weight, Tensor? bias)",
    _linear,
    lambda x, weight, _bias: _result(x, weight.shape[0]),
)
_define(
    "panel_linear(Tensor x, Tensor panels, Tensor? bias, int out_features, int in_features)",
    _panel_linear,
    lambda x, _panels, _bias, out_features, _in: _result(x, out_features),
)
_define_in_place(
    "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps, float weight_offset)",
    _fused_add_rms_norm,
)
_define_in_place(
    "rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!) key, Tensor cos_sin_cache,"
    " bool interleaved)",
    extension.rotary_embedding,
)
