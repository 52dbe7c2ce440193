"""Layers with a state per sequence: a convolution, the gated delta rule and Mamba 2's selective scan."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor

STATE_COLUMNS = 16
"""Columns of a state that lie side by side (kStateColumns in kernels.h)."""
MAX_STATE_KEYS, MAX_CONV_WIDTH = 512, 16


def state_size(heads: int, key_dim: int, value_dim: int) -> int:
    """Return how many float32 the state of one sequence has, ``[key_dim, value_dim]`` for each head.

    A head's state is stored as ``[ceil(value_dim / 16), key_dim, 16]``, columns behind value_dim being 0.
    """
    return heads * -(-value_dim // STATE_COLUMNS) * key_dim * STATE_COLUMNS


class SequenceStates(NamedTuple):
    """The sequences of a batch, whose tokens lie one after the other, and what is remembered of each.

    - ``states``: [slots, ...]; the function says what a slot has.
    - ``slots``: int64 [sequences], all different.
    - ``query_start_loc``: int32 [sequences + 1], where each sequence's tokens start, from 0 to tokens.
    """

    states: Tensor
    slots: Tensor
    query_start_loc: Tensor


def causal_conv(  # noqa: PLR0917 - as of the other functions
    out: Tensor,
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    sequences: SequenceStates,
    activated: bool = True,
) -> None:
    """Write ``silu(bias + conv(x))`` of each channel over its last ``width`` tokens; the states move on.

    - ``out``, ``x``: [tokens, channels], the sequences one after the other. They must not overlap.
    - ``taps``: float32 [width, channels], the oldest token's first; width is 2 to 16. ``bias``: float32
      [channels], or None.
    - ``sequences``: the states are [slots, width - 1, channels], the inputs before each first token.
    - ``activated``: False leaves the SiLU out.

    ``out``, ``x`` and the states have one dtype: float32, float16 or bfloat16. Sums are float32. Raises
    ValueError that names the wrong argument; then nothing is written.
    """
    extension.causal_conv(out, x, taps, bias, *sequences, activated)


def gated_delta_rule(  # noqa: PLR0917 - the order is the field's
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    strength: Tensor,
    sequences: SequenceStates,
) -> None:
    """Linear attention that corrects what it stored (Yang et al. 2024, arXiv:2412.06464).

    A head's state S is a memory of values by keys. A token with key k, value v, decay a = exp(log_decay) and
    strength b replaces a share of what k finds::

        S = a S;   S += k (b (v - k S))^T;   out = q S

    - ``out``: float32 [tokens, heads, value_dim], contiguous.
    - ``query``, ``key``: [tokens, key_heads, key_dim], key_dim up to 512. Both are normalized here: keys to
      the length 1, queries to key_dim^-1/2. Each head of them serves ``heads / key_heads`` neighbors.
    - ``value``: [tokens, heads, value_dim], of the dtype of query and key: float32, float16 or bfloat16.
    - ``log_decay`` (at most 0), ``strength``: float32 [tokens, heads], contiguous.
    - ``sequences``: the states are float32 [slots, `state_size`].

    Arithmetic is float32. Each token is one pass over the state. Results do not depend on how a prompt is cut
    into steps. Raises ValueError that names the wrong argument; then nothing is written.
    """
    extension.state_scan(out, query, key, value, log_decay, strength, None, *sequences, True)


def selective_scan(  # noqa: PLR0917 - the order is the field's
    out: Tensor,
    x: Tensor,
    step: Tensor,
    log_decay: Tensor,
    writes: Tensor,
    reads: Tensor,
    skip: Tensor | None,
    sequences: SequenceStates,
) -> None:
    """Mamba 2's selective scan (Dao and Gu 2024, arXiv:2405.21060).

    A head's state h takes a token's x by B (``writes``) and gives y by C (``reads``)::

        h = exp(log_decay) h + B (step x)^T;   out = C h + D x

    - ``out``: float32 [tokens, heads, head_dim], contiguous.
    - ``x``: [tokens, heads, head_dim]. ``writes``, ``reads``: [tokens, groups, state_size], each for
      ``heads / groups`` neighboring heads; state_size is up to 512. They have one dtype: float32, float16 or
      bfloat16.
    - ``step`` (dt), ``log_decay`` (dt A, at most 0): float32 [tokens, heads], contiguous.
    - ``skip`` (D): float32 [heads], or None.
    - ``sequences``: the states are float32 [slots, `state_size` (heads, state_size, head_dim)].

    Arithmetic is float32. Each token is one pass over the state. Results do not depend on how a prompt is cut
    into steps. Raises ValueError that names the wrong argument; then nothing is written.
    """
    extension.state_scan(out, reads, writes, x, log_decay, step, skip, *sequences, False)
