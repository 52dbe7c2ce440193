"""Hunyuan (Tencent Hunyuan Team 2025): Llama whose queries and keys are normalized after they are rotated."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.checkpoint.config import ConfigReader
from armllm.layers.mlp import GatedMLP
from armllm.layers.moe import load_experts
from armllm.layers.norm import RMSNorm
from armllm.layers.routing import GroupedRouter, Routing
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    llama_fields,
)
from armllm.models.mixtral import routing_fields
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.weights import Weights
    from armllm.layers.rotary import RopeParameters, RotaryEmbedding

# what published files say beside alpha, and nothing reads
BESIDE_ALPHA = ("type", "rope_type", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HunyuanMoeConfig(LlamaConfig):
    """How tokens are sent to experts."""

    routing: Routing
    num_experts_per_tok: int


class HunyuanAttention(LlamaAttention):
    """Each head's query and key are normalized after they are rotated."""

    def __init__(
        self, config: LlamaConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.query_norm = RMSNorm(weights.scope("query_layernorm"), config.head_dim, config.rms_norm_eps)
        self.key_norm = RMSNorm(weights.scope("key_layernorm"), config.head_dim, config.rms_norm_eps)

    def rotate(self, places: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key with their positions, normalized."""
        query, key = super().rotate(places, query, key)
        return self.query_norm(query), self.key_norm(key)


class HunyuanDecoderLayer(LlamaDecoderLayer):
    """Llama's layer around Hunyuan's attention."""

    attention_class = HunyuanAttention


class HunyuanMoE:
    """experts(x) + shared(x)."""

    def __init__(self, config: HunyuanMoeConfig, weights: Weights) -> None:
        hidden_size, size, activation = config.hidden_size, config.intermediate_size, config.activation
        self.router = GroupedRouter(weights.scope("gate.wg"), hidden_size, config.routing)
        number = config.routing.num_experts
        self.experts = load_experts(weights, number, hidden_size, size, activation=activation)
        self.shared = GatedMLP(weights.scope("shared_mlp"), hidden_size, size, activation=activation)

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        return self.experts(x, *self.router(x)).add_(self.shared(x))


class HunyuanMoEDecoderLayer(HunyuanDecoderLayer):
    """The same with experts."""

    @staticmethod
    def load_mlp(config: HunyuanMoeConfig, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:  # noqa: ARG004
        """Experts with a shared one."""
        return HunyuanMoE(config, weights.scope("mlp"))


class HunYuanDenseV1ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Hunyuan's layers."""

    layer_class = HunyuanDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Hunyuan's config.json."""
        return LlamaConfig(**_fields(reader, "HunYuanDenseV1ForCausalLM"))


class HunYuanMoEV1ForCausalLM(LlamaForCausalLM):
    """The same with experts in every layer."""

    layer_class = HunyuanMoEDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> HunyuanMoeConfig:
        """Hunyuan's config.json. All layers have the same experts, though it has a number for each."""
        fields = _fields(reader, "HunYuanMoEV1ForCausalLM")
        layers = fields["num_layers"]
        reader.only("num_shared_expert", 1, [1] * layers)
        size = fields["intermediate_size"]
        reader.only("moe_intermediate_size", size, [size] * layers)
        reader.only("moe_layer_num_skipped", 0)
        key = "num_experts_per_tok" if reader.has("num_experts_per_tok") else "moe_topk"
        listed = reader.get(key, 1)
        same = listed[0] if isinstance(listed, list) and listed == listed[:1] * layers else listed
        inner = ConfigReader({key: same}, reader.path, reader.prefix)
        routed = routing_fields(inner, num_experts=reader.integer("num_experts", 1), per_token=1, key=key)
        return HunyuanMoeConfig(
            **fields,
            routing=Routing(**routed, normalize=True),
            num_experts_per_tok=routed["num_experts_per_tok"],
        )


def _fields(reader: ConfigReader, architecture: str) -> dict[str, Any]:
    """The fields of `LlamaConfig`."""
    for name, value in (("use_qk_norm", True), ("use_rotary_pos_emb", True)):
        reader.only(name, value)
    for name in ("use_cla", "use_mla", "group_limited_greedy"):
        reader.only(name, False)
    reader.only("routed_scaling_factor", 1.0)
    reader.asked.update(("qk_nope_head_dim", "qk_rope_head_dim"))  # use_mla's
    bias = reader.boolean("attention_bias", default=False)
    common = reader.common(architecture, default_eos=2, default_positions=2048)
    reader.only("attention_head_dim", common["head_dim"])
    rope = _read_alpha_rope(reader, common)
    return {
        **llama_fields(reader, common, default_eps=1e-5, rope=rope),
        "windows": same_everywhere(reader, common["num_layers"], None),
        "qkv_bias": bias,
        "output_bias": bias,
    }


def _read_alpha_rope(reader: ConfigReader, common: dict[str, Any]) -> RopeParameters:
    """Rotary parameters; alpha stretches the base once, whatever the length of a text."""
    key = "rope_scaling" if reader.get("rope_scaling", None) else "rope_parameters"
    values = reader.get(key, None)
    kind = (values.get("rope_type") or values.get("type")) if isinstance(values, dict) else None
    if kind != "dynamic" or not values.get("alpha"):
        return read_rope(reader, common)
    alpha = ConfigReader(values, reader.path, f"{reader.prefix}{key}.").number("alpha")
    rope = read_rope(reader, common, ignored=("alpha", *BESIDE_ALPHA))
    exponent = common["head_dim"] / max(1, common["head_dim"] - 2)
    return dataclasses.replace(rope, theta=rope.theta * alpha**exponent)
