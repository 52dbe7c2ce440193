"""Gemma 3's text model (Gemma Team 2025): QK norms instead of capped scores, two rotary embeddings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.norm import RMSNorm
from armllm.layers.rotary import RopeParameters, RotaryEmbedding
from armllm.models.gemma2 import (
    ACTIVATION,
    INTERMEDIATE_SIZE,
    Gemma2DecoderLayer,
    Gemma2ForCausalLM,
    GemmaAttention,
    GemmaConfig,
    gemma_fields,
    score_fields,
)
from armllm.models.llama import LlamaForCausalLM, llama_fields
from armllm.models.rope import read_one
from armllm.models.text_part import TextPart
from armllm.models.windows import FULL, SLIDING, by_layer, read_pattern

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.linear import Linear


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma3Config(GemmaConfig):
    """local_rope: of the layers that ``kinds`` calls sliding_attention; ``rope`` is the others'."""

    kinds: tuple[str, ...]
    local_rope: RopeParameters


class Gemma3Attention(GemmaAttention):
    """Each head's query and key are normalized before they are rotated."""

    def __init__(
        self, config: Gemma3Config, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.q_norm, self.k_norm = (
            RMSNorm(
                weights.scope(name), config.head_dim, config.rms_norm_eps, weight_offset=config.norm_offset
            )
            for name in ("q_norm", "k_norm")
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, the first two normalized."""
        query, key, value = super().project(x)
        return self.q_norm(query), self.k_norm(key), value


class Gemma3DecoderLayer(Gemma2DecoderLayer):
    """Gemma 2's layer around Gemma 3's attention."""

    attention_class = Gemma3Attention


class LocalRotary(LlamaForCausalLM):
    """A decoder whose layers with a window have another rotary embedding: config.local_rope."""

    def __init__(self, config: Any, weights: Weights, *, max_positions: int) -> None:
        self.local_rotary = RotaryEmbedding(config.local_rope, max_positions=max_positions)
        super().__init__(config, weights, max_positions=max_positions)
        self.rotaries.append(self.local_rotary)

    def rotary_of(self, index: int) -> RotaryEmbedding:
        """The local one for layers with a window."""
        return self.local_rotary if self.config.kinds[index] == SLIDING else self.rotary

    def places(self, positions: Tensor, total_lens: Tensor) -> Tensor:
        """The same rows of both tables, since neither switches with the length."""
        self.local_rotary.rows(positions, total_lens)
        return super().places(positions, total_lens)


class Gemma3ForCausalLM(LocalRotary, Gemma2ForCausalLM):
    """Gemma 2's decoder with Gemma 3's layers."""

    config: Gemma3Config
    layer_class = Gemma3DecoderLayer

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma3Config:
        """The config.json of a text model."""
        return read_text_config(reader, cls.__name__)


class Gemma3ForConditionalGeneration(TextPart, Gemma3ForCausalLM):
    """The text part of the model that also sees."""

    text_type = "gemma3_text"
    towers = ("*vision_tower.*", "*multi_modal_projector.*")
    tied_by_default = True

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head. The order of the prefix changed with transformers 4.52."""
        old = weights.scope("language_model.model", optional=True)
        return weights.scope("model.language_model") if old is weights else old

    def load_head(self, weights: Weights) -> Linear:
        """What makes scores of final states; the old prefix is before it, too."""
        if weights.has("language_model.lm_head.weight"):
            self.head_name = "language_model.lm_head"
        return super().load_head(weights)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma3Config:
        """The text_config of config.json."""
        # this class of transformers would not apply it
        reader.section("text_config").only("final_logit_softcapping", None)
        config: Gemma3Config = super().read_config(reader)
        return config


def read_text_config(reader: ConfigReader, architecture: str) -> Gemma3Config:
    """Gemma 3's text configuration, with the defaults of its class in transformers."""
    # transformers reads it and does not use it, vLLM does: nobody can say what such a checkpoint means
    reader.only("attn_logit_softcapping", None)
    common = gemma_fields(reader, architecture, default_positions=131072, vocab_size=262208)
    num_layers, head_dim = common["num_layers"], common["head_dim"]
    kinds = read_pattern(reader, num_layers, 6)
    rope, local_rope = read_ropes(reader, head_dim, common["max_position_embeddings"])
    fields = llama_fields(
        reader, common, rope=rope, activation=ACTIVATION, default_intermediate=INTERMEDIATE_SIZE
    )
    # Unlike the other families', its max_position_embeddings counts what linear scaling adds.
    fields["max_model_len"] = common["max_position_embeddings"]
    return Gemma3Config(
        **fields,
        **score_fields(reader, attention_cap=None, final_cap=None),
        windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 4096)),
        kinds=tuple(kinds),
        local_rope=local_rope,
    )


def read_ropes(
    reader: ConfigReader,
    head_dim: int,
    positions: int,
    thetas: tuple[tuple[str | None, float], ...] = (("rope_theta", 1e6), ("rope_local_base_freq", 1e4)),
) -> tuple[RopeParameters, RopeParameters]:
    """The global and the local rotary parameters, in either spelling.

    ``thetas``: the key of the older one, if it has one, and the default, of each.
    """
    both = reader.get("rope_parameters", {})
    nested = isinstance(both, dict) and not set(both) - {FULL, SLIDING}
    if not nested or not all(isinstance(value or {}, dict) for value in both.values()):
        raise reader.error(f"rope_parameters must hold the objects {FULL} and {SLIDING}, not {both!r}")
    scaling = reader.get("rope_scaling", {})
    if not isinstance(scaling, dict):
        raise reader.error(f"rope_scaling must be an object, not {scaling!r}")
    kinds_of_layers = ((FULL, {**(both.get(FULL) or {}), **scaling}), (SLIDING, both.get(SLIDING) or {}))
    ropes = []
    for (key, default), (kind, values) in zip(thetas, kinds_of_layers, strict=True):
        theta = default if key is None else reader.number(key, default)
        rope = read_one(
            reader, f"rope_parameters.{kind}", values, theta=theta, head_dim=head_dim, positions=positions
        )
        if rope.switch_length is not None:
            raise reader.error("rope_type 'longrope' is not supported with a rotary set per kind of layers")
        ropes.append(rope)
    return ropes[0], ropes[1]
