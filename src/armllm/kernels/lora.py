"""Low-rank adapters beside a product, several in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor


def add_lora(  # noqa: PLR0917 - the kernels take what they take
    y: Tensor,
    x: Tensor,
    a: Tensor,
    b: Tensor,
    ranks: Tensor,
    part_ends: Tensor,
    slots: Tensor,
    norms: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """Add to each row of ``y``, the product of ``x`` with a matrix, what its adapter adds (Hu et al. 2021).

    Adapters lie in slots, and ``slots`` int64 [tokens] names that of each row, or -1 for none. Rows of one
    slot share what is read of it. The matrix has P parts side by side in ``y``, one or more.

    - ``y``: [tokens, out_features]. ``x``: [tokens, in_features]. They must not overlap.
    - ``a``: [slots, P * max_rank, in_features], part by part. Part p of row t becomes ``low = a x``.
    - ``b``: [slots, max_rank * out_features], part by part, each [max_rank, its columns]. ``low b`` is added.
    - ``ranks``: int64 [slots, P], how many rows of a part count; with 0 its columns stay as they are.
    - ``part_ends``: int64 [P], the columns at which the parts end.
    - ``norms``: float32 [slots, out_features] for DoRA (Liu et al. 2024). A row is ``y + (y - bias) * norms``
      before. ``bias``: float32 [out_features] or None.

    ``y``, ``x``, ``a`` and ``b`` have one dtype: float32, float16 or bfloat16. Sums are float32. Raises
    ValueError that names the wrong argument, also for a slot or a rank that does not exist; then nothing is
    written.
    """
    extension.add_lora(y, x, a, b, ranks, part_ends, slots, norms, bias)
