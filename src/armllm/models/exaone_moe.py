"""K-EXAONE (LG AI Research 2026): EXAONE 4 with norms before the branches and GLM-4.5's experts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.models.dots1 import Dots1DecoderLayer
from armllm.models.exaone4 import Exaone4Config, Exaone4ForCausalLM, exaone_fields
from armllm.models.glm4_moe import GroupedMoEConfig, read_routing, read_sparse, sparse_fields

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader, ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExaoneMoeConfig(Exaone4Config, GroupedMoEConfig):
    """Layers without positions, and experts."""


class ExaoneMoeForCausalLM(Exaone4ForCausalLM):
    """EXAONE 4's decoder with the layers of dots.llm1."""

    layer_class = Dots1DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> ExaoneMoeConfig:
        """K-EXAONE's config.json."""
        reader.only("topk_method", "noaux_tc")
        reader.only("scoring_func", "sigmoid")
        reader = reader.renamed({"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"})
        common = reader.common(
            "ExaoneMoeForCausalLM", default_eos=53, default_positions=2048, default_kv_heads=32
        )
        routing = read_routing(reader, num_experts=64, per_token=8, groups=(1, 1), factor=2.5, sigmoid=True)
        sparse = read_sparse(reader, reader.count("first_k_dense_replace", 1))
        return ExaoneMoeConfig(
            **exaone_fields(reader, common),
            **sparse_fields(reader, routing, size=1024, shared=1, first=1) | {"sparse": sparse},
        )

    @classmethod
    def ignored_tensors(cls, config: ModelConfig) -> tuple[str, ...]:
        """Also what predicts further tokens."""
        return (*super().ignored_tensors(config), "mtp.*")
