"""GTE (Zhang et al. 2024, mGTE): BERT with rotary positions and a gated feed-forward part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.checkpoint.config import ConfigReader
from armllm.layers.activation import GATED, plain
from armllm.layers.linear import load_linear
from armllm.layers.rotary import RopeParameters
from armllm.models.bert import BertForSequenceClassification
from armllm.models.encoder import encoder_fields
from armllm.models.nomic_bert import RotaryEncoder, RotaryEncoderConfig, RotaryNames, rotary_fields

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.weights import Weights


class UpGateMLP:
    """down(activation(gate(x)) * up(x)); up and gate come from one matrix, up first."""

    def __init__(self, weights: Weights, hidden_size: int, size: int, activation: str) -> None:
        self.up_gate_proj = load_linear(weights, {"up_gate_proj": 2 * size}, hidden_size, bias=False)
        self.down_proj = load_linear(weights, {"down_proj": hidden_size}, size, bias=True)
        self.activation = plain(activation)

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        up, gate = self.up_gate_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.activation(gate.contiguous()).mul_(up))


class GteModel(RotaryEncoder):
    """The encoder."""

    prefixes = ("gte", "new")  # the authors' own code calls it new
    ignored = ("lm_head.*",)
    rotary_names = RotaryNames(
        layer="encoder.layer",
        qkv="attention.qkv_proj",
        attended="attention.o_proj",
        attention_norm="attn_ln",
        output_norm="mlp_ln",
        embedding_norm="embeddings.LayerNorm",
    )

    @staticmethod
    def load_mlp(config: Any, weights: Weights) -> UpGateMLP:
        """Up and gate in one matrix."""
        return UpGateMLP(weights, config.hidden_size, config.intermediate_size, config.activation)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryEncoderConfig:
        """GTE's config.json, as transformers writes it or as the authors' own code did."""
        if "pack_qkv" in reader.values:
            return cls._read_first_form(reader)
        fields = encoder_fields(reader, cls.__name__, vocab_size=250048, positions=8192)
        return RotaryEncoderConfig(
            **fields,
            **rotary_fields(reader, fields, default_activation="gelu", default_theta=160_000.0),
            type_vocab_size=reader.count("type_vocab_size", 1),
            attention_bias=True,
        )

    @classmethod
    def _read_first_form(cls, reader: ConfigReader) -> RotaryEncoderConfig:
        """That of Alibaba-NLP/new-impl."""
        reader.only("position_embedding_type", "rope")
        reader.only("layer_norm_type", "layer_norm")
        reader.only("pack_qkv", True)
        for name in ("logn_attention_scale", "logn_attention_clip1"):
            reader.only(name, False)
        fields = encoder_fields(reader, cls.__name__, vocab_size=30528, positions=2048)
        return RotaryEncoderConfig(
            **fields,
            intermediate_size=reader.integer("intermediate_size", 3072),
            activation=reader.choice("hidden_act", "gelu", GATED),
            norm_eps=reader.number("layer_norm_eps", 1e-12),
            rope=_read_ntk(reader, fields["head_dim"]),
            type_vocab_size=reader.count("type_vocab_size", 0),
            attention_bias=True,
        )


class GteForMaskedLM(GteModel):
    """The same as it was trained; the head is not loaded."""


class GteForSequenceClassification(GteModel):
    """The same with classes, by BERT's head."""

    load_head = BertForSequenceClassification.load_head


class NewModel(GteModel):
    """The same under the name that the authors' own code has."""


class NewForMaskedLM(GteForMaskedLM):
    """The same as it was trained; the head is not loaded."""


class NewForSequenceClassification(GteForSequenceClassification):
    """The same with classes."""


def _read_ntk(reader: ConfigReader, head_dim: int) -> RopeParameters:
    """Plain, or stretched by a greater base and, a little, by divided positions."""
    theta = reader.number("rope_theta", 10_000.0)
    scaling = reader.get("rope_scaling", None)
    if scaling is None:
        return RopeParameters(rotary_dim=head_dim, theta=theta)
    if not isinstance(scaling, dict) or scaling.keys() != {"type", "factor"} or scaling["type"] != "ntk":
        raise reader.error(f"rope_scaling {scaling!r} is not supported, only ntk with a factor")
    factor = ConfigReader(scaling, reader.path, "rope_scaling.").number("factor")
    return RopeParameters(
        rope_type="linear", rotary_dim=head_dim, theta=theta * factor, factor=factor ** (2 / head_dim)
    )
