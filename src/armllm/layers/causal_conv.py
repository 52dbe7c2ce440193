"""A short causal convolution of each channel, which remembers the last tokens of every sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.weights import Weights


class CausalConv:
    """silu(conv(x)) over the last ``width`` tokens of each of ``channels``, in fp32.

    Its state has the last ``width - 1`` inputs, ``[slots, width - 1, channels]``.
    """

    def __init__(self, weights: Weights, channels: int, width: int, *, bias: bool = False) -> None:
        taps = weights.take("weight", channels, 1, width)
        self.taps = taps.squeeze(1).t().contiguous().float()
        self.bias = weights.take("bias", channels).float() if bias else None
        self.width = width

    def __call__(self, x: Tensor, state: Tensor, slots: Tensor, query_start_loc: Tensor) -> Tensor:
        """``x[T, channels]`` of the sequences one after the other; their states move on."""
        before = self.width - 1
        starts = query_start_loc.long()
        count = len(slots)
        lengths = starts[1:] - starts[:-1]
        # each sequence's rows behind what it remembers
        rows = torch.arange(len(x)) + before * (1 + torch.repeat_interleave(torch.arange(count), lengths))
        first = starts[:-1] + before * torch.arange(count)
        tail = torch.arange(before)
        joined = x.new_empty(len(x) + before * count, x.shape[1])
        joined[rows] = x
        joined[(first.unsqueeze(1) + tail).flatten()] = state[slots].flatten(0, 1)
        out = torch.zeros(x.shape, dtype=torch.float32)
        for tap, weight in enumerate(self.taps):
            out.addcmul_(joined[rows - before + tap].float(), weight)
        if self.bias is not None:
            out += self.bias
        ends = first + lengths
        state[slots] = joined[(ends.unsqueeze(1) + tail).flatten()].view(count, before, -1)
        return torch.nn.functional.silu(out).to(x.dtype)
