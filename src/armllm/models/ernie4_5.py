"""ERNIE 4.5, dense (ERNIE Team 2025): Llama whose rotary embedding pairs neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class Ernie4_5ForCausalLM(LlamaForCausalLM):  # noqa: N801 - the architecture's name
    """Llama's decoder with ERNIE's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """ERNIE's config.json."""
        bias = reader.boolean("use_bias", default=False)
        common = reader.common(
            "Ernie4_5ForCausalLM",
            default_eos=2,
            default_positions=131072,
            default_kv_heads=2,
            default_head_dim=128,
            default_tied=True,
        )
        rope = read_rope(
            reader,
            head_dim=common["head_dim"],
            positions=common["max_position_embeddings"],
            default_theta=500000.0,
            interleaved=True,
        )
        return LlamaConfig(
            **llama_fields(reader, common, default_eps=1e-5, rope=rope),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=bias,
        )
