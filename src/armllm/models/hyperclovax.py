"""HyperCLOVA X SEED (NAVER 2025): Granite's factors, and maybe norms after the branches."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm.layers.embedding import gather
from armllm.models.granite import GraniteConfig, GraniteDecoderLayer, GraniteForCausalLM, granite_fields
from armllm.models.llama import LlamaForCausalLM, add_and_normalize

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata


@dataclasses.dataclass(frozen=True, kw_only=True)
class HyperCLOVAXConfig(GraniteConfig):
    """norms_after: whether branches are normalized at their ends. Logits are multiplied by logits_scaling."""

    norms_after: bool


class HyperCLOVAXDecoderLayer(GraniteDecoderLayer):
    """x + r * norm(attention(norm(x))), then x + r * norm(mlp(norm(x))), or without the outer norms."""

    def load_norms(self, config: HyperCLOVAXConfig, weights: Weights) -> None:
        """Those before the branches, and those after them if there are any."""
        super().load_norms(config, weights)
        self.norms_after: list[Any] = [
            self.load_norm(config, weights, name) if config.norms_after else torch.nn.Identity()
            for name in ("post_norm1", "post_norm2")
        ]

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The branch and the sum so far, as in Llama."""
        after_attention, after_mlp = self.norms_after
        x, residual = add_and_normalize(self.input_layernorm, x, residual)
        x = after_attention(self.self_attn(x, places, metadata, rows)).mul_(self.residual_multiplier)
        if rows is not None:
            residual = gather(residual, rows)
        self.post_attention_layernorm.add(x, residual)
        return after_mlp(self.mlp(x)).mul_(self.residual_multiplier), residual


class HyperCLOVAXForCausalLM(GraniteForCausalLM):
    """Granite's decoder with these layers."""

    layer_class = HyperCLOVAXDecoderLayer

    def logits(self, hidden: Tensor) -> Tensor:
        """Scaled scores of every token of the vocabulary."""
        return LlamaForCausalLM.logits(self, hidden).mul_(self.config.logits_scaling)

    @staticmethod
    def read_config(reader: ConfigReader) -> HyperCLOVAXConfig:
        """The config.json of HyperCLOVA X; without attention_multiplier the scale is the usual one."""
        common = reader.common("HyperCLOVAXForCausalLM", default_eos=2, default_positions=2048)
        scale = reader.optional_number("attention_multiplier", None) or common["head_dim"] ** -0.5
        return HyperCLOVAXConfig(
            **granite_fields(reader.changed(attention_multiplier=scale), common),
            mlp_bias=reader.boolean("mlp_bias", default=False),
            norms_after=reader.boolean("use_post_norm", default=True),
        )
