"""Matrix products with the checkpoint's weights.

A layer's storage is decided here, where the weights are taken: models ask `load_linear` for a product and
call what comes back. Dense fp32 and bf16 products are torch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from armllm.models.loader import Weights


class Linear(Protocol):
    """y = x W^T + b."""

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, in_features]`` to ``[T, out_features]``, same dtype."""


class DenseLinear:
    """A product with ``weight[out_features, in_features]`` and maybe ``bias[out_features]``, in x's dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


def load_linear(weights: Weights, parts: Mapping[str, int], in_features: int, *, bias: bool) -> Linear:
    """One product for all ``parts`` (name to out_features), which lie side by side in its result.

    A single part stays where the file is mapped, if its dtype is right; several are copied into one matrix.
    """
    names = list(parts)
    if len(names) == 1:
        (name,) = names
        return DenseLinear(
            weights.take(f"{name}.weight", parts[name], in_features),
            weights.take(f"{name}.bias", parts[name]) if bias else None,
        )
    return DenseLinear(
        weights.concatenate(
            [f"{name}.weight" for name in names], [(parts[name], in_features) for name in names]
        ),
        weights.concatenate([f"{name}.bias" for name in names], [(parts[name],) for name in names])
        if bias
        else None,
    )
