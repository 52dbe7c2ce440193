"""Gemma 3n's config.json: streams, and what differs between layers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.activation import GATED
from armllm.models.gemma3 import read_ropes
from armllm.models.gemma4_config import Gemma4Config, read_sources
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader

MOST_STREAMS = 1000
FOR_TRAINING = ("altup_coef_clip", "altup_lr_multiplier")
SIZES = {"hidden_size": 2048, "num_hidden_layers": 35, "vocab_size": 262400}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma3nConfig(Gemma4Config):
    """streams: of hidden states, of which layers compute ``active_stream``.

    scale_corrected: what a layer's own embedding sees is scaled. mlp_sizes, sparsities: per layer, the size
    of the feed-forward part and the share of its gates that stay closed.
    """

    streams: int
    active_stream: int
    scale_corrected: bool
    laurel_rank: int
    mlp_sizes: tuple[int, ...]
    sparsities: tuple[float, ...]


def read_text_config(reader: ConfigReader, architecture: str) -> Gemma3nConfig:
    """Gemma 3n's text configuration, with the defaults of its class in transformers."""
    common = reader.common(
        architecture,
        default_eos=1,
        default_positions=32768,
        default_heads=8,
        default_kv_heads=2,
        default_head_dim=256,
        default_tied=True,
        default_sizes=SIZES,
    )
    reader.only("use_bidirectional_attention", False)
    reader.has("hidden_act")
    reader.only("query_pre_attn_scalar", common["head_dim"])  # in checkpoints; scores are not scaled
    for name in FOR_TRAINING:
        reader.has(name)
    layers = common["num_layers"]
    default = [SLIDING if (index + 1) % 5 else FULL for index in range(layers)]
    kinds = read_layer_types(reader, layers, default)
    rope, local_rope = read_ropes(reader, common["head_dim"], common["max_position_embeddings"])
    bias = reader.boolean("attention_bias", default=False)
    sizes = _sizes(reader, layers)
    return Gemma3nConfig(
        **common,
        **_streams(reader),
        rope=rope,
        local_rope=local_rope,
        intermediate_size=sizes[0],
        mlp_sizes=sizes,
        sparsities=_sparsities(reader, layers),
        activation=reader.choice("hidden_activation", "gelu_pytorch_tanh", GATED),
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 512)),
        kinds=tuple(kinds),
        full_head_dim=common["head_dim"],
        full_kv_heads=common["num_kv_heads"],
        value_is_key=False,
        sources=read_sources(reader, kinds, 15),
        wide_mlp=False,
        per_layer_vocab=reader.integer("vocab_size_per_layer_input", 262144),
        per_layer_size=reader.integer("hidden_size_per_layer_input", 256),
        final_soft_cap=reader.optional_number("final_logit_softcapping", 30.0),
        num_experts=0,
        num_experts_per_tok=0,
        moe_intermediate_size=0,
        laurel_rank=reader.integer("laurel_rank", 64),
        qkv_bias=bias,
        output_bias=bias,
    )


def _streams(reader: ConfigReader) -> dict[str, Any]:
    streams, active = reader.integer("altup_num_inputs", 4), reader.count("altup_active_idx", 0)
    if not 2 <= streams <= MOST_STREAMS or active >= streams:
        raise reader.error(
            f"altup_active_idx {active} of altup_num_inputs {streams}: there must be 2 streams or more,"
            f" at most {MOST_STREAMS}, and the active one among them"
        )
    return {
        "streams": streams,
        "active_stream": active,
        "scale_corrected": reader.boolean("altup_correct_scale", default=True),
    }


def _sizes(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """intermediate_size, one number or one per layer."""
    value = reader.get("intermediate_size", 16384)
    if not isinstance(value, list):
        return (reader.integer("intermediate_size", 16384),) * layers
    numbers = reader.numbers("intermediate_size", layers)
    if any(not isinstance(size, int) for size in value):
        raise reader.error("intermediate_size must be an integer, or a list of them")
    return tuple(map(int, numbers))


def _sparsities(reader: ConfigReader, layers: int) -> tuple[float, ...]:
    """activation_sparsity_pattern; without one, the first ten layers of a deep model are sparse."""
    sparse = 10 if layers > 10 else 0
    values = reader.get("activation_sparsity_pattern", [0.95] * sparse + [0.0] * (layers - sparse))
    if (
        not isinstance(values, list)
        or len(values) != layers
        or any(isinstance(x, bool) or not isinstance(x, (int, float)) or not 0 <= x < 1 for x in values)
    ):
        raise reader.error(
            f"activation_sparsity_pattern must be a list of {layers} numbers from 0 to below 1"
        )
    return tuple(map(float, values))
