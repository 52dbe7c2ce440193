"""Layers with a state per sequence in plain torch: the functions of `armllm.kernels.recurrence`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm.kernels.recurrence import STATE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from armllm.kernels.recurrence import SequenceStates


def causal_conv(  # noqa: PLR0917 - as the kernel's
    out: Tensor,
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    sequences: SequenceStates,
    activated: bool = True,
) -> None:
    """As `armllm.kernels.causal_conv`."""
    states, slots, query_start_loc = sequences
    starts = query_start_loc.tolist()
    for row, slot in enumerate(slots.tolist()):
        part = slice(starts[row], starts[row + 1])
        if part.start == part.stop:
            continue
        joined = torch.cat((states[slot], x[part]))
        windows = joined.float().unfold(0, len(taps), 1)  # [tokens, channels, width]
        total = (windows * taps.t()).sum(-1)
        total = total if bias is None else total + bias
        out[part] = (torch.nn.functional.silu(total) if activated else total).to(out.dtype)
        states[slot] = joined[len(joined) - len(taps) + 1 :]


def gated_delta_rule(  # noqa: PLR0917 - as the kernel's
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    strength: Tensor,
    sequences: SequenceStates,
) -> None:
    """As `armllm.kernels.gated_delta_rule`."""
    share = value.shape[1] // key.shape[1]
    query, key = (_unit(part).repeat_interleave(share, dim=1) for part in (query, key))
    query *= key.shape[-1] ** -0.5
    for slot, token, state in _passes(sequences, key, value):
        state.mul_(log_decay[token].exp()[:, None, None])
        found = (key[token].unsqueeze(1) @ state).squeeze(1)
        correction = (value[token].float() - found) * strength[token].unsqueeze(1)
        state.add_(key[token].unsqueeze(-1) * correction.unsqueeze(1))
        out[token] = (query[token].unsqueeze(1) @ state).squeeze(1)
        _store(sequences.states, slot, state)


def selective_scan(  # noqa: PLR0917 - as the kernel's
    out: Tensor,
    x: Tensor,
    step: Tensor,
    log_decay: Tensor,
    writes: Tensor,
    reads: Tensor,
    skip: Tensor | None,
    sequences: SequenceStates,
) -> None:
    """As `armllm.kernels.selective_scan`."""
    share = x.shape[1] // writes.shape[1]
    writes, reads = (part.float().repeat_interleave(share, dim=1) for part in (writes, reads))
    for slot, token, state in _passes(sequences, writes, x):
        taken = x[token].float() * step[token].unsqueeze(1)
        state.mul_(log_decay[token].exp()[:, None, None])
        state.add_(writes[token].unsqueeze(-1) * taken.unsqueeze(1))
        out[token] = (reads[token].unsqueeze(1) @ state).squeeze(1)
        if skip is not None:
            out[token] += skip.unsqueeze(1) * x[token].float()
        _store(sequences.states, slot, state)


def _unit(x: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _passes(sequences: SequenceStates, key: Tensor, value: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Each sequence's tokens with its state ``[heads, key_dim, value_dim]``."""
    states, slots, query_start_loc = sequences
    starts = query_start_loc.tolist()
    heads, width = value.shape[1:]
    for row, slot in enumerate(slots.tolist()):
        for token in range(starts[row], starts[row + 1]):
            blocks = states[slot].view(heads, -1, key.shape[-1], STATE_COLUMNS)
            yield slot, token, blocks.transpose(1, 2).flatten(2)[..., :width].clone()


def _store(states: Tensor, slot: int, state: Tensor) -> None:
    """The opposite."""
    heads, keys, width = state.shape
    padded = torch.nn.functional.pad(state, (0, -width % STATE_COLUMNS))
    states[slot] = padded.view(heads, keys, -1, STATE_COLUMNS).transpose(1, 2).flatten()
