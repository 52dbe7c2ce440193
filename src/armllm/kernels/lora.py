"""Low-rank adapters beside a product, several in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor


class LoraSlots(NamedTuple):
    """The adapters of one matrix, which lie in slots (Hu et al. 2021).

    The matrix has P parts, whose columns lie side by side in the product; one or more.

    - ``a``: [slots, P * max_rank, in_features], part by part. ``low = a x`` of a part and a row.
    - ``b``: [slots, max_rank * out_features], part by part, each [max_rank, its columns]. ``low b`` is added.
    - ``ranks``: int64 [slots, P], how many rows of a part count; with 0 its columns stay as they are.
    - ``part_ends``: int64 [P], the columns at which the parts end.
    - ``norms``: float32 [slots, out_features] for DoRA (Liu et al. 2024). A row is ``y + (y - bias) * norms``
      before. ``bias``: float32 [out_features] or None.
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    part_ends: Tensor
    norms: Tensor | None = None
    bias: Tensor | None = None


def add_lora(y: Tensor, x: Tensor, adapters: LoraSlots, slots: Tensor) -> None:
    """Add to each row of ``y``, the product of ``x`` with a matrix, what its adapter adds.

    - ``y``: [tokens, out_features]. ``x``: [tokens, in_features]. They must not overlap.
    - ``slots``: int64 [tokens], the slot of each row's adapter, or -1. Rows of one slot share what is
      read of it.

    ``y``, ``x``, ``a`` and ``b`` have one dtype: float32, float16 or bfloat16. Sums are float32; with
    bfloat16, ``low`` is then rounded to it. Raises ValueError that names the wrong argument, also for a slot
    or a rank that does not exist; then nothing is written.
    """
    extension.add_lora(y, x, *adapters[:4], slots, *adapters[4:])
