"""Tokens drawn from logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor


class SamplingMetadata(NamedTuple):
    """How each row's token is drawn.

    - ``temperatures``: float32 [rows], 1e-30 to 1e30; logits are divided by them.
    - ``top_k``: int64 [rows], how many of the likeliest tokens are left; below 1: all.
    - ``top_p``: float64 [rows], the share of their weight that the likeliest of these make up; 1: all.
    - ``min_p``: float64 [rows], the least probability, as a share of the likeliest token's; 0: any.
    - ``uniforms``: float64 [rows], in [0, 1), the random numbers.
    """

    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniforms: Tensor


def sample(token_ids: Tensor, logits: Tensor, metadata: SamplingMetadata) -> None:
    """Draw a token of each row by the inverse of the cumulative distribution, over ids in their own order.

    - ``token_ids``: int64 [rows], which the tokens are written to.
    - ``logits``: float32 [rows, vocab_size]. The token of a row with a NaN, or without a finite greatest
      logit, means nothing.

    ``min_p`` is applied first, then ``top_k``, then ``top_p``, whose shares are of what the others left.
    Tokens as likely as the last one kept stay too. Whatever shares the call, a row's token is the same.
    Weights are float32, sums of chunks of them float64: this moves the borders between tokens by about 1e-7.
    Holtzman et al. 2020, arXiv:1904.09751 (top_p); Nguyen et al. 2024, arXiv:2407.01082 (min_p).

    Raises ValueError that names the wrong argument; then nothing is written.
    """
    extension.sample(token_ids, logits, *metadata)
