"""A short causal convolution of each channel, which remembers the last tokens of every sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm import kernels

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.weights import Weights


class CausalConv:
    """silu(conv(x)), or conv(x), over the last ``width`` tokens of each of ``channels``, in fp32.

    Its state has the last ``width - 1`` inputs, ``[slots, width - 1, channels]``.
    """

    def __init__(
        self, weights: Weights, channels: int, width: int, *, bias: bool = False, activated: bool = True
    ) -> None:
        taps = weights.take("weight", channels, 1, width)
        self.taps = taps.squeeze(1).t().contiguous().float()
        self.bias = weights.take("bias", channels).float() if bias else None
        self.activated = activated

    def __call__(self, x: Tensor, sequences: kernels.SequenceStates) -> Tensor:
        """``x[T, channels]`` of the sequences one after the other; their states move on."""
        out = torch.empty(x.shape, dtype=x.dtype)
        kernels.causal_conv(out, x, self.taps, self.bias, sequences, self.activated)
        return out
