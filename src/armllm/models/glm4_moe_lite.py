"""GLM-4.7-Flash (GLM-4.5 Team 2025): GLM-4.5's experts behind DeepSeek's latent attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.deepseek import DeepseekV3ForCausalLM, read_deepseek
from armllm.models.glm4_moe import read_routing, read_sparse, sparse_fields
from armllm.models.latent import Defaults

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.models.deepseek import DeepSeekConfig


class Glm4MoeLiteForCausalLM(DeepseekV3ForCausalLM):
    """DeepSeek's decoder with GLM's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> DeepSeekConfig:
        """GLM-4.7-Flash's config.json: mlp_layer_types says which layers have experts."""
        reader.only("topk_method", "noaux_tc")
        reader.only("scoring_func", "sigmoid")
        reader.only("first_k_dense_replace", 1)  # which transformers does not read
        routing = read_routing(reader, num_experts=64, per_token=4, groups=(1, 1), factor=1.8, sigmoid=True)
        fields = sparse_fields(reader, routing, size=1536, shared=1, first=1)
        return read_deepseek(
            reader,
            "Glm4MoeLiteForCausalLM",
            fields | {"sparse": read_sparse(reader, 1)},
            Defaults(
                eos=1,
                positions=202752,
                intermediate=10240,
                eps=1e-5,
                plain_dim=192,
                value_dim=256,
                query_rank=768,
            ),
            interleaved=reader.boolean("rope_interleave", default=True),
        )
