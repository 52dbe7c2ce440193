"""Ministral 3 (Mistral AI 2025): Mistral whose queries grow with their position, after they are rotated."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.checkpoint.config import ConfigReader
from armllm.layers.rotary import RotaryEmbedding, Temperature
from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.mistral import MistralForCausalLM
from armllm.models.rope import read_rope
from armllm.models.text_part import TextPart
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.weights import Weights
    from armllm.layers.linear import Linear

GROWTH = "llama_4_scaling_beta"
DEFAULT_ROPE = {"type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384}
DEFAULT_ROPE |= {"mscale_all_dim": 1.0, "mscale": 1.0, GROWTH: 0.1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ministral3Config(LlamaConfig):
    """growth: of queries, after each original_max_position_embeddings tokens; None: they do not grow."""

    growth: float | None = None


class GrowingRotary(RotaryEmbedding):
    """A rotation after which queries grow."""

    def __init__(self, config: Ministral3Config, growth: float, *, max_positions: int) -> None:
        super().__init__(config.rope, max_positions=max_positions)
        interval = config.rope.original_max_position_embeddings
        self.temperature = Temperature(config.rope, growth, interval, first=0, max_positions=max_positions)

    def rows(self, positions: Tensor, total_lens: Tensor) -> Tensor:
        """The same rows of both tables."""
        self.temperature.rows(positions, total_lens)
        return super().rows(positions, total_lens)

    def __call__(self, rows: Tensor, query: Tensor, key: Tensor) -> None:
        """In place on ``query[T, num_heads, head_dim]`` and ``key[T, num_kv_heads, head_dim]``."""
        super().__call__(rows, query, key)
        self.temperature(rows, query, key)


class Ministral3ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with this rotation."""

    def __init__(self, config: Ministral3Config, weights: Weights, *, max_positions: int) -> None:
        super().__init__(config, weights, max_positions=max_positions)
        if isinstance(self.rotary, GrowingRotary):
            self.rotaries.append(self.rotary.temperature)

    @staticmethod
    def load_rotary(config: Ministral3Config, max_positions: int) -> RotaryEmbedding:
        """What turns queries and keys, and lets queries grow."""
        if config.growth is None:
            return LlamaForCausalLM.load_rotary(config, max_positions)
        return GrowingRotary(config, config.growth, max_positions=max_positions)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Ministral3Config:
        """The config.json of Ministral 3, or of Mistral in the files that have a vision tower."""
        if reader.get("model_type", None) == "mistral":
            return Ministral3Config(**vars(MistralForCausalLM.read_config(reader)))
        common = reader.common(
            "Ministral3ForCausalLM",
            default_eos=2,
            default_positions=262144,
            default_kv_heads=8,
            default_head_dim=128,
        )
        rope = read_rope(
            reader,
            common,
            missing=DEFAULT_ROPE,
            ignored=(GROWTH, "max_position_embeddings"),
        )
        return Ministral3Config(
            **llama_fields(reader, common, default_eps=1e-5, rope=rope),
            windows=same_everywhere(
                reader, common["num_layers"], reader.optional_integer("sliding_window", None)
            ),
            growth=_growth(reader),
        )


def _growth(reader: ConfigReader) -> float:
    values: Any = reader.get("rope_scaling", None) or reader.get("rope_parameters", DEFAULT_ROPE)
    return ConfigReader(values, reader.path, f"{reader.prefix}rope_parameters.").number(GROWTH)


class Mistral3ForConditionalGeneration(TextPart, Ministral3ForCausalLM):
    """The text part, Ministral 3 or Mistral."""

    text_type = ("ministral3", "mistral")
    towers = ("vision_tower.*", "multi_modal_projector.*")

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head."""
        return weights.scope("language_model.model")

    def load_head(self, weights: Weights) -> Linear:
        """What makes scores of final states."""
        return super().load_head(weights.scope("language_model"))
