"""gpt-oss (OpenAI 2025, arXiv:2508.10925): attention sinks, windows in turn, experts with clamped SwiGLU."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from armllm.kernels import ClampedSwiGLU
from armllm.layers.linear import QuantizedLinear
from armllm.layers.moe import (
    GATES_AND_UPS,
    NAMES,
    MoE,
    are_separate,
    combined,
    load_matrices,
    own_rows,
    transposed_experts,
)
from armllm.layers.routing import Router
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    llama_fields,
)
from armllm.models.mixtral import routing_fields
from armllm.models.rope import read_rope
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types
from armllm.quant.mxfp4 import MXFP4

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.moe import Matrix
    from armllm.layers.rotary import RotaryEmbedding

# the class's default, for a config.json that says nothing of rotary embedding
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptOssConfig(LlamaConfig):
    """Llama's fields, and how tokens are sent to experts and what these compute."""

    num_experts: int
    num_experts_per_tok: int
    swiglu_alpha: float
    swiglu_limit: float


class GptOssAttention(LlamaAttention):
    """Llama's attention with one learned score per head that takes probability and gives nothing."""

    def __init__(
        self, config: GptOssConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.attention.use_sinks(weights.take("sinks", config.num_heads))


class GptOssDecoderLayer(LlamaDecoderLayer):
    """Llama's layer with experts."""

    attention_class = GptOssAttention

    @staticmethod
    def load_mlp(config: GptOssConfig, weights: Weights, index: int) -> MoE:  # noqa: ARG004
        """A router with a bias, and experts with biases.

        The softmax over the chosen experts' scores is the one over all scores, made to sum to one.
        """
        block, hidden, count = weights.scope("mlp"), config.hidden_size, config.num_experts
        router = Router(
            block, hidden, count, config.num_experts_per_tok, normalize=True, name="router", bias=True
        )
        experts, width = block.scope("experts"), config.intermediate_size
        if are_separate(experts):
            gate_up, down = load_matrices(experts, count, hidden, width, bias=None)
            gate_up_biases = torch.cat([_biases(experts, name, count, width) for name in NAMES[:2]], 1)
        else:
            gate_up = _matrices(experts, "gate_up_proj", count, (2 * width, hidden))
            down = _matrices(experts, "down_proj", count, (hidden, width))
            gate_up_biases = gates_first(experts.take("gate_up_proj_bias", count, 2 * width), 1)
        down_biases = _biases(experts, "down_proj", count, hidden)
        biases = (
            own_rows(GATES_AND_UPS)(gate_up_biases.t()).t().float().contiguous(),
            own_rows()(down_biases.t()).t().float().contiguous(),
        )
        activation = ClampedSwiGLU(config.swiglu_alpha, config.swiglu_limit)
        return MoE(router, combined(gate_up, down, biases, sizes=(hidden, width), activation=activation))


class GptOssForCausalLM(LlamaForCausalLM):
    """Llama's decoder with gpt-oss's layers."""

    layer_class = GptOssDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> GptOssConfig:
        """gpt-oss's config.json."""
        common = reader.common(
            "GptOssForCausalLM",
            default_positions=131072,
            default_heads=64,
            default_kv_heads=8,
            default_head_dim=64,
            default_sizes={"hidden_size": 2880, "num_hidden_layers": 36, "vocab_size": 201088},
        )
        rope = read_rope(
            reader,
            common,
            default_theta=150000.0,
            missing=YARN,
        )
        reader.only("hidden_act", "silu")  # the experts' function has no other
        layers, bias = common["num_layers"], reader.boolean("attention_bias", default=True)
        kinds = read_layer_types(reader, layers, [FULL if index % 2 else SLIDING for index in range(layers)])
        num_experts = reader.get("num_experts", 128)
        return GptOssConfig(
            **llama_fields(reader, common, rope=rope, default_eps=1e-5, default_intermediate=2880),
            **routing_fields(
                reader, num_experts=reader.integer("num_local_experts", num_experts), per_token=4
            ),
            windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 128)),
            qkv_bias=bias,
            output_bias=bias,
            swiglu_alpha=reader.number("swiglu_alpha", 1.702),
            swiglu_limit=reader.number("swiglu_limit", 7.0),
        )


def gates_first(x: Tensor, dim: int) -> Tensor:
    """Gates and ups, which alternate in the checkpoint, one after the other.

    Only the view is another one: for `torch.cat` without data torch imports its compiler, in seconds.
    """
    rows = x.transpose(0, dim)
    pairs = rows.view(-1, 2, *rows.shape[1:])
    return pairs.transpose(0, 1).flatten(0, 1).transpose(0, dim).contiguous()


def _biases(experts: Weights, name: str, count: int, width: int) -> Tensor:
    """Of all experts ``[count, width]``, from one tensor or from one for each."""
    own = [f"{expert}.{name}.bias" for expert in range(count)]
    if experts.has(own[0]):
        return experts.concatenate(own, [(width,)] * count).view(count, width)
    return experts.take(f"{name}_bias", count, width)


def _matrices(experts: Weights, name: str, count: int, shape: tuple[int, int]) -> Sequence[Matrix]:
    """A matrix, or a product with one, per expert of a tensor ``[count, inputs, rows]``, or of MXFP4."""
    form, ups = experts.quantization, name == "gate_up_proj"
    own = own_rows(GATES_AND_UPS if ups else 1)
    arrange = partial(gates_first, dim=0) if ups else Tensor.contiguous
    scheme = form.scheme(experts, name, shape[1]) if isinstance(form, MXFP4) else None
    if isinstance(form, MXFP4) and scheme is not None:
        found = experts.stack(form, name, count, shape, scheme)
        return [QuantizedLinear(one.rows(lambda rows: own(arrange(rows)))) for one in found]
    return transposed_experts(experts, name, count, shape, own=own, arrange=arrange)
