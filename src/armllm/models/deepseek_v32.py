"""DeepSeek V3.2 (DeepSeek-AI 2025) and GLM-5: DeepSeek V3 whose tokens see the index_topk best before them.

An indexer ranks the tokens. Up to index_topk tokens it chooses all of them, whatever its weights are. That
is how long a text may be here, and the indexer is not loaded.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.models.deepseek import DeepseekV3ForCausalLM, read_deepseek
from armllm.models.glm4_moe import read_routing, read_sparse, sparse_fields
from armllm.models.latent import Defaults

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader, ModelConfig
    from armllm.models.deepseek import DeepSeekConfig


class DeepseekV32ForCausalLM(DeepseekV3ForCausalLM):
    """DeepSeek V3's decoder, for texts that the indexer leaves whole."""

    @staticmethod
    def read_config(reader: ConfigReader) -> DeepSeekConfig:
        """The config.json of DeepSeek V3.2."""
        defaults = Defaults(eos=1, positions=163840, intermediate=18432)
        return read_indexed(reader, "DeepseekV32ForCausalLM", defaults, groups=(8, 4))

    @staticmethod
    def ignored_tensors(config: ModelConfig) -> tuple[str, ...]:
        """Also the indexer."""
        return (*DeepseekV3ForCausalLM.ignored_tensors(config), "*.self_attn.indexer.*")


class GlmMoeDsaForCausalLM(DeepseekV32ForCausalLM):
    """The same with GLM's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> DeepSeekConfig:
        """GLM-5's config.json; how its indexer rotates and which layers share one has no effect here."""
        reader.has("indexer_rope_interleave")
        defaults = Defaults(
            eos=1,
            positions=202752,
            intermediate=12288,
            eps=1e-5,
            plain_dim=192,
            value_dim=256,
            query_rank=2048,
        )
        return read_indexed(reader, "GlmMoeDsaForCausalLM", defaults, groups=(1, 1))


def read_indexed(
    reader: ConfigReader, architecture: str, defaults: Defaults, *, groups: tuple[int, int]
) -> DeepSeekConfig:
    """What both have in config.json; ``groups``: default of n_group and topk_group."""
    reader.only("topk_method", "noaux_tc")
    reader.only("scoring_func", "sigmoid")
    reader.only("rope_interleave", True)
    reader.only("layer_types", ["indexed_attention"] * reader.num_layers())
    if reader.optional_integer("q_lora_rank", defaults.query_rank) is None:
        raise reader.error("q_lora_rank null is not supported: an indexer reads the latent query")
    routing = read_routing(reader, num_experts=256, per_token=8, groups=groups, factor=2.5, sigmoid=True)
    sparse = sparse_fields(reader, routing, size=2048, shared=1, first=3)
    sparse["sparse"] = read_sparse(reader, reader.count("first_k_dense_replace", 3))
    plain = reader.changed(layer_types=None)
    config = read_deepseek(plain, architecture, sparse, defaults, interleaved=True)
    longest = min(config.max_model_len, reader.integer("index_topk", 2048))
    return dataclasses.replace(config, max_model_len=longest)
