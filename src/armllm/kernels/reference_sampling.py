"""Sampling in plain torch: the function of `armllm.kernels.sampling`, by the definition, in fp64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.kernels.sampling import SamplingMetadata


def sample(token_ids: Tensor, logits: Tensor, metadata: SamplingMetadata) -> None:
    """As `armllm.kernels.sample`."""
    for row, (temperature, top_k, top_p, min_p, uniform) in enumerate(
        zip(*(values.tolist() for values in metadata), strict=True)
    ):
        probabilities = torch.softmax(logits[row].double() / temperature, -1)
        falling, order = probabilities.sort(descending=True, stable=True)
        left = falling >= min_p * falling[0]
        if 0 < top_k < len(order):
            left[top_k:] = False
        if top_p < 1:
            mass = falling * left
            left &= mass.cumsum(0) - mass < top_p * mass.sum()
        nucleus = torch.where(probabilities >= falling[left][-1], probabilities, 0)
        sums = nucleus.cumsum(0)
        token_ids[row] = min(int((sums <= uniform * sums[-1]).sum()), int(nucleus.nonzero()[-1]))
