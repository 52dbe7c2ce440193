"""LFM3 (Liquid AI 2026): LFM2 with windows in some layers, norms around both branches, gates of heads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm.layers.linear import load_linear
from armllm.models.gemma2 import NormAroundDecoderLayer
from armllm.models.gemma3 import LocalRotary
from armllm.models.lfm2 import CONVOLUTION, Lfm2Config, Lfm2DecoderLayer, Lfm2ForCausalLM, lfm2_fields
from armllm.models.qwen3 import Qwen3Attention
from armllm.models.rope import ropes_by_kind
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RopeParameters, RotaryEmbedding

SIZES = {"hidden_size": 2048, "num_hidden_layers": 24, "vocab_size": 128000}
ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lfm3Config(Lfm2Config):
    """local_rope: of the layers with a window. norms_around: whether branches are normalized at their ends.

    gated: whether each head has a gate for what it finds.
    """

    local_rope: RopeParameters
    norms_around: bool
    gated: bool


class Lfm3Attention(Qwen3Attention):
    """Qwen3's attention; what a head finds is multiplied by a sigmoid of the hidden states."""

    def __init__(
        self, config: Lfm3Config, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.gates = (
            load_linear(weights, {"gate_proj": config.num_heads}, config.hidden_size, bias=False)
            if config.gated
            else None
        )

    def attend(self, x: Tensor, places: Tensor, metadata: AttentionMetadata) -> Tensor:
        """What the heads find, with the gates."""
        found = super().attend(x, places, metadata)
        return found if self.gates is None else found * torch.sigmoid(self.gates(x)).unsqueeze(-1)


class Lfm3DecoderLayer(Lfm2DecoderLayer, NormAroundDecoderLayer):
    """LFM2's layer, maybe with norms after its branches."""

    attention_class = Lfm3Attention  # type: ignore[assignment]
    norm_names = ("operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm")  # type: ignore[assignment]

    def load_norms(self, config: Any, weights: Weights) -> None:
        """Those before the branches, and those after them if there are any."""
        around = [config.norms_around or not name.startswith("post_") for name in self.norm_names]
        self.norms: list[Any] = [
            self.load_norm(config, weights, name) if wanted else _unchanged
            for name, wanted in zip(self.norm_names, around, strict=True)
        ]


class Lfm3ForCausalLM(LocalRotary, Lfm2ForCausalLM):
    """LFM2's decoder with LFM3's layers."""

    layer_class = Lfm3DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> Lfm3Config:
        """LFM3's config.json."""
        common = reader.common(
            "Lfm3ForCausalLM",
            default_eos=124900,
            default_positions=128000,
            default_heads=16,
            default_kv_heads=4,
            default_head_dim=128,
            default_tied=True,
            default_sizes=SIZES,
        )
        num_layers, bias = common["num_layers"], reader.boolean("attention_bias", default=False)
        default = [(CONVOLUTION, FULL)[index % 4 == 2] for index in range(num_layers)]
        default[4::4] = [SLIDING] * len(default[4::4])
        kinds = read_layer_types(reader, num_layers, default, (FULL, SLIDING, CONVOLUTION))
        rope, local_rope = ropes_by_kind(reader, common, ROPES)
        return Lfm3Config(
            **lfm2_fields(reader, common, kinds, rope=rope, default_intermediate=7680, default_width=7),
            windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 256)),
            local_rope=local_rope,
            norms_around=reader.boolean("use_sandwich_norm", default=True),
            gated=reader.boolean("use_attention_gate", default=True),
            qkv_bias=bias,
            output_bias=bias,
        )


def _unchanged(x: Tensor) -> Tensor:
    return x
