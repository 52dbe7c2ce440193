"""Gemma 4's text model (Gemma Team 2026): wide heads where all tokens are seen, experts beside a dense part.

The last layers may use the keys and values of earlier ones, and each layer may see the tokens once more, by
an embedding of its own.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm.checkpoint.config import MAX_WIDTH
from armllm.errors import RequestError
from armllm.layers.activation import gated
from armllm.layers.embedding import Embedding, gather
from armllm.layers.linear import as_float32, load_linear
from armllm.layers.mlp import GatedMLP
from armllm.layers.moe import load_experts
from armllm.layers.norm import RMSNorm
from armllm.layers.ranks import current_ranks
from armllm.models.gemma3 import LocalRotary
from armllm.models.llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, llama_fields
from armllm.models.mixtral import MAX_EXPERTS
from armllm.models.rope import read_one
from armllm.models.text_part import TextPart
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import Attention, AttentionMetadata
    from armllm.layers.rotary import RopeParameters, RotaryEmbedding

ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")
SIZES = {"hidden_size": 2304, "num_hidden_layers": 30, "vocab_size": 262144}
ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
KEYS_AND_VALUES = ("k_proj", "v_proj", "k_norm", "v_norm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma4Config(LlamaConfig):
    """kinds: of the layers; those that see all tokens have ``full_head_dim`` and ``full_kv_heads``.

    value_is_key: they have no product for values. sources: of each layer, whose keys and values it uses.
    wide_mlp: layers that use others' have twice the feed-forward part. per_layer_size: of each layer's own
    embedding, 0: none. num_experts: 0: none.
    """

    kinds: tuple[str, ...]
    local_rope: RopeParameters
    full_head_dim: int
    full_kv_heads: int
    value_is_key: bool
    sources: tuple[int, ...]
    wide_mlp: bool
    per_layer_vocab: int
    per_layer_size: int
    final_soft_cap: float | None
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int

    def of_layer(self, index: int) -> Gemma4Config:
        """With the heads of this layer."""
        if self.kinds[index] != FULL:
            return self
        return dataclasses.replace(self, head_dim=self.full_head_dim, num_kv_heads=self.full_kv_heads)


class PlainNorm(RMSNorm):
    """Without a weight."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        self.weight = torch.ones(size, dtype=dtype)
        self.eps, self.weight_offset = eps, 0.0


class Gemma4Attention(LlamaAttention):
    """Queries, keys and values are normalised; values may be the keys before that."""

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
        router = weights.scope("router").in_dtype(torch.float32)
        self.norm = PlainNorm(hidden_size, config.rms_norm_eps, torch.float32)
        self.norm.weight = router.take("scale", hidden_size) * hidden_size**-0.5
        self.router = router.take("proj.weight", count, hidden_size)
        self.factors = router.take("per_expert_scale", count)
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
        scores = torch.nn.functional.linear(self.norm(as_float32(x)), self.router).softmax(dim=-1)
        expert_weights, expert_ids = scores.topk(self.per_token)
        expert_weights = expert_weights / expert_weights.sum(dim=-1, keepdim=True)
        expert_weights = expert_weights * self.factors.expand(len(x), -1).gather(1, expert_ids)
        found = self.experts(self.before(x), expert_ids, expert_weights)
        return self.after_dense(dense) + self.after(found)


class Gemma4DecoderLayer(LlamaDecoderLayer):
    """Norms around both branches, a third branch for the layer's own embedding, and a factor at the end."""

    def __init__(self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int) -> None:
        super().__init__(config.of_layer(index), weights, rotary, index)
        self.experts = Gemma4Experts(config, weights) if config.num_experts else None
        self.factor = weights.take("layer_scalar", 1)
        self.size = config.per_layer_size
        if self.size:
            self.gate = load_linear(
                weights, {"per_layer_input_gate": self.size}, config.hidden_size, bias=False
            )
            self.projection = load_linear(
                weights, {"per_layer_projection": config.hidden_size}, self.size, bias=False
            )
            self.after_own = self.load_norm(config, weights, "post_per_layer_input_norm")
            self.activation = gated(config.activation)

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
        if own is not None:
            x = x + self.after_own(self.projection(self.activation(torch.cat((self.gate(x), own), dim=1))))
        return x.mul_(self.factor)


class Gemma4ForCausalLM(LocalRotary):
    """The decoder; layers of the two kinds have different rotary embeddings."""

    config: Gemma4Config
    layer_class = Gemma4DecoderLayer
    layers: list[Gemma4DecoderLayer]  # type: ignore[assignment]

    def __init__(self, config: Any, weights: Weights, *, max_positions: int) -> None:
        if current_ranks() is not None:
            raise RequestError("tensor_parallel_size must be 1 for Gemma 4: its layers have different heads")
        super().__init__(config, weights, max_positions=max_positions)
        for index, layer in enumerate(self.layers):
            source = self.layers[config.sources[index]].self_attn
            if isinstance(layer.self_attn, SharingAttention) and isinstance(source, Gemma4Attention):
                layer.self_attn.source = source.attention
        size = config.per_layer_size
        if size:
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
        mixed = mixed + self.own_table(token_ids).mul_(factor).view(shape)
        both: Tensor = (mixed * 2.0**-0.5).view(len(x), -1)
        return both

    def __call__(
        self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        """Final hidden states of ``rows``, or of all tokens."""
        x, size, last = self.embed(token_ids), self.config.per_layer_size, len(self.layers) - 1
        inputs = self.own_inputs(token_ids, x) if size else None
        for index, layer in enumerate(self.layers):
            if inputs is not None and index == last and rows is not None:
                inputs = gather(inputs, rows)
            own = None if inputs is None else inputs[:, index * size : (index + 1) * size]
            x = layer.forward(x, own, places, metadata, rows if index == last else None)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Capped scores of every token of the vocabulary."""
        logits, cap = super().logits(hidden), self.config.final_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma4Config:
        """The config.json of a text model."""
        return read_text_config(reader, cls.__name__)

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
    always_tied = True


def read_text_config(reader: ConfigReader, architecture: str) -> Gemma4Config:
    """Gemma 4's text configuration, with the defaults of its class in transformers."""
    common = reader.common(
        architecture,
        default_eos=1,
        default_positions=131072,
        default_heads=8,
        default_kv_heads=4,
        default_head_dim=256,
        default_tied=True,
        default_sizes=SIZES,
    )
    reader.only("use_bidirectional_attention", None, "vision")  # which is about tokens of pictures
    reader.has("hidden_act")
    num_layers = common["num_layers"]
    kinds = read_layer_types(
        reader, num_layers, [SLIDING if (index + 1) % 6 else FULL for index in range(num_layers)]
    )
    kinds = [*kinds[:-1], FULL]  # transformers makes it so
    value_is_key = reader.boolean("attention_k_eq_v", default=False)
    full_head_dim, full_kv_heads = _full_heads(reader, kinds, common, value_is_key=value_is_key)
    rope, local_rope = _ropes(reader, full_head_dim, common)
    bias = reader.boolean("attention_bias", default=False)
    return Gemma4Config(
        **llama_fields(reader, common, rope=rope, activation=ACTIVATION, default_intermediate=9216)
        | {"max_model_len": common["max_position_embeddings"]},
        **_own_embedding(reader, common["vocab_size"]),
        **_expert_fields(reader),
        windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 512)),
        kinds=tuple(kinds),
        local_rope=local_rope,
        full_head_dim=full_head_dim,
        full_kv_heads=full_kv_heads,
        value_is_key=value_is_key,
        sources=_sources(reader, kinds),
        wide_mlp=reader.boolean("use_double_wide_mlp", default=False),
        final_soft_cap=reader.optional_number("final_logit_softcapping", None),
        qkv_bias=bias,
        output_bias=bias,
    )


def _full_heads(
    reader: ConfigReader, kinds: list[str], common: dict[str, Any], *, value_is_key: bool
) -> tuple[int, int]:
    """Size and number of the heads of keys and values in layers that see all tokens.

    transformers 5 writes them for each layer.
    """
    values = {
        "head_dim": reader.integer("global_head_dim", 512),
        "num_key_value_heads": reader.integer("num_global_key_value_heads", common["num_kv_heads"]),
    }
    if not value_is_key:
        values["num_key_value_heads"] = common["num_kv_heads"]
    if reader.get("per_layer_config", None) is not None:
        layers = reader.section("per_layer_config")
        full = {str(index) for index, kind in enumerate(kinds) if kind == FULL}
        first: object = next(iter(layers.values.values()), {})
        if set(layers.values) not in (set(), full) or any(one != first for one in layers.values.values()):
            raise reader.error(f"per_layer_config must have the layers of {FULL}, which must be alike")
        layer = layers.section(min(full)) if layers.values else layers
        unknown = sorted(layer.values.keys() - values.keys())
        if unknown:
            raise layer.error(f"{unknown[0]} is not supported")
        values["head_dim"] = layer.integer("head_dim", common["head_dim"])
        values["num_key_value_heads"] = layer.integer("num_key_value_heads", common["num_kv_heads"])
    if values["head_dim"] > MAX_WIDTH or common["num_heads"] % values["num_key_value_heads"]:
        raise reader.error(
            f"layers of {FULL} can't have {values['num_key_value_heads']} heads of keys for"
            f" {common['num_heads']} of queries, or {values['head_dim']} numbers in a head"
        )
    return values["head_dim"], values["num_key_value_heads"]


def _ropes(
    reader: ConfigReader, full_head_dim: int, common: dict[str, Any]
) -> tuple[RopeParameters, RopeParameters]:
    both = reader.get("rope_parameters", ROPES)
    if (
        not isinstance(both, dict)
        or set(both) - set(ROPES)
        or not all(isinstance(v, dict) for v in both.values())
    ):
        raise reader.error(f"rope_parameters must hold the objects {FULL} and {SLIDING}, not {both!r}")
    found = []
    for kind, head_dim in ((FULL, full_head_dim), (SLIDING, common["head_dim"])):
        rope = read_one(
            reader,
            f"rope_parameters.{kind}",
            both.get(kind, ROPES[kind]),
            theta=1e4,
            head_dim=head_dim,
            positions=common["max_position_embeddings"],
        )
        if rope.switch_length is not None:
            raise reader.error("rope_type 'longrope' is not supported with a rotary set per kind of layers")
        found.append(rope)
    return found[0], found[1]


def _sources(reader: ConfigReader, kinds: list[str]) -> tuple[int, ...]:
    """Whose keys and values each layer uses: the last ones those of the last layer of their kind before."""
    sharing = reader.get("num_kv_shared_layers", 0)
    if not isinstance(sharing, int) or isinstance(sharing, bool) or not 0 <= sharing < len(kinds):
        raise reader.error(
            f"num_kv_shared_layers must be a number of layers below {len(kinds)}, not {sharing!r}"
        )
    first = len(kinds) - sharing
    latest = {kind: index for index, kind in enumerate(kinds[:first])}
    if set(kinds) - set(latest):
        raise reader.error(f"num_kv_shared_layers {sharing} leaves a kind of layers without keys and values")
    return tuple(index if index < first else latest[kind] for index, kind in enumerate(kinds))


def _own_embedding(reader: ConfigReader, vocab_size: int) -> dict[str, Any]:
    size = reader.get("hidden_size_per_layer_input", 256)
    size = (
        0 if size == 0 and not isinstance(size, bool) else reader.integer("hidden_size_per_layer_input", 256)
    )
    vocab = reader.integer("vocab_size_per_layer_input", 262144)
    if size and vocab < vocab_size:
        raise reader.error(f"vocab_size_per_layer_input {vocab} is below vocab_size {vocab_size}")
    return {"per_layer_size": size, "per_layer_vocab": vocab}


def _expert_fields(reader: ConfigReader) -> dict[str, Any]:
    names = ("num_experts", "top_k_experts", "moe_intermediate_size")
    if not reader.boolean("enable_moe_block", default=False):
        for name in names:
            reader.get(name, None)
        return {"num_experts": 0, "num_experts_per_tok": 0, "moe_intermediate_size": 0}
    count, per_token, size = (reader.integer(name) for name in names)
    if count > MAX_EXPERTS or per_token > count:
        raise reader.error(
            f"top_k_experts {per_token} of num_experts {count}: at most {MAX_EXPERTS}, and no more"
        )
    return {"num_experts": count, "num_experts_per_tok": per_token, "moe_intermediate_size": size}
