"""Mixtures of experts in plain torch; `armllm.kernels.reference` has them beside the other ops."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from armllm.kernels.reference_matmul import PackedWeight, matmul_w4a8

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts:
    """The weights as they came, one per expert."""

    gate_up: Sequence[PackedWeight | Tensor]
    down: Sequence[PackedWeight | Tensor]

    @property
    def num_experts(self) -> int:
        """How many there are."""
        return len(self.gate_up)


def join_experts(gate_up: Sequence[PackedWeight | Tensor], down: Sequence[PackedWeight | Tensor]) -> Experts:
    """Keep what is given."""
    return Experts(gate_up=gate_up, down=down)


def _product(x: Tensor, weight: PackedWeight | Tensor) -> Tensor:
    if isinstance(weight, Tensor):
        return torch.nn.functional.linear(x, weight.float())
    out = torch.empty(x.shape[0], weight.out_features)
    matmul_w4a8(out, x, weight)
    return out


def _activate(gate: Tensor, activation: str) -> Tensor:
    if activation == "silu":
        return torch.nn.functional.silu(gate)
    return torch.nn.functional.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none")


def moe_w4a8(
    out: Tensor,
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    experts: Experts,
    *,
    activation: str = "silu",
) -> None:
    """Each expert on its tokens, in fp32."""
    total = torch.zeros(x.shape)
    for expert, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down, strict=True)):
        tokens, place = (expert_ids == expert).nonzero(as_tuple=True)
        if len(tokens):
            gate, up = _product(x[tokens].float(), gate_up).chunk(2, -1)
            result = _product(_activate(gate, activation) * up, down)
            total.index_add_(0, tokens, result * expert_weights[tokens, place, None])
    out.copy_(total)


moe_w8a8 = moe_bf16 = moe_f16 = moe_f32 = moe_w4a8
