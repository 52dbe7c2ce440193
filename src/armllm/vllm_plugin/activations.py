"""vLLM's activations, where each is an operator (see `operators`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.model_executor.layers.activation import GELU, GeluAndMul, GELUTanh, QuickGELU, SiluAndMul

import armllm.kernels.torch_ops  # noqa: F401 - registers the operators
from armllm.vllm_plugin.interface import check_attributes
from armllm.vllm_plugin.operators import replace_operators

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

OPS = torch.ops.armllm


def _activation(layer: type, operator: Callable[[Tensor], Tensor]) -> type:
    def forward_cpu(self: torch.nn.Module, x: Tensor) -> Tensor:  # noqa: ARG001 - a method
        return operator(x)

    return type(f"Armllm{layer.__name__}", (layer,), {"forward_cpu": forward_cpu})


class ArmllmGeluAndMul(GeluAndMul):  # type: ignore[misc]
    """``gelu(x[:d]) * x[d:]``, exact or with tanh."""

    def forward_cpu(self, x: Tensor) -> Tensor:
        """``x[..., 2 d]`` to ``[..., d]``."""
        operator = OPS.gelu_tanh_and_mul if self.approximate == "tanh" else OPS.gelu_and_mul
        result: Tensor = operator(x)
        return result


def register() -> None:
    """Put our activations in the place of vLLM's."""
    check_attributes(GeluAndMul, ("approximate",))
    operators = {
        SiluAndMul: OPS.silu_and_mul,
        GELU: OPS.gelu,
        GELUTanh: OPS.gelu_tanh,
        QuickGELU: OPS.quick_gelu,
    }
    ours = [(layer, _activation(layer, operator)) for layer, operator in operators.items()]
    replace_operators([(GeluAndMul, ArmllmGeluAndMul), *ours])
