"""Matrix products with the checkpoint's weights.

A layer's storage is decided here, where the weights are taken: models ask `load_linear` for a product and
call what comes back. Dense products are torch's, which on x86 bring the weights into their own order anew in
each call unless that was done before: twice the time for the few rows of a decode.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from armllm.models.loader import Weights


# On AArch64 torch's products (oneDNN over Arm Compute Library) want the weights as they are: in oneDNN's own
# order they fall to its portable code.
PACKING_MACHINES = ("x86_64",)
# A table that is both embedding and head is kept twice when it is packed: only a small one is.
LARGEST_TIED = 64 << 20  # bytes


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


class PackedLinear:
    """The same with a weight that oneDNN has put in order for good; raises RuntimeError where it can't."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)  # noqa: SLF001 - torch._inductor's way
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")  # noqa: SLF001
        return product


def dense(weight: Tensor, bias: Tensor | None = None) -> DenseLinear | PackedLinear:
    """The fastest product that torch has on this CPU for ``weight[out_features, in_features]``."""
    if (
        platform.machine() in PACKING_MACHINES
        and weight.device.type == "cpu"
        and weight.dtype in {torch.bfloat16, torch.float16}
    ):
        try:
            return PackedLinear(weight, bias)
        except (RuntimeError, AttributeError):  # a CPU without AVX-512, a torch without oneDNN
            pass
    return DenseLinear(weight, bias)


def tied_head(table: Tensor) -> DenseLinear | PackedLinear:
    """The product with an embedding ``table[vocab_size, hidden_size]`` that is the head too."""
    return dense(table) if table.nbytes <= LARGEST_TIED else DenseLinear(table)


def load_linear(weights: Weights, parts: Mapping[str, int], in_features: int, *, bias: bool) -> Linear:
    """One product for all ``parts`` (name to out_features), which lie side by side in its result.

    A single part stays where the file is mapped, if its dtype is right and it is not packed; several are
    copied into one matrix.
    """
    names = list(parts)
    if len(names) == 1:
        (name,) = names
        return dense(
            weights.take(f"{name}.weight", parts[name], in_features),
            weights.take(f"{name}.bias", parts[name]) if bias else None,
        )
    return dense(
        weights.concatenate(
            [f"{name}.weight" for name in names], [(parts[name], in_features) for name in names]
        ),
        weights.concatenate([f"{name}.bias" for name in names], [(parts[name],) for name in names])
        if bias
        else None,
    )
