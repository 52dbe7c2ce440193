"""Llama (Touvron et al. 2023, Grattafiori et al. 2024): pre-norm, rotary, grouped queries, SwiGLU."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from armllm import kernels
from armllm.layers.attention import Attention, AttentionMetadata
from armllm.layers.embedding import Embedding
from armllm.layers.linear import DenseLinear, load_linear
from armllm.layers.norm import RMSNorm
from armllm.layers.rotary import RopeParameters, RotaryEmbedding
from armllm.models.config import ConfigReader, ModelConfig

if TYPE_CHECKING:
    from armllm.models.loader import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """Llama's own part of config.json."""

    intermediate_size: int
    rms_norm_eps: float
    rope: RopeParameters
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool


class LlamaAttention:
    """Self-attention of one layer."""

    def __init__(self, config: LlamaConfig, weights: Weights, rotary: RotaryEmbedding) -> None:
        self.sizes = [config.num_heads * config.head_dim] + [config.num_kv_heads * config.head_dim] * 2
        parts = dict(zip(("q_proj", "k_proj", "v_proj"), self.sizes, strict=True))
        self.qkv_proj = load_linear(weights, parts, config.hidden_size, bias=config.qkv_bias)
        self.o_proj = load_linear(
            weights, {"o_proj": config.hidden_size}, self.sizes[0], bias=config.output_bias
        )
        self.rotary = rotary
        self.attention = Attention(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
        )

    def __call__(
        self, x: Tensor, positions: Tensor, metadata: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        query, key, value = self.project(x)
        self.rotary(positions, query, key)
        attended = self.attention(query, key, value, metadata).flatten(1)
        return self.o_proj(attended if rows is None else attended[rows])

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query ``[T, num_heads, head_dim]``, key and value ``[T, num_kv_heads, head_dim]``."""
        parts = torch.split(self.qkv_proj(x), self.sizes, dim=-1)
        query, key, value = (part.view(x.shape[0], -1, self.attention.head_dim) for part in parts)
        return query, key, value


class LlamaMLP:
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, config: LlamaConfig, weights: Weights) -> None:
        size = config.intermediate_size
        parts = {"gate_proj": size, "up_proj": size}
        self.gate_up_proj = load_linear(weights, parts, config.hidden_size, bias=config.mlp_bias)
        self.down_proj = load_linear(weights, {"down_proj": config.hidden_size}, size, bias=config.mlp_bias)
        self.size = size

    def __call__(self, x: Tensor) -> Tensor:
        activated = torch.empty(x.shape[0], self.size, dtype=x.dtype)
        kernels.silu_and_mul(activated, self.gate_up_proj(x))
        return self.down_proj(activated)


class LlamaDecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)).

    Branch and sum travel apart, because the next norm adds them while it reads them; before the first there
    is no sum.
    """

    attention_class = LlamaAttention

    def __init__(self, config: LlamaConfig, weights: Weights, rotary: RotaryEmbedding) -> None:
        self.self_attn = self.attention_class(config, weights.scope("self_attn"), rotary)
        self.mlp = LlamaMLP(config, weights.scope("mlp"))
        self.input_layernorm = RMSNorm(
            weights.scope("input_layernorm"), config.hidden_size, config.rms_norm_eps
        )
        self.post_attention_layernorm = RMSNorm(
            weights.scope("post_attention_layernorm"), config.hidden_size, config.rms_norm_eps
        )

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The branch and the sum so far; with ``rows``, of these tokens only, though all are attended to."""
        if residual is None:
            x, residual = self.input_layernorm(x), x
        else:
            self.input_layernorm.add(x, residual)
        x = self.self_attn(x, positions, metadata, rows)
        if rows is not None:
            residual = residual[rows]
        self.post_attention_layernorm.add(x, residual)
        return self.mlp(x), residual


class LlamaForCausalLM:
    """The decoder and its head."""

    layer_class = LlamaDecoderLayer

    def __init__(self, config: LlamaConfig, weights: Weights, *, max_positions: int) -> None:
        self.config = config
        rotary = RotaryEmbedding(
            config.rope, rotary_dim=config.head_dim, max_positions=max_positions, device=weights.device
        )
        model = weights.scope("model")
        self.embed_tokens = Embedding(model.scope("embed_tokens"), config.vocab_size, config.hidden_size)
        self.layers = [
            self.layer_class(config, model.scope(f"layers.{index}"), rotary)
            for index in range(config.num_layers)
        ]
        self.norm = RMSNorm(model.scope("norm"), config.hidden_size, config.rms_norm_eps)
        self.lm_head = (
            DenseLinear(self.embed_tokens.weight)
            if config.tie_word_embeddings
            else load_linear(weights, {"lm_head": config.vocab_size}, config.hidden_size, bias=False)
        )
        self.attention_layers = [layer.self_attn.attention for layer in self.layers]

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Llama's config.json."""
        reader.only("hidden_act", "silu")
        attention_bias = reader.boolean("attention_bias", default=False)
        common = reader.common("LlamaForCausalLM", default_eos=2, default_positions=2048)
        return LlamaConfig(
            **common,
            intermediate_size=reader.integer("intermediate_size"),
            rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
            rope=reader.rope(common["max_position_embeddings"]),
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )

    @staticmethod
    def ignored_tensors(config: LlamaConfig) -> tuple[str, ...]:
        """Old checkpoints keep the rotary frequencies; a tied head may be stored once more."""
        return ("rotary_emb.inv_freq", *(["lm_head.weight"] if config.tie_word_embeddings else []))

    def __call__(
        self, token_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, rows: Tensor
    ) -> Tensor:
        """Final hidden states of ``rows``."""
        x, residual = self.embed_tokens(token_ids), None
        for layer in self.layers[:-1]:
            x, residual = layer(x, residual, positions, metadata, rows=None)
        # After the last layer's attention nothing looks at the other tokens any more.
        x, residual = self.layers[-1](x, residual, positions, metadata, rows)
        return self.norm(residual + x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary."""
        return self.lm_head(hidden).float()
