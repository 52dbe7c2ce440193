"""Granite 4 (Granite Team 2025): Granite with Mamba 2 in most layers, dense or with experts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.models.granite import GraniteForCausalLM, granite_fields
from armllm.models.granite_moe import GraniteMoeConfig, GraniteMoeSharedDecoderLayer
from armllm.models.mamba import Mamba, MambaConfig, mamba_fields, only_free_steps
from armllm.models.mixtral import routing_fields
from armllm.models.windows import FULL, LINEAR

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.rotary import RotaryEmbedding
    from armllm.models.llama import Mixer

# as IBM's files call the kinds, and as transformers 5 does
KINDS = {"mamba": LINEAR, "attention": FULL, LINEAR: LINEAR, FULL: FULL}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraniteHybridConfig(MambaConfig, GraniteMoeConfig):
    """kinds: of each layer. turns: attention knows positions. num_experts: 0: dense."""

    kinds: tuple[str, ...]
    turns: bool


class GraniteHybridDecoderLayer(GraniteMoeSharedDecoderLayer):
    """Granite's layer around Mamba or attention."""

    def load_attention(
        self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> Mixer:
        """What the configuration says of the layer."""
        if config.kinds[index] == LINEAR:
            return Mamba(config, weights.scope("mamba"))
        return super().load_attention(config, weights, rotary if config.turns else None, index)


class GraniteMoeHybridForCausalLM(GraniteForCausalLM):
    """Llama's decoder with these layers."""

    layer_class = GraniteHybridDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> GraniteHybridConfig:
        """Granite 4's config.json."""
        kinds = _kinds(reader)
        fields = granite_fields(reader, "GraniteMoeHybridForCausalLM", kinds_known=True)
        reader.only("hidden_act", "silu", "swish")
        only_free_steps(reader)
        reader.only("normalization_function", "rmsnorm")
        experts: dict[str, Any] = {"num_experts": 0, "num_experts_per_tok": 0}
        if reader.get("num_local_experts", 8) != 0:
            number = reader.integer("num_local_experts", 8)
            experts = routing_fields(reader, num_experts=number, per_token=2)
        return GraniteHybridConfig(
            **fields,
            **experts,
            **mamba_fields(reader, reader.integer("mamba_expand", 2) * fields["hidden_size"]),
            normalize=True,
            kinds=kinds,
            is_recurrent=LINEAR in kinds,
            turns=reader.choice("position_embedding_type", "nope", ("nope", "rope")) == "rope",
            shared_size=reader.integer("shared_intermediate_size", 1024),
        )


def _kinds(reader: ConfigReader) -> tuple[str, ...]:
    count = reader.integer("num_hidden_layers")
    listed = reader.get("layer_types", reader.get("layers_block_type", None)) or [LINEAR] * min(count, 10_000)
    if not isinstance(listed, list) or len(listed) != count:
        raise reader.error(f"layer_types must be a list of {count} kinds, one per layer")
    for kind in listed:
        if not isinstance(kind, str) or kind not in KINDS:
            raise reader.error(f"layer_types {kind!r} is not supported, only {', '.join(KINDS)}")
    return tuple(KINDS[kind] for kind in listed)
