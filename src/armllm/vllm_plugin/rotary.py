"""vLLM's rotary embeddings, where each is an operator (see `operators`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.linear_scaling_rope import LinearScalingRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding

import armllm.kernels.torch_ops  # noqa: F401 - registers the operators
from armllm.vllm_plugin.interface import check_attributes
from armllm.vllm_plugin.operators import replace_operators

if TYPE_CHECKING:
    from torch import Tensor

# Those that differ only in their table of cosines and sines.
LAYERS = (RotaryEmbedding, LinearScalingRotaryEmbedding, Llama3RotaryEmbedding, YaRNScalingRotaryEmbedding)


def _rotary(layer: type) -> type:
    """The class of a rotary embedding with our rotation."""

    def forward_cpu(
        self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        if key is None or positions.ndim != 1 or query.ndim != 2 or key.ndim != 2:
            rotated: tuple[Tensor, Tensor | None] = layer.forward_cpu(self, positions, query, key)  # type: ignore[attr-defined]
            return rotated
        # the kernel takes a table in fp32, with the numbers that vLLM has rounded to the dtype of the model
        if getattr(self, "armllm_table", None) is None:
            self.armllm_table = self.cos_sin_cache.to(query.dtype).float()
        heads = (len(positions), -1, self.head_size)
        torch.ops.armllm.rotary_embedding(
            positions, query.view(heads), key.view(heads), self.armllm_table, not self.is_neox_style
        )
        return query, key

    return type(f"Armllm{layer.__name__}", (layer,), {"forward_cpu": forward_cpu})


def register() -> None:
    """Put our rotation in the place of vLLM's."""
    for layer in LAYERS:
        check_attributes(layer, ("cos_sin_cache", "head_size", "is_neox_style"))
    replace_operators((layer, _rotary(layer)) for layer in LAYERS)
