"""Gemma 4's text model (Gemma Team 2026): wide heads where all tokens are seen, experts beside a dense part.

The last layers may use the keys and values of earlier ones, and each layer may see the tokens once more, by
an embedding of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from armllm.errors import RequestError
from armllm.layers.activation import gated
from armllm.layers.embedding import Embedding, gather
from armllm.layers.linear import as_float32, load_linear
from armllm.layers.mlp import GatedMLP
from armllm.layers.moe import load_experts
from armllm.layers.norm import PlainNorm, RMSNorm
from armllm.layers.ranks import building_for
from armllm.models.gemma3 import LocalRotary
from armllm.models.gemma4_config import Gemma4Config, read_text_config
from armllm.models.llama import LlamaAttention, LlamaDecoderLayer
from armllm.models.text_part import TextPart
from armllm.models.windows import FULL

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import Attention, AttentionMetadata
    from armllm.layers.rotary import RotaryEmbedding

KEYS_AND_VALUES = ("k_proj", "v_proj", "k_norm", "v_norm")


class Gemma4Attention(LlamaAttention):
    """Queries, keys and values are normalized; values may be the keys before that."""

    by_heads = False

    def __init__(
        self, config: Gemma4Config, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        self.value_is_key = config.value_is_key and config.kinds[index] == FULL
        super().__init__(config, weights, rotary, index)
        self.q_norm, self.k_norm = (
            RMSNorm(weights.scope(name), config.head_dim, config.rms_norm_eps)
            for name in ("q_norm", "k_norm")
        )
        self.v_norm = PlainNorm(config.head_dim, config.rms_norm_eps, weights.dtype)

    def qkv_parts(self) -> dict[str, int]:
        """No values where they are keys."""
        parts = super().qkv_parts()
        if self.value_is_key:
            del parts["v_proj"]
        return parts

    @staticmethod
    def score_options(config: Gemma4Config) -> dict[str, Any]:  # noqa: ARG004
        """The norms do what a scale would."""
        return {"scale": 1.0}

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        heads, kv_heads = self.attention.num_heads, self.attention.num_kv_heads
        counts = (heads, kv_heads) if self.value_is_key else (heads, kv_heads, kv_heads)
        query, key, *rest = self.heads(self.qkv_proj(x)).split_with_sizes(counts, 1)
        value = rest[0] if rest else key
        return self.q_norm(query), self.k_norm(key), self.v_norm(value)


class SharingAttention:
    """Queries only: keys and values are those in the cache of ``source``, which the model sets."""

    source: Attention

    def __init__(self, config: Gemma4Config, weights: Weights, rotary: RotaryEmbedding | None) -> None:
        size = config.num_heads * config.head_dim
        self.shape = (config.num_heads, config.head_dim)
        self.q_proj = load_linear(weights, {"q_proj": size}, config.hidden_size, bias=config.qkv_bias)
        self.o_proj = load_linear(weights, {"o_proj": config.hidden_size}, size, bias=config.output_bias)
        self.q_norm = RMSNorm(weights.scope("q_norm"), config.head_dim, config.rms_norm_eps)
        self.rotary = rotary

    def __call__(self, x: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        query = self.q_norm(self.q_proj(x).view(len(x), *self.shape))
        if self.rotary is not None:
            self.rotary(places, query, query[:, :0])
        attended = self.source.attend(query, metadata).flatten(1)
        return self.o_proj(attended if rows is None else gather(attended, rows))


class Gemma4Experts:
    """The router, which scales what it chose, and the experts with the norms around them."""

    def __init__(self, config: Gemma4Config, weights: Weights) -> None:
        hidden_size, count = config.hidden_size, config.num_experts
        router = weights.scope("router")
        router.quantization = None  # experts are not chosen by rounded weights
        exact = router.in_dtype(torch.float32)
        self.norm = PlainNorm(hidden_size, config.rms_norm_eps, torch.float32)
        self.norm.weight = exact.take("scale", hidden_size) * hidden_size**-0.5
        with building_for(None):  # so small that each rank computes it all, and need not wait
            self.router = load_linear(router, {"proj": count}, hidden_size, bias=False)
        self.factors = exact.take("per_expert_scale", count)
        self.per_token = config.num_experts_per_tok
        self.experts = load_experts(
            weights, count, hidden_size, config.moe_intermediate_size, activation=config.activation
        )
        self.before, self.after, self.after_dense = (
            LlamaDecoderLayer.load_norm(config, weights, f"{name}_feedforward_layernorm_{number}")
            for name, number in (("pre", 2), ("post", 2), ("post", 1))
        )

    def __call__(self, dense: Tensor, x: Tensor) -> Tensor:
        """The dense part's result and that of the experts on ``x``, the sum of all before it."""
        logits = self.router(self.norm(as_float32(x)).to(x.dtype))
        scores = torch.softmax(logits, dim=-1, dtype=torch.float32)
        expert_weights, expert_ids = scores.topk(self.per_token)
        expert_weights = expert_weights / expert_weights.sum(dim=-1, keepdim=True)
        expert_weights = expert_weights * self.factors.expand(len(x), -1).gather(1, expert_ids)
        found = self.experts(self.before(x), expert_ids, expert_weights)
        return self.after_dense(dense) + self.after(found)


class OwnEmbedding:
    """What a layer makes of its own embedding of the tokens: a branch that the hidden states gate."""

    def __init__(self, config: Any, weights: Weights) -> None:
        size = config.per_layer_size
        self.gate = load_linear(weights, {"per_layer_input_gate": size}, config.hidden_size, bias=False)
        self.projection = load_linear(weights, {"per_layer_projection": config.hidden_size}, size, bias=False)
        self.norm = LlamaDecoderLayer.load_norm(config, weights, "post_per_layer_input_norm")
        self.activation = gated(config.activation)

    def __call__(self, x: Tensor, own: Tensor) -> Tensor:
        """``x[T, hidden_size]`` and ``own[T, per_layer_size]`` to the shape of x."""
        branch: Tensor = self.norm(self.projection(self.activation(torch.cat((self.gate(x), own), dim=1))))
        return branch


class SharingDecoderLayer(LlamaDecoderLayer):
    """What layers of Gemma 3n and 4 have in common."""

    def load_attention(
        self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> Gemma4Attention | SharingAttention:
        """With separate keys and values, or with those of an earlier layer."""
        scope = weights.scope("self_attn")
        if config.sources[index] == index:
            return Gemma4Attention(config, scope, rotary, index)
        return SharingAttention(config, scope, rotary)

    def load_norms(self, config: Any, weights: Weights) -> None:
        """Those around the branches."""
        self.before_attention, self.after_attention, self.before_mlp, self.after_mlp = (
            self.load_norm(config, weights, f"{name}_layernorm")
            for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")
        )


class Gemma4DecoderLayer(SharingDecoderLayer):
    """Norms around both branches, a third branch for the layer's own embedding, and a factor at the end."""

    def __init__(self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int) -> None:
        super().__init__(config.of_layer(index), weights, rotary, index)
        self.experts = Gemma4Experts(config, weights) if config.num_experts else None
        self.factor = weights.take("layer_scalar", 1)
        self.own = OwnEmbedding(config, weights) if config.per_layer_size else None

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> GatedMLP:
        """Twice as wide where the configuration says so."""
        wide = config.wide_mlp and config.sources[index] != index
        size = config.intermediate_size * (2 if wide else 1)
        return GatedMLP(weights.scope("mlp"), config.hidden_size, size, activation=config.activation)

    def forward(
        self, x: Tensor, own: Tensor | None, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        """The sum after this layer; ``own[T, per_layer_size]`` is what its own embedding says.

        With ``rows``, ``own`` has only these.
        """
        branch = self.after_attention(self.self_attn(self.before_attention(x), places, metadata, rows))
        if rows is not None:
            x = gather(x, rows)
        self.before_mlp.add(branch, x)
        branch = self.mlp(branch)
        if self.experts is not None:
            branch = self.experts(branch, x)
        x = x + self.after_mlp(branch)
        if own is not None and self.own is not None:
            x = x + self.own(x, own)
        return x.mul_(self.factor)


class Gemma4ForCausalLM(LocalRotary):
    """The decoder; layers of the two kinds have different rotary embeddings."""

    config: Gemma4Config
    unified: ClassVar[bool] = False
    layer_class = Gemma4DecoderLayer
    layers: list[Gemma4DecoderLayer]  # type: ignore[assignment]

    def __init__(self, config: Any, weights: Weights, *, max_positions: int) -> None:
        super().__init__(config, weights, max_positions=max_positions)
        own = self.stage.own(config.num_layers)
        for index, layer in zip(own, self.layers, strict=True):
            place = config.sources[index]
            if place not in own:
                raise RequestError(
                    f"layer {index} uses the keys and values of layer {place}, which pipeline_parallel_size"
                    f" {self.stage.size} puts into another stage; VLLM_PP_LAYER_PARTITION changes that"
                )
            source = self.layers[place - own.start].self_attn
            if isinstance(layer.self_attn, SharingAttention) and isinstance(source, Gemma4Attention):
                layer.self_attn.source = source.attention
        size = config.per_layer_size
        if size and self.stage.is_first:
            model, total = self.decoder_weights(weights), config.num_layers * size
            self.own_table = Embedding(model.scope("embed_tokens_per_layer"), config.per_layer_vocab, total)
            self.own_projection = load_linear(
                model, {"per_layer_model_projection": total}, config.hidden_size, bias=False
            )
            self.own_norm = RMSNorm(model.scope("per_layer_projection_norm"), size, config.rms_norm_eps)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings times sqrt(hidden_size), which is rounded to their dtype as in training."""
        x = super().embed(token_ids)
        return x.mul_(torch.tensor(self.config.hidden_size**0.5, dtype=x.dtype))

    def own_inputs(self, token_ids: Tensor, x: Tensor) -> Tensor:
        """What each layer's embedding and a product of the common one say, ``[T, layers * size]``."""
        config = self.config
        shape = (len(x) * config.num_layers, config.per_layer_size)
        mixed: Tensor = self.own_norm((self.own_projection(x) * config.hidden_size**-0.5).view(shape))
        factor = torch.tensor(config.per_layer_size**0.5, dtype=x.dtype)
        if config.per_layer_vocab < config.vocab_size:  # the others are no text
            token_ids = token_ids.masked_fill(token_ids > config.per_layer_vocab - 1, 0)
        mixed = mixed + self.own_table(token_ids).mul_(factor).view(shape)
        both: Tensor = (mixed * 2.0**-0.5).view(len(x), -1)
        return both

    def advance(
        self,
        states: tuple[Tensor, ...],
        token_ids: Tensor,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """The sum after the layers of this stage, and what the own embeddings of all layers say."""
        size, own = self.config.per_layer_size, self.stage.own(self.config.num_layers)
        if not states:
            x = self.embed(token_ids)
            states = (x, self.own_inputs(token_ids, x)) if size else (x,)
        x, *inputs = states
        for index, layer in zip(own, self.layers, strict=True):
            last = self.stage.is_last and index == own[-1]
            if last and rows is not None:
                inputs = [gather(one, rows) for one in inputs]
            gated_by = inputs[0][:, index * size : (index + 1) * size] if inputs else None
            x = layer.forward(x, gated_by, places, metadata, rows if last else None)
        return (self.norm(x),) if self.stage.is_last else (x, *inputs)

    def logits(self, hidden: Tensor) -> Tensor:
        """Capped scores of every token of the vocabulary."""
        logits, cap = super().logits(hidden), self.config.final_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma4Config:
        """The config.json of a text model."""
        return read_text_config(reader, cls.__name__, unified=cls.unified)

    @staticmethod
    def ignored_tensors(config: Any) -> tuple[str, ...]:
        """Also keys and values of layers that use others'."""
        sharing = [index for index, source in enumerate(config.sources) if source != index]
        return (
            *LocalRotary.ignored_tensors(config),
            *(f"*layers.{index}.self_attn.{name}.*" for index in sharing for name in KEYS_AND_VALUES),
        )


class Gemma4ForConditionalGeneration(TextPart, Gemma4ForCausalLM):
    """The text part of the model that also sees and hears."""

    text_type = "gemma4_text"
    towers = ("model.vision_tower.*", "model.embed_vision.*", "model.audio_tower.*", "model.embed_audio.*")
    tied_by_default = True


class Gemma4UnifiedForCausalLM(Gemma4ForCausalLM):
    """The text model of the one that sees and hears without towers."""

    unified = True


class Gemma4UnifiedForConditionalGeneration(TextPart, Gemma4UnifiedForCausalLM):
    """The text part of the model that sees and hears without towers."""

    text_type = "gemma4_unified_text"
    towers = ("model.vision_embedder.*", "model.embed_vision.*", "model.embed_audio.*")
    tied_by_default = True
