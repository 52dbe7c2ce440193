"""Routers: which experts of a mixture a token goes to, and how much each counts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from armllm.layers.linear import as_float32, load_linear
from armllm.layers.ranks import building_for

if TYPE_CHECKING:
    from armllm.checkpoint.weights import Weights


class Routes(Protocol):
    """Chooses experts."""

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x[T, hidden_size]`` to expert ids int64 and weights fp32, both ``[T, K]``."""


class Router:
    """Chooses ``num_experts_per_tok`` experts by the softmax of the product ``name``, ``[num_experts, H]``.

    ``normalize``: the weights of the chosen ones are made to sum to one.
    """

    def __init__(
        self,
        weights: Weights,
        hidden_size: int,
        num_experts: int,
        num_experts_per_tok: int,
        *,
        normalize: bool,
        name: str = "gate",
        bias: bool = False,
    ) -> None:
        with building_for(None):  # so small that each rank computes it all, and need not wait
            self.linear = load_linear(weights, {name: num_experts}, hidden_size, bias=bias)
        self.num_experts_per_tok = num_experts_per_tok
        self.normalize = normalize

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Expert ids int64 and weights fp32, both ``[T, num_experts_per_tok]``."""
        probabilities = torch.softmax(self.linear(x), dim=-1, dtype=torch.float32)
        expert_weights, expert_ids = probabilities.topk(self.num_experts_per_tok, dim=-1)
        if self.normalize:
            expert_weights /= expert_weights.sum(dim=-1, keepdim=True)
        return expert_ids, expert_weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routing:
    """How `GroupedRouter` chooses ``num_experts_per_tok`` of ``num_experts``.

    groups: into how many experts are cut, and from how many of these a token's come. normalize: the weights
    of those chosen sum to one. factor: of all weights. sigmoid: scores are sigmoids, else a softmax. biased:
    sigmoids have a bias for the choice (Wang et al. 2024), and a group counts as its two best, else as one.
    epsilon: added to the sum that normalizes.
    """

    num_experts: int
    num_experts_per_tok: int
    normalize: bool
    factor: float = 1.0
    groups: tuple[int, int] = (1, 1)
    sigmoid: bool = False
    biased: bool = True
    epsilon: float = 1e-20


class GroupedRouter:
    """Chooses experts in fp32, from the best groups of them (DeepSeek-AI 2024), never by rounded weights.

    ``name``: of the matrix, beside which the bias is, by the name ``bias``.
    """

    def __init__(
        self,
        weights: Weights,
        hidden_size: int,
        routing: Routing,
        *,
        name: str = "weight",
        bias: str = "e_score_correction_bias",
    ) -> None:
        exact = weights.in_dtype(torch.float32)
        self.weight = exact.take(name, routing.num_experts, hidden_size)
        biased = routing.sigmoid and routing.biased
        self.bias = exact.take(bias, routing.num_experts) if biased else None
        self.routing = routing

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Expert ids int64 and weights fp32, both ``[T, num_experts_per_tok]``."""
        logits = torch.nn.functional.linear(as_float32(x), self.weight)
        scores = logits.sigmoid() if self.routing.sigmoid else logits.softmax(dim=-1)
        if self.bias is None:
            expert_weights, expert_ids = self._in_best_groups(scores).topk(self.routing.num_experts_per_tok)
        else:
            ranking = self._in_best_groups(scores + self.bias)
            expert_ids = ranking.topk(self.routing.num_experts_per_tok)[1]
            expert_weights = scores.gather(1, expert_ids)
        if self.routing.normalize:
            total = expert_weights.sum(dim=-1, keepdim=True)
            expert_weights = expert_weights / (total + self.routing.epsilon)
        return expert_ids, expert_weights * self.routing.factor

    def _in_best_groups(self, scores: Tensor) -> Tensor:
        """The scores, out of reach where they are not in one of the best groups."""
        number, top_groups = self.routing.groups
        if number == 1:
            return scores
        groups = scores.view(len(scores), number, scores.shape[1] // number)
        best = groups.amax(-1) if self.bias is None else groups.topk(2)[0].sum(-1)
        inside = torch.zeros_like(best).scatter(1, best.topk(top_groups)[1], 1.0)
        outside = 0.0 if self.bias is None else -torch.inf
        return groups.masked_fill((inside == 0).unsqueeze(-1), outside).view(scores.shape)
