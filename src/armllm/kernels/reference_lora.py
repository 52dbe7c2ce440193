"""Low-rank adapters in plain torch: the function of `armllm.kernels.lora`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.kernels.lora import LoraSlots


def add_lora(y: Tensor, x: Tensor, adapters: LoraSlots, slots: Tensor) -> None:
    """As `armllm.kernels.add_lora`."""
    a, b, ranks, part_ends, norms, bias = adapters
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
            if y.dtype is torch.bfloat16:
                low = low.bfloat16().float()
            of_part = b[slot, max_rank * columns.start : max_rank * end].view(max_rank, -1)[:rank]
            y[row, columns] = (whole + low @ of_part.float()).to(y.dtype)
