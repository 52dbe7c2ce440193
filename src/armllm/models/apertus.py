"""Apertus (Project Apertus 2025): Qwen3's attention, and a plain feed-forward part of xIELU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from armllm.layers.activation import PLAIN
from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields, plain_mlp
from armllm.models.qwen3 import Qwen3DecoderLayer
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.mlp import PlainMLP

XIELU = "xielu"
# the class's default, for a config.json that says nothing of rotary embedding
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


class XieluActivation:
    """b x + p x^2 above 0, and b x + n (e^x - 1 - x) below (Huang and Schlag 2024); p and n are learned."""

    def __init__(self, weights: Weights) -> None:
        exact = weights.in_dtype(torch.float32)
        self.above, self.below = exact.take("alpha_p", 1), exact.take("alpha_n", 1)
        self.slope = exact.take("beta")

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, size]`` to the same shape."""
        softplus = torch.nn.functional.softplus
        exact = x.float()
        negative, positive = exact.clamp(max=0.0), exact.relu()
        found = (torch.expm1(negative) - negative).mul_(self.slope + softplus(self.below))
        found.add_(positive.mul_(positive).mul_(softplus(self.above))).add_(exact * self.slope)
        return found.to(x.dtype)


class ApertusDecoderLayer(Qwen3DecoderLayer):
    """Qwen3's attention and a plain feed-forward part."""

    norm_names = ("attention_layernorm", "feedforward_layernorm")

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> PlainMLP:  # noqa: ARG004
        """The feed-forward part."""
        learned = XieluActivation(weights.scope("mlp.act_fn")) if config.activation == XIELU else None
        return plain_mlp(config, weights, ("up_proj", "down_proj"), learned)


class ApertusForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Apertus' layers."""

    layer_class = ApertusDecoderLayer
    # the smallest number that transformers' class computes the exponential of
    ignored = (*LlamaForCausalLM.ignored, "*.mlp.act_fn.eps")

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Apertus' config.json."""
        reader.only("qk_norm", True)
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common("ApertusForCausalLM", default_eos=2, default_positions=65536)
        rope = read_rope(
            reader,
            common,
            default_theta=12e6,
            missing=LLAMA3,
        )
        activation = ("hidden_act", XIELU, (XIELU, *PLAIN))
        return LlamaConfig(
            **llama_fields(reader, common, default_eps=1e-5, rope=rope, activation=activation),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
        )
