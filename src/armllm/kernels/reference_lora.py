"""Low-rank adapters in plain torch: the function of `armllm.kernels.lora`."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """As `armllm.kernels.add_lora`."""
    parts, max_rank = len(part_ends), a.shape[1] // len(part_ends)
    for row, slot in enumerate(slots.tolist()):
        start = 0
        for part, end in enumerate(part_ends.tolist()):
            rank, columns = int(ranks[slot, part]), slice(start, end)
            start = end
            if slot < 0 or rank == 0:
                continue
            whole = y[row, columns].float()
            if norms is not None:
                plain = whole if bias is None else whole - bias[columns]
                whole = (whole + plain * norms[slot, columns]).to(y.dtype).float()
            low = a[slot].view(parts, max_rank, -1)[part, :rank].float() @ x[row].float()
            of_part = b[slot, max_rank * columns.start : max_rank * end].view(max_rank, -1)[:rank]
            y[row, columns] = (whole + low @ of_part.float()).to(y.dtype)
