"""vLLM's layer norm, where it is an operator (see `operators`). It is none before vLLM 0.32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.model_executor.layers.layernorm import LayerNorm

import armllm.kernels.torch_ops  # noqa: F401 - registers the operators
from armllm.vllm_plugin.interface import check_attributes
from armllm.vllm_plugin.operators import replace_operators

if TYPE_CHECKING:
    from torch import Tensor


class ArmllmLayerNorm(LayerNorm):  # type: ignore[misc]
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, rounded once."""

    def forward_cpu(self, x: Tensor) -> Tensor:
        """The norm of each row."""
        if self.weight is None or self.weight.dtype != x.dtype:
            result: Tensor = self.forward_native(x)
        else:
            result = torch.ops.armllm.layer_norm(x, self.weight, self.bias, self.eps)
        return result


def register() -> None:
    """Put our layer norm in the place of vLLM's."""
    check_attributes(LayerNorm, ("weight", "bias", "eps"))
    replace_operators([(LayerNorm, ArmllmLayerNorm)])
