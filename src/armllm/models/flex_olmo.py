"""FlexOlmo (Shi et al. 2025): OLMo 2 with OLMoE's experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.mixtral import MoEConfig, load_moe
from armllm.models.olmo2 import Olmo2DecoderLayer, Olmo2ForCausalLM
from armllm.models.olmoe import olmoe_fields

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.moe import MoE


class FlexOlmoDecoderLayer(Olmo2DecoderLayer):
    """OLMo 2's layer with experts."""

    @staticmethod
    def load_mlp(config: MoEConfig, weights: Weights, index: int) -> MoE:  # noqa: ARG004
        """Experts."""
        return load_moe(config, weights.scope("mlp"), config.intermediate_size)


class FlexOlmoForCausalLM(Olmo2ForCausalLM):
    """OLMo 2's decoder with experts."""

    layer_class = FlexOlmoDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> MoEConfig:
        """FlexOlmo's config.json."""
        common = reader.common("FlexOlmoForCausalLM", default_eos=100257, default_positions=4096)
        return MoEConfig(
            **olmoe_fields(reader, common, default_eps=1e-6, theta=500000.0, num_experts=7, per_token=5)
        )
