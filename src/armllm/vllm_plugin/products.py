"""A layer's weight in the order of the kernels, and the product with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import armllm.kernels.torch_ops  # noqa: F401 - registers the operators
from armllm.quant.integers import pack
from armllm.quant.rounding import fit

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.matrix import IntegerWeight

WEIGHT, INPUT_SCALE = "armllm_weight", "armllm_input_scale"


class PackedProduct:
    """``x W^T + bias`` by `torch.ops.armllm`.

    Its data is a parameter of the layer, ``armllm_weight``. The scale of all inputs is another, where there
    is one. So vLLM loads other weights into both, also after it has compiled the layer.
    """

    def __init__(self, layer: torch.nn.Module, weight: IntegerWeight) -> None:
        matrix = pack(fit(weight)[0])
        packed = matrix.weight
        layer.register_parameter(WEIGHT, torch.nn.Parameter(packed.data, requires_grad=False))
        self.operator = (
            torch.ops.armllm.matmul_w4a8 if packed.bits == 4 else torch.ops.armllm.matmul_w8a8
        ).default
        if matrix.input_scale is not None:
            scale = torch.tensor(matrix.input_scale)
            layer.register_parameter(INPUT_SCALE, torch.nn.Parameter(scale, requires_grad=False))
        self.arguments = packed.description[1:]

    def __call__(self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        scale = getattr(layer, INPUT_SCALE, None)
        product: Tensor = self.operator(x, getattr(layer, WEIGHT), bias, scale, *self.arguments)
        return product


def release(layer: torch.nn.Module, names: list[str | None]) -> None:
    """Empty the parameters that the packed weight has replaced. vLLM asks them for their device."""
    for name in names:
        if name is not None and getattr(layer, name, None) is not None:
            setattr(layer, name, torch.nn.Parameter(torch.empty(0), requires_grad=False))
