"""Token ids to vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from armllm import kernels

if TYPE_CHECKING:
    from armllm.checkpoint.weights import Weights


class Embedding:
    """A table ``weight[vocab_size, hidden_size]``."""

    def __init__(self, weights: Weights, vocab_size: int, hidden_size: int) -> None:
        self.weight = weights.take("weight", vocab_size, hidden_size)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Rows ``[T, hidden_size]`` of ``token_ids[T]``."""
        return gather(self.weight, token_ids)


def gather(table: Tensor, rows: Tensor) -> Tensor:
    """``table[rows]`` of a matrix."""
    out = torch.empty(len(rows), table.shape[1], dtype=table.dtype)
    kernels.gather_rows(out, table, rows)
    return out
