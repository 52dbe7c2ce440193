"""Gemma 4's config.json: layers of two kinds of heads, and whose keys and values each uses."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.checkpoint.config import MAX_WIDTH
from armllm.models.llama import LlamaConfig, llama_fields
from armllm.models.mixtral import MAX_EXPERTS
from armllm.models.rope import ropes_by_kind
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.layers.rotary import RopeParameters

ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")
SIZES = {"hidden_size": 2304, "num_hidden_layers": 30, "vocab_size": 262144}
ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
NO_EXPERTS = {"num_experts": 0, "num_experts_per_tok": 0, "moe_intermediate_size": 0}
PLAIN = {"per_layer_size": 0, "per_layer_vocab": 0} | NO_EXPERTS


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


def read_text_config(reader: ConfigReader, architecture: str, *, unified: bool) -> Gemma4Config:
    """Gemma 4's text configuration, with the defaults of its class in transformers.

    ``unified``: that of the models without towers, which know no embeddings per layer and no experts.
    """
    common = reader.common(
        architecture,
        default_eos=1,
        default_positions=262144 if unified else 131072,
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
    rope, local_rope = ropes_by_kind(reader, common, ROPES, full_head_dim)
    bias = reader.boolean("attention_bias", default=False)
    return Gemma4Config(
        **llama_fields(reader, common, rope=rope, activation=ACTIVATION, default_intermediate=9216)
        | {"max_model_len": common["max_position_embeddings"]},
        **(PLAIN if unified else _own_embedding(reader, common["vocab_size"]) | _expert_fields(reader)),
        windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 1024 if unified else 512)),
        kinds=tuple(kinds),
        local_rope=local_rope,
        full_head_dim=full_head_dim,
        full_kv_heads=full_kv_heads,
        value_is_key=value_is_key,
        sources=read_sources(reader, kinds),
        wide_mlp=reader.boolean("use_double_wide_mlp", default=False),
        final_soft_cap=reader.optional_number("final_logit_softcapping", None),
        qkv_bias=bias,
        output_bias=bias,
        equal_heads=False,
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


def read_sources(reader: ConfigReader, kinds: list[str], default: int = 0) -> tuple[int, ...]:
    """Whose keys and values each layer uses: the last ones those of the last layer of their kind before."""
    sharing = reader.get("num_kv_shared_layers", default)
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
        return NO_EXPERTS
    count, per_token, size = (reader.integer(name) for name in names)
    if count > MAX_EXPERTS or per_token > count:
        raise reader.error(
            f"top_k_experts {per_token} of num_experts {count}: at most {MAX_EXPERTS}, and no more"
        )
    return {"num_experts": count, "num_experts_per_tok": per_token, "moe_intermediate_size": size}
