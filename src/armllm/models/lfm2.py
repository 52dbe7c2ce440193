"""LFM2 (Liquid AI 2025): short gated convolutions, and attention in some layers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.causal_conv import CausalConv
from armllm.layers.embedding import gather
from armllm.layers.linear import load_linear
from armllm.layers.recurrent import RecurrentLayer, StateShape, read_width
from armllm.models.internlm2 import InternLM2DecoderLayer
from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.qwen3 import Qwen3Attention
from armllm.models.windows import FULL, read_layer_types

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RopeParameters, RotaryEmbedding
    from armllm.models.llama import Mixer

CONVOLUTION = "conv"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lfm2Config(LlamaConfig):
    """kinds: of each layer. conv_width: tokens that a convolution sees."""

    kinds: tuple[str, ...]
    conv_width: int
    conv_bias: bool


class ShortConvolution(RecurrentLayer):
    """c * conv(b * x), where b, c and x are products of the hidden states."""

    def __init__(self, config: Lfm2Config, weights: Weights) -> None:
        size, bias = config.hidden_size, config.conv_bias
        self.shape = (config.conv_width - 1, size)
        self.in_proj = load_linear(weights, {"in_proj": 3 * size}, size, bias=bias)
        self.conv = CausalConv(weights.scope("conv"), size, config.conv_width, bias=bias, activated=False)
        self.out_proj = load_linear(weights, {"out_proj": size}, size, bias=bias)

    def state_shapes(self, dtype: torch.dtype) -> list[StateShape]:
        """What the convolution remembers."""
        return [StateShape(self.shape, dtype)]

    def __call__(self, x: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        """``x[T, hidden_size]`` to the same of ``rows``, or of all tokens."""
        del places
        (before,) = self.sequences(metadata)
        entering, leaving, value = self.in_proj(x).chunk(3, dim=1)
        mixed = self.conv(entering * value, before).mul_(leaving)
        return self.out_proj(mixed if rows is None else gather(mixed, rows))


class Lfm2Attention(Qwen3Attention):
    """Qwen3's attention."""

    output_name = "out_proj"
    head_norm_names = ("q_layernorm", "k_layernorm")


class Lfm2DecoderLayer(InternLM2DecoderLayer):
    """InternLM2's layer around a convolution or attention."""

    attention_class = Lfm2Attention  # type: ignore[assignment]
    attention_name = "self_attn"
    norm_names = ("operator_norm", "ffn_norm")

    def load_attention(
        self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> Mixer:
        """What the configuration says of the layer."""
        if config.kinds[index] == CONVOLUTION:
            return ShortConvolution(config, weights.scope("conv"))
        return super().load_attention(config, weights, rotary, index)


class Lfm2ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with LFM2's layers."""

    layer_class = Lfm2DecoderLayer
    names = ("embed_tokens", "layers", "embedding_norm")

    @staticmethod
    def read_config(reader: ConfigReader) -> Lfm2Config:
        """LFM2's config.json."""
        attending = reader.get("full_attn_idxs", [*range(reader.num_layers())])
        if not isinstance(attending, list) or not all(type(index) is int for index in attending):
            raise reader.error("full_attn_idxs must be a list of numbers of layers")
        kinds = [FULL if index in attending else CONVOLUTION for index in range(reader.num_layers())]
        common, kinds = lfm2_layers(reader, "Lfm2ForCausalLM", kinds)
        fields = lfm2_fields(reader, common, kinds, default_intermediate=12288)
        fields["intermediate_size"] = _intermediate_size(reader)
        return Lfm2Config(**fields, windows=(None,) * len(kinds))


def lfm2_layers(
    reader: ConfigReader, architecture: str, default: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """What all families have, and the kinds of layers; ``default``: where layer_types does not say them."""
    tied = reader.boolean("tie_embedding", default=reader.boolean("tie_word_embeddings", default=True))
    common = reader.changed(tie_word_embeddings=tied).common(
        architecture, default_eos=2, default_positions=128000, default_kv_heads=8
    )
    return common, read_layer_types(reader, common["num_layers"], default, (FULL, CONVOLUTION))


def lfm2_fields(
    reader: ConfigReader,
    common: dict[str, Any],
    kinds: list[str],
    *,
    default_intermediate: int,
    default_width: int = 3,
    rope: RopeParameters | None = None,
) -> dict[str, Any]:
    """The fields of `Lfm2Config` but ``windows``. ``rope``: where the family has read it already."""
    reader.only("hidden_act", "silu", "swish")
    fields = llama_fields(
        reader,
        common,
        default_eps=1e-5,
        eps_name="norm_eps",
        default_theta=1e6,
        default_intermediate=default_intermediate,
        rope=rope,
    )
    return fields | {
        "kinds": tuple(kinds),
        "is_recurrent": CONVOLUTION in kinds,
        "conv_width": read_width(reader, "conv_L_cache", default_width),
        "conv_bias": reader.boolean("conv_bias", default=False),
    }


def _intermediate_size(reader: ConfigReader) -> int:
    """Of the feed-forward part: two thirds of what is named, times a factor, rounded up."""
    size = reader.integer("block_ff_dim", reader.integer("intermediate_size", 12288))
    multiple, factor = (
        reader.integer("block_multiple_of", 256),
        reader.number("block_ffn_dim_multiplier", 1.0),
    )
    if not reader.boolean("block_auto_adjust_ff_dim", default=True):
        return size
    adjusted = -(-int(factor * int(2 * size / 3)) // multiple) * multiple
    if not adjusted:
        raise reader.error(f"block_ffn_dim_multiplier {factor} leaves nothing of {size}")
    return adjusted
