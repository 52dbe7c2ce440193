"""Falcon (Almazrouei et al. 2023): branches side by side, one matrix for query, key and value."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch

from armllm.models.llama import LlamaAttention, LlamaForCausalLM, llama_fields, plain_mlp
from armllm.models.stablelm import ParallelConfig, ParallelDecoderLayer
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.mlp import PlainMLP
    from armllm.layers.rotary import RotaryEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class FalconConfig(ParallelConfig):
    """num_norms: 2 where the feed-forward part beside attention has a separate norm. alibi: nothing turns."""

    num_norms: int
    alibi: bool


def alibi_slopes(num_heads: int) -> Tensor:
    """Of each head, from 2^(-8/n) on for n heads (Press et al. 2022).

    If n is no power of two, the further heads have every second slope of twice as many.
    """
    whole = 2 ** int(math.log2(num_heads))
    steps = [8 * head / whole for head in range(1, whole + 1)]
    steps += [4 * head / whole for head in range(1, 2 * (num_heads - whole), 2)]
    return torch.tensor([2.0**-step for step in steps])


class GroupedAttention(LlamaAttention):
    """The rows of one matrix are, per key and value head, its queries, its key and its value."""

    by_heads = False
    fused_name: str

    def qkv_parts(self) -> dict[str, int]:
        """The fused matrix."""
        return {self.fused_name: sum(self.sizes)}

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        heads, kv_heads = self.attention.num_heads, self.attention.num_kv_heads
        group, head_dim = heads // kv_heads, self.attention.head_dim
        fused = self.qkv_proj(x).view(x.shape[0], kv_heads, group + 2, head_dim)
        query, key, value = fused.split_with_sizes((group, 1, 1), 2)
        return (
            query.reshape(x.shape[0], heads, head_dim),
            key.reshape(x.shape[0], kv_heads, head_dim),
            value.reshape(x.shape[0], kv_heads, head_dim),
        )


class FalconAttention(GroupedAttention):
    """One matrix for query, key and value, and maybe ALiBi."""

    fused_name, output_name = "query_key_value", "dense"

    def __init__(
        self, config: FalconConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        if config.alibi:  # scaled as the scores are
            self.attention.use_slopes(alibi_slopes(config.num_heads) * config.head_dim**-0.5)


class FalconDecoderLayer(ParallelDecoderLayer):
    """Branches side by side, or in the oldest models one after the other."""

    attention_class = FalconAttention
    attention_name = "self_attention"

    def load_norms(self, config: Any, weights: Weights) -> None:
        """One norm for both branches, or one for each."""
        self.ln_mlp = None
        if config.num_norms == 1:
            super().load_norms(config, weights)
            return
        self.parallel = True
        self.input_layernorm = self.load_norm(config, weights, "ln_attn")
        self.ln_mlp = self.load_norm(config, weights, "ln_mlp")

    def mlp_input(self, x: Tensor, residual: Tensor) -> Tensor:
        """Its own norm of the sum, if there is one."""
        return x if self.ln_mlp is None else self.ln_mlp(residual)

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> PlainMLP:  # noqa: ARG004
        """The feed-forward part."""
        return plain_mlp(config, weights, ("dense_h_to_4h", "dense_4h_to_h"))


class FalconForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Falcon's layers and names."""

    layer_class = FalconDecoderLayer
    names = ("word_embeddings", "h", "ln_f")
    config: FalconConfig

    def rotary_of(self, index: int) -> RotaryEmbedding | None:
        """None with ALiBi."""
        return None if self.config.alibi else super().rotary_of(index)

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head."""
        return weights.scope("transformer", optional=True)

    @staticmethod
    def read_config(reader: ConfigReader) -> FalconConfig:
        """Falcon's config.json."""
        common = reader.whole_heads(
            "FalconForCausalLM", default_eos=11, default_positions=2048, default_tied=True
        )
        heads, hidden_size = common["num_heads"], common["hidden_size"]
        new = reader.boolean("new_decoder_architecture", default=False)
        parallel = reader.boolean("parallel_attn", default=True)
        if new and not parallel:
            raise reader.error("parallel_attn False is not supported with new_decoder_architecture")
        reader.only("num_ln_in_parallel_attn", *((2, 1) if new else (1,)))
        multi_query = reader.boolean("multi_query", default=True)
        kv_heads = reader.integer("num_kv_heads", heads)
        if not new:
            kv_heads = 1 if multi_query else heads
        if heads % kv_heads:
            raise reader.error(f"num_attention_heads {heads} is not a multiple of num_kv_heads {kv_heads}")
        bias = reader.boolean("bias", default=False)
        fields = llama_fields(
            reader,
            common | {"num_kv_heads": kv_heads},
            default_eps=1e-5,
            eps_name="layer_norm_epsilon",
            activation=("activation", "gelu"),
            default_intermediate=4 * hidden_size,
        )
        return FalconConfig(
            **fields | {"intermediate_size": reader.integer("ffn_hidden_size", 4 * hidden_size)},
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=bias,
            parallel=parallel,
            alibi=reader.boolean("alibi", default=False),
            num_norms=reader.get("num_ln_in_parallel_attn", 2) if new else 1,
        )
