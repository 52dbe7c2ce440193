"""The gated delta rule (Yang et al. 2024, arXiv:2412.06464): linear attention that corrects what it stored.

A head's state S ``[key_dim, value_dim]`` is a memory of values by keys. A token with key k, value v, decay
a = exp(g) and strength b replaces a share of what k would find:

    S = a S;   S += k (b (v - k S))^T;   o = q S

This is one pass over the state, and a decode is that. A prompt is computed in chunks: within a chunk the
corrections follow from a triangular system, and the state moves on by a few products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm.layers.recurrent import scan

if TYPE_CHECKING:
    from torch import Tensor


def gated_delta_rule(  # noqa: PLR0917 - the order is the field's
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    strength: Tensor,
    states: Tensor,
    slots: Tensor,
    query_start_loc: Tensor,
) -> Tensor:
    """What the tokens of the sequences find, fp32 ``[T, value_heads, value_dim]``; their states move on.

    query, key: ``[T, key_heads, key_dim]``, normalized here; each serves neighboring value heads. value:
    ``[T, value_heads, value_dim]``. log_decay, strength: fp32 ``[T, value_heads]``. states: fp32
    ``[slots, value_heads, key_dim, value_dim]``. slots int64 ``[S]``; query_start_loc int32 ``[S + 1]``.
    """
    share = value.shape[1] // key.shape[1]
    query = (_unit(query) * key.shape[-1] ** -0.5).repeat_interleave(share, dim=1)
    key = _unit(key).repeat_interleave(share, dim=1)
    value = value.float()
    out = torch.empty(value.shape, dtype=torch.float32)
    scan(out, [query, key, value, log_decay, strength], states, slots, query_start_loc, (_step, _chunk))
    return out


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _step(parts: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """One token of each of S sequences: what it finds ``[S, heads, value_dim]``, and the states after it."""
    query, key, value, log_decay, strength = parts
    state = state * log_decay.exp()[..., None, None]
    known = key.unsqueeze(-2) @ state
    correction = (value.unsqueeze(-2) - known) * strength[..., None, None]
    state += key.unsqueeze(-1) * correction
    return (query.unsqueeze(-2) @ state).squeeze(-2), state


def _chunk(parts: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """C tokens of a sequence, heads first: what they find ``[heads, C, value_dim]``, the state after them."""
    query, key, value, log_decay, strength = parts
    total = log_decay.cumsum(-1)
    # between two tokens, the later one in the rows
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()
    since = total.exp().unsqueeze(-1)
    strong_key = key * strength.unsqueeze(-1)
    system = (strong_key @ key.transpose(-1, -2)) * between
    wanted = value * strength.unsqueeze(-1) - (strong_key * since) @ state
    correction = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    found = (query * since) @ state + ((query @ key.transpose(-1, -2)) * between) @ correction
    left = (total[..., -1:] - total).exp().unsqueeze(-1)
    return found, state * since[..., -1:, :] + (key * left).transpose(-1, -2) @ correction
