"""ERNIE 4.5, dense (ERNIE Team 2025): Llama whose rotary embedding pairs neighbors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        return LlamaConfig(
            **ernie_fields(reader, "Ernie4_5ForCausalLM", default_kv_heads=2, default_head_dim=128)
        )


def ernie_fields(
    reader: ConfigReader, architecture: str, *, default_kv_heads: int, default_head_dim: int | None
) -> dict[str, Any]:
    """The fields of `LlamaConfig`."""
    bias = reader.boolean("use_bias", default=False)
    common = reader.common(
        architecture,
        default_eos=2,
        default_positions=131072,
        default_kv_heads=default_kv_heads,
        default_head_dim=default_head_dim,
        default_tied=True,
    )
    rope = read_rope(
        reader,
        common,
        default_theta=500000.0,
        interleaved=True,
    )
    return {
        **llama_fields(reader, common, default_eps=1e-5, rope=rope, default_intermediate=12288),
        "windows": same_everywhere(reader, common["num_layers"], None),
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
    }
