"""StableLM (Bellagente et al. 2024): layer norms, a part of each head turns, branches maybe side by side."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.embedding import gather
from armllm.layers.norm import HeadNorm
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaForCausalLM,
    add_and_normalize,
    llama_fields,
)
from armllm.models.rope import read_rope
from armllm.models.starcoder2 import LayerNormDecoderLayer
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RotaryEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelConfig(LlamaConfig):
    """parallel: both branches read the same norm. head_norms: of each head's query and key."""

    parallel: bool
    head_norms: bool = False


class HeadNormAttention(LlamaAttention):
    """Each head's query and key may have a layer norm."""

    by_heads = False

    def __init__(
        self, config: ParallelConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.head_norms = self.load_head_norms(config, weights) if config.head_norms else None

    @staticmethod
    def load_head_norms(config: ParallelConfig, weights: Weights) -> list[HeadNorm]:
        """Those of queries and of keys, stored one by one."""
        found = []
        for name, heads in (("q_layernorm", config.num_heads), ("k_layernorm", config.num_kv_heads)):
            names = [f"{name}.norms.{head}.weight" for head in range(heads)]
            joined = weights.concatenate(names, [(config.head_dim,)] * heads)
            found.append(HeadNorm(joined.view(heads, config.head_dim), config.rms_norm_eps))
        return found

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        query, key, value = super().project(x)
        if self.head_norms is None:
            return query, key, value
        query_norm, key_norm = self.head_norms
        return query_norm(query), key_norm(key), value


class ParallelDecoderLayer(LayerNormDecoderLayer):
    """x + attention(norm(x)) + mlp(norm(x)); not ``parallel``: one after the other, as in Llama."""

    def load_norms(self, config: Any, weights: Weights) -> None:
        """One for both branches, or two."""
        self.parallel = config.parallel
        if self.parallel:
            self.input_layernorm = self.load_norm(config, weights, self.norm_names[0])
        else:
            super().load_norms(config, weights)

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The branches and the sum so far, as in Llama."""
        if not self.parallel:
            return super().__call__(x, residual, places, metadata, rows)
        x, residual = add_and_normalize(self.input_layernorm, x, residual)
        attended = self.self_attn(x, places, metadata, rows)
        if rows is not None:
            x, residual = gather(x, rows), gather(residual, rows)
        return self.mlp(self.mlp_input(x, residual)).add_(attended), residual

    def mlp_input(self, x: Tensor, residual: Tensor) -> Tensor:  # noqa: ARG002 - for families with two norms
        """What the feed-forward part reads, given the norm that attention reads and the sum so far."""
        return x


class StableLmDecoderLayer(ParallelDecoderLayer):
    """StableLM's attention beside or before the feed-forward part."""

    attention_class = HeadNormAttention


class StableLmForCausalLM(LlamaForCausalLM):
    """Llama's decoder with StableLM's layers."""

    layer_class = StableLmDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> ParallelConfig:
        """StableLM's config.json."""
        common = reader.whole_heads(
            "StableLmForCausalLM", default_eos=0, default_positions=4096, default_kv_heads=32
        )
        rope = read_rope(
            reader,
            common,
            default_partial=0.25,
        )
        return ParallelConfig(
            **llama_fields(reader, common, default_eps=1e-5, eps_name="layer_norm_eps", rope=rope),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=reader.boolean("use_qkv_bias", default=False),
            parallel=reader.boolean("use_parallel_residual", default=False),
            head_norms=reader.boolean("qk_layernorm", default=False),
        )
