"""Low-rank adapters of several slots in one call, against float64 torch."""

from __future__ import annotations

import pytest
import torch

from armllm import kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MAX_RANK = 9
# rows, in_features, columns of the parts
SIZES = [(1, 1, (1,)), (5, 33, (65,)), (40, 129, (40, 7, 70)), (70, 64, (300, 64))]


def problem(size, dtype, *, dora=False, slots=4):
    """Random adapters of all ranks, and rows for them and for none, with gaps after the rows of x and y."""
    rows, in_features, widths = size
    torch.manual_seed(rows)
    ends = torch.tensor(widths).cumsum(0)
    columns = int(ends[-1])
    return {
        "y": torch.randn(rows, columns + 3).to(dtype)[:, :columns],
        "x": torch.randn(rows, in_features + 5).to(dtype)[:, :in_features],
        "a": (torch.randn(slots, len(widths) * MAX_RANK, in_features) / in_features**0.5).to(dtype),
        "b": torch.randn(slots, MAX_RANK * columns).to(dtype),
        "ranks": torch.randint(MAX_RANK + 1, (slots, len(widths))),
        "part_ends": ends,
        "slots": torch.randint(-1, slots, (rows,)),
        "norms": torch.randn(slots, columns) if dora else None,
        "bias": torch.randn(columns) if dora else None,
    }


def add(tensors):
    held = kernels.LoraSlots(**{name: tensors[name] for name in kernels.LoraSlots._fields})
    kernels.add_lora(tensors["y"], tensors["x"], held, tensors["slots"])


def expected(*, y, x, a, b, ranks, part_ends, slots, norms, bias):
    """In float64, the size of the terms that are added, and the size of those of ``low``."""
    values, sizes = y.double(), y.double().abs()
    kept = torch.zeros_like(values)
    for row, slot in enumerate(slots.tolist()):
        start = 0
        for part, end in enumerate(part_ends.tolist()):
            rank = int(ranks[slot, part])
            if slot >= 0 and rank > 0:
                if norms is not None:
                    plain = values[row, start:end] - bias[start:end]
                    values[row, start:end] += plain * norms[slot, start:end]
                    sizes[row, start:end] += (plain * norms[slot, start:end]).abs()
                factor = a[slot, part * MAX_RANK :][:rank].double()
                other = b[slot, MAX_RANK * start : MAX_RANK * end].view(MAX_RANK, -1)[:rank].double()
                low = factor @ x[row].double()
                values[row, start:end] += low @ other
                kept[row, start:end] = low.abs() @ other.abs()
                sizes[row, start:end] += factor.abs() @ x[row].double().abs() @ other.abs()
            start = end
    return values, sizes, kept


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_it_adds_what_float64_adds(size, dtype, dora):
    """Catches a part, a slot or a rank in another's place, and a tail that is left out."""
    tensors = problem(size, dtype, dora=dora)
    want, sizes, kept = expected(**tensors)
    before = tensors["y"].clone()
    add(tensors)
    rounded = torch.finfo(dtype).eps * (want.abs() + (sizes if dora else 0))
    if dtype is torch.bfloat16:
        rounded += torch.finfo(dtype).eps / 2 * kept
    assert ((tensors["y"].double() - want).abs() <= rounded + 60 * 2**-24 * sizes + 1e-6).all()
    assert torch.equal(tensors["y"][tensors["slots"] < 0], before[tensors["slots"] < 0])


def test_the_product_with_a_is_rounded_to_bfloat16():
    """Catches a target that computes otherwise than the one with BFDOT: 1 + 2^-8 is 1 in bfloat16."""
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    tensors = {
        "y": -one,
        "x": torch.tensor([[1, 2**-8]], dtype=torch.bfloat16),
        "a": torch.ones(1, 1, 2, dtype=torch.bfloat16),
        "b": one.clone(),
        "ranks": torch.ones(1, 1, dtype=torch.int64),
        "part_ends": torch.ones(1, dtype=torch.int64),
        "slots": torch.zeros(1, dtype=torch.int64),
        "norms": None,
        "bias": None,
    }
    add(tensors)
    assert tensors["y"].item() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_beside_any_others(dtype):
    tensors = problem((70, 100, (130, 60)), dtype)
    rows = {name: tensors[name].clone() for name in ("y", "x", "slots")}
    add(tensors)
    for first, last in ((0, 1), (3, 5), (10, 70)):
        part = tensors | {name: rows[name][first:last].clone() for name in rows}
        add(part)
        assert torch.equal(part["y"], tensors["y"][first:last])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("slots", torch.tensor([0, 4, 1]), r"slots\[1\] is 4, expected a slot below 4"),
        ("slots", torch.tensor([0, -2, 1]), r"slots\[1\] is -2"),
        ("ranks", torch.tensor([[0, 1]] * 3 + [[2, 10]]), r"ranks\[3, 1\] is 10, expected 0 to 9"),
        ("part_ends", torch.tensor([40, 39]), r"part_ends\[1\] is 39"),
        ("part_ends", torch.tensor([10, 40]), "part_ends ends at 40"),
        ("part_ends", torch.tensor([10, 20, 30, 47]), "a has 18 rows for 4 parts"),
        ("b", torch.zeros(4, 5), "b has shape"),
        ("norms", torch.zeros(4, 46), "norms has shape"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(name, value, message):
    tensors = problem((3, 20, (40, 7)), torch.float32, dora=True)
    before = tensors["y"].clone()
    with pytest.raises(ValueError, match=message):
        add(tensors | {name: value})
    assert torch.equal(tensors["y"], before)
