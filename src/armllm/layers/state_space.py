"""Mamba 2's selective scan (Dao and Gu 2024, arXiv:2405.21060): a state that decays by what a token says.

A head's state h ``[head_dim, state_size]`` takes a token's x ``[head_dim]`` by B and gives y by C:

    h = exp(dt A) h + dt x B^T;   y = h C + D x

A decode is one pass over the state. Within a chunk of a prompt all tokens are products of matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm.layers.recurrent import scan

if TYPE_CHECKING:
    from torch import Tensor


def selective_scan(  # noqa: PLR0917 - the order is the field's
    x: Tensor,
    step: Tensor,
    decay: Tensor,
    writes: Tensor,
    reads: Tensor,
    states: Tensor,
    slots: Tensor,
    query_start_loc: Tensor,
) -> Tensor:
    """What the tokens read, without D x, fp32 ``[T, heads, head_dim]``; the sequences' states move on.

    x: ``[T, heads, head_dim]``. step (dt): fp32 ``[T, heads]``, decay (A): fp32 ``[heads]``. writes (B),
    reads (C): ``[T, groups, state_size]``, each for neighboring heads. states: fp32 ``[slots, heads,
    head_dim, state_size]``. slots int64 ``[S]``; query_start_loc int32 ``[S + 1]``.
    """
    share = x.shape[1] // writes.shape[1]
    writes, reads = (part.float().repeat_interleave(share, dim=1) for part in (writes, reads))
    out = torch.empty(x.shape, dtype=torch.float32)
    parts = [x.float() * step.unsqueeze(-1), step * decay, writes, reads]
    scan(out, parts, states, slots, query_start_loc, (_step, _chunk))
    return out


def _step(parts: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """One token of each of S sequences: y ``[S, heads, head_dim]``, and the states after it."""
    x, log_decay, writes, reads = parts
    state = state * log_decay.exp()[..., None, None] + x.unsqueeze(-1) * writes.unsqueeze(-2)
    return (state @ reads.unsqueeze(-1)).squeeze(-1), state


def _chunk(parts: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """C tokens of a sequence, heads first: y ``[heads, C, head_dim]``, and the state after them."""
    x, log_decay, writes, reads = parts
    total = log_decay.cumsum(-1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()
    since = total.exp().unsqueeze(-1)
    found = ((reads @ writes.transpose(-1, -2)) * between) @ x + (reads * since) @ state.transpose(-1, -2)
    left = (total[..., -1:] - total).exp().unsqueeze(-1)
    return found, state * since[..., -1:, :] + (x * left).transpose(-1, -2) @ writes
