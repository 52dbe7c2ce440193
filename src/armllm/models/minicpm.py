"""MiniCPM (Hu et al. 2024): Granite's decoder, whose factors follow from depth and width.

MiniCPM 3 has latent attention. MiniCPM 4 (arXiv:2506.07900) leaves out keys of long texts, which are refused.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch

from armllm.checkpoint.config import LARGEST_INTEGER, ConfigReader
from armllm.models.granite import GraniteConfig, GraniteDecoderLayer, GraniteForCausalLM
from armllm.models.latent import Defaults, LatentAttention, LatentConfig, read_latent
from armllm.models.llama import LlamaForCausalLM, llama_fields
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiniCPM3Config(LatentConfig, GraniteConfig):
    """Latent attention and factors."""


class MiniCPM3DecoderLayer(GraniteDecoderLayer):
    """Granite's layer around latent attention."""

    attention_class = LatentAttention  # type: ignore[assignment]


class MiniCPMForCausalLM(GraniteForCausalLM):
    """Granite's decoder with MiniCPM's configuration."""

    def embed(self, token_ids: Tensor) -> Tensor:
        """Scaled embeddings; the factor is rounded to their dtype, as in transformers."""
        x = self.embed_tokens(token_ids)
        return x.mul_(torch.tensor(self.config.embedding_multiplier, dtype=x.dtype))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of states that are divided before the head, as in transformers."""
        return LlamaForCausalLM.logits(self, hidden / self.config.logits_scaling)

    @staticmethod
    def read_config(reader: ConfigReader) -> GraniteConfig:
        """MiniCPM's config.json."""
        reader.only("num_experts", 0)
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common("MiniCPMForCausalLM", default_eos=2, default_positions=2048, default_tied=True)
        reader.has("mup_denominator")  # of models that draft tokens for this one
        fields = llama_fields(reader, common)
        fields["max_model_len"] = min(fields["max_model_len"], _longest_dense(reader))
        return GraniteConfig(
            **fields,
            **_factors(reader, fields, defaults=(1.0, 1.0, 1)),
            attention_multiplier=common["head_dim"] ** -0.5,
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
        )


class MiniCPM3ForCausalLM(MiniCPMForCausalLM):
    """MiniCPM's decoder with latent attention."""

    layer_class = MiniCPM3DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> MiniCPM3Config:
        """MiniCPM 3's config.json."""
        fields = read_latent(
            reader,
            "MiniCPM3ForCausalLM",
            Defaults(
                eos=2,
                positions=32768,
                intermediate=6400,
                eps=1e-5,
                plain_dim=64,
                rotary_dim=32,
                value_dim=None,
                query_rank=768,
                kv_rank=256,
                tied=True,
            ),
            interleaved=False,
        )
        return MiniCPM3Config(
            **fields,
            **_factors(reader, fields, defaults=(12.0, 1.4, 256)),
            attention_multiplier=fields["attention_scale"],
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )


def _longest_dense(reader: ConfigReader) -> int:
    """Tokens up to which each sees all before it, in spite of sparse_config.

    From dense_len tokens on, the class that its authors publish lets InfLLM v2 choose blocks of keys
    (arXiv:2509.24663).
    """
    if reader.get("sparse_config", None) is None:
        return LARGEST_INTEGER
    dense_len = reader.section("sparse_config").integer("dense_len", 8192)
    if dense_len == 1:
        raise reader.error("sparse_config.dense_len 1 leaves no text that is dense")
    return dense_len - 1


def _factors(
    reader: ConfigReader, fields: dict[str, Any], *, defaults: tuple[float, float, int]
) -> dict[str, Any]:
    """Granite's names of what scale_emb, scale_depth and dim_model_base say; null: no factor."""
    embedding, depth, base = defaults
    root, width = math.sqrt(fields["num_layers"]), fields["hidden_size"]
    return {
        "embedding_multiplier": reader.number("scale_emb", embedding),
        "residual_multiplier": (reader.optional_number("scale_depth", depth) or root) / root,
        "logits_scaling": width / (reader.optional_integer("dim_model_base", base) or width),
    }
