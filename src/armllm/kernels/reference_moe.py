"""Mixtures of experts in plain torch; `armllm.kernels.reference` has them beside the other ops."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from armllm.kernels.moe import ClampedSwiGLU
from armllm.kernels.reference_matmul import PackedWeight, matmul_w4a8

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts:
    """The weights as they came, one per expert."""

    gate_up: Sequence[PackedWeight | Tensor]
    down: Sequence[PackedWeight | Tensor]
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    @property
    def num_experts(self) -> int:
        """How many there are."""
        return len(self.gate_up)


def join_experts(
    gate_up: Sequence[PackedWeight | Tensor],
    down: Sequence[PackedWeight | Tensor],
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Experts:
    """Keep what is given."""
    return Experts(gate_up=gate_up, down=down, gate_up_bias=gate_up_bias, down_bias=down_bias)


def _product(x: Tensor, weight: PackedWeight | Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(weight, Tensor):
        return torch.nn.functional.linear(x, weight.float(), bias)
    out = torch.empty(x.shape[0], weight.out_features)
    matmul_w4a8(out, x, weight)
    return out if bias is None else out + bias


def clamped_swiglu(gate: Tensor, up: Tensor, activation: ClampedSwiGLU) -> Tensor:
    """The activation between two products of gpt-oss's experts."""
    gate = gate.clamp(max=activation.limit)
    up = up.clamp(-activation.limit, activation.limit)
    return gate * torch.sigmoid(activation.alpha * gate) * (up + 1)


def activate(gate: Tensor, up: Tensor, activation: str | ClampedSwiGLU) -> Tensor:
    """What lies between the two products of an expert."""
    if isinstance(activation, ClampedSwiGLU):
        return clamped_swiglu(gate, up, activation)
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    return torch.nn.functional.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up


def moe_w4a8(
    out: Tensor,
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    experts: Experts,
    *,
    activation: str | ClampedSwiGLU = "silu",
) -> None:
    """Each expert on its tokens, in fp32."""
    total = torch.zeros(x.shape)
    for expert, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down, strict=True)):
        tokens, place = (expert_ids == expert).nonzero(as_tuple=True)
        if len(tokens):
            biases = (None if b is None else b[expert] for b in (experts.gate_up_bias, experts.down_bias))
            gate_up_bias, down_bias = biases
            gate, up = _product(x[tokens].float(), gate_up, gate_up_bias).chunk(2, -1)
            result = _product(activate(gate, up, activation), down, down_bias)
            total.index_add_(0, tokens, result * expert_weights[tokens, place, None])
    out.copy_(total)


moe_w8a8 = moe_bf16 = moe_f16 = moe_f32 = moe_w4a8
