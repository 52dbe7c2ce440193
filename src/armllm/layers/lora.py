"""LoRA adapters beside the products that they change: several in one batch, each token with its own.

The adapters of a step lie in slots, one above another in one tensor per matrix. After each product one op
adds to every token what the adapter in its slot adds. Tokens without an adapter are not touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from armllm import kernels
from armllm.checkpoint.adapter import MatrixShape, plain_name
from armllm.environment import uses_huge_pages
from armllm.kernels._extension import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from torch import Tensor

    from armllm.checkpoint.adapter import Adapter, LowRank
    from armllm.layers.ranks import Cut

CHUNK = 256  # columns of a weight that are looked at at once
HEAD = "lm_head"


class MatrixProduct(Protocol):
    """y = x W^T + b, however W is stored."""

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, in_features]`` to ``[T, out_features]``, same dtype."""


class AdapterLinear:
    """A product, and what the adapters add for their tokens.

    With DoRA a row is ``f (W x + s B A x) + bias``, where f is the magnitude over the norm of ``W + s B A``.
    Its f is in ``held.b`` already, and ``held.norms`` has ``f - 1`` for the rest.

    ``cut``: which rows of each part the product has, and so of what adapters change.
    """

    def __init__(
        self,
        product: MatrixProduct,
        parts: Mapping[str, int],
        in_features: int,
        slots: AdapterSlots,
        cut: Cut | None,
        *,
        inputs_first: bool,
    ) -> None:
        self.product = product
        self.in_features = in_features
        self.whole = dict(parts)
        self.inputs_first = inputs_first
        self._cut = cut
        self.parts: dict[str, slice] = {}  # columns of the result
        first = 0
        for name, whole in parts.items():
            rows = whole if cut is None else cut.num_rows(whole)
            self.parts[name] = slice(first, first + rows)
            first += rows
        self.out_features = first
        self.held: kernels.LoraSlots | None = None  # once some adapter has changed it
        self._bias: Tensor | None = None
        self._slots = slots
        self._known: weakref.WeakKeyDictionary[Adapter, Tensor] = weakref.WeakKeyDictionary()

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, in_features]`` to ``[T, out_features]``, same dtype."""
        y = self.product(x)
        slots = self._slots.of_rows(len(x))
        if slots is not None and self.held is not None:
            kernels.add_lora(y, x if x.stride(-1) == 1 else x.contiguous(), self.held, slots)
        return y

    def fill(self, slot: int, adapter: Adapter) -> None:
        """Let a slot hold what an adapter changes here."""
        changes = {name: self._own(adapter.matrices[name]) for name in self.parts if name in adapter.matrices}
        if changes and self.held is None:
            self.held = self._slots.matrix([part.stop for part in self.parts.values()], self.in_features)
        if self.held is None:
            return
        norms = self._norms(adapter, changes)
        if norms is not None and self.held.norms is None:
            self.held = self.held._replace(norms=self._slots.norms(self.out_features), bias=self._bias)
        if self.held.norms is not None:
            self.held.norms[slot] = 0 if norms is None else norms - 1
        a, b, ranks = self.held[:3]
        ranks[slot] = 0
        for part, (name, columns) in enumerate(self.parts.items()):
            if name not in changes:
                continue
            change = changes[name]
            scaled = change.b.float() * change.scaling
            if norms is not None:
                scaled *= norms[columns, None]
            most, rank = self._slots.max_rank, len(change.a)
            ranks[slot, part] = rank
            a[slot, part * most : part * most + rank] = change.a
            of_part = b[slot, most * columns.start : most * columns.stop]
            of_part.view(most, -1)[:rank] = scaled.T

    def _own(self, change: LowRank) -> LowRank:
        """The rows of a change that this product has."""
        if self._cut is None:
            return change
        magnitude = None if change.magnitude is None else self._cut.take(change.magnitude)
        return dataclasses.replace(change, b=self._cut.take(change.b), magnitude=magnitude)

    def _norms(self, adapter: Adapter, changes: Mapping[str, LowRank]) -> Tensor | None:
        """DoRA's f ``[out_features]`` in fp32, 1 for parts that stay as they are; None without DoRA."""
        if all(change.magnitude is None for change in changes.values()):
            return None
        known = self._known.get(adapter)
        if known is None:
            known = self._known[adapter] = self._measure(changes)
        return known

    def _measure(self, changes: Mapping[str, LowRank]) -> Tensor:
        """The weight's columns are what the product makes of the unit vectors, however it is stored."""
        if self._bias is None:  # recorded steps go on with this one
            zero = torch.zeros(1, self.in_features, dtype=self._slots.dtype)
            self._bias = self.product(zero)[0].float()
        squares = torch.zeros(self.out_features)
        for first in range(0, self.in_features, CHUNK):
            size = min(CHUNK, self.in_features - first)
            columns = torch.cat(
                [self._columns(one, first, size) for one in _side_by_side(self.product)], dim=1
            )
            for name, change in changes.items():
                a = change.a[:, first : first + size].float()
                columns[:, self.parts[name]] += change.scaling * (a.T @ change.b.float().T)
            squares += columns.square().sum(0)
        norms = torch.ones(self.out_features)
        for name, change in changes.items():
            if change.magnitude is not None:
                own = self.parts[name]
                norms[own] = change.magnitude.float() / squares[own].sqrt()
        return norms

    def _columns(self, product: MatrixProduct, first: int, size: int) -> Tensor:
        """``[size, out]`` in fp32 of a product's weight."""
        # a product that rounds its inputs by one scale is exact for this input
        unit = getattr(product, "unit", 1.0)
        inputs = torch.zeros(size + 1, self.in_features, dtype=self._slots.dtype)
        inputs[torch.arange(size), first + torch.arange(size)] = unit
        outputs = product(inputs).float()
        return (outputs[:size] - outputs[size]) / unit


def _side_by_side(product: MatrixProduct) -> list[MatrixProduct]:
    return getattr(product, "products", None) or [product]


class AdapterSlots:
    """``count`` adapters, of rank ``max_rank`` at most, that one step may use.

    dtype: of the model and the factors. version: rises when tensors are made that later steps use.
    on_fill: is told of an adapter before a slot holds it.
    """

    def __init__(self, count: int, max_rank: int, dtype: torch.dtype) -> None:
        self.count = count
        self.max_rank = max_rank
        self.dtype = dtype
        self.version = 0
        self.products: list[AdapterLinear] = []
        self.on_fill: Callable[[int, Adapter], None] = lambda _slot, _adapter: None
        self._adapters: list[Adapter | None] = [None] * count
        self._used = [0] * count  # when, in steps
        self._step = 0
        self._memory: Tensor | None = None  # of the slots, what no matrix has yet
        self._rows: Mapping[int, Tensor] | None = None

    @property
    def num_bytes(self) -> int:
        """What full slots take in memory, if adapters change all matrices."""
        sizes = (shape.rows + shape.columns for shape in self.shapes().values())
        return self.count * self.max_rank * sum(sizes) * self.dtype.itemsize

    def shapes(self) -> dict[str, MatrixShape]:
        """The matrices that adapters can change, by `plain_name`."""
        return {
            name: MatrixShape(rows, product.in_features, product.inputs_first)
            for product in self.products
            for name, rows in product.whole.items()
        }

    def join(
        self,
        product: MatrixProduct,
        parts: Mapping[str, int],
        in_features: int,
        cut: Cut | None = None,
        *,
        inputs_first: bool = False,
    ) -> MatrixProduct:
        """The product of ``parts`` (full name to out_features) with what adapters add; the head as it is.

        ``cut``: the product has these rows of each part. inputs_first: as in `MatrixShape`.
        """
        plain = {plain_name(name): rows for name, rows in parts.items()}
        if HEAD in plain:
            return product
        self.products.append(AdapterLinear(product, plain, in_features, self, cut, inputs_first=inputs_first))
        return self.products[-1]

    def matrix(self, part_ends: Sequence[int], in_features: int) -> kernels.LoraSlots:
        """Slots for a matrix whose parts end there, which change nothing."""
        self.version += 1
        parts = len(part_ends)
        return kernels.LoraSlots(
            a=self._zeros(self.count, parts * self.max_rank, in_features),
            b=self._zeros(self.count, self.max_rank * part_ends[-1]),
            ranks=torch.zeros(self.count, parts, dtype=torch.int64),
            part_ends=torch.tensor(part_ends),
        )

    def _zeros(self, *shape: int) -> Tensor:
        """From the memory of all slots: a step reads much of it, which takes longer in small pages."""
        if self._memory is None:
            gaps = 2 * ALIGNMENT * len(self.products)
            memory = mmap.mmap(-1, self.num_bytes + gaps, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if uses_huge_pages():
                with contextlib.suppress(OSError):  # a kernel without them
                    memory.madvise(mmap.MADV_HUGEPAGE)
            self._memory = torch.frombuffer(memory, dtype=torch.uint8)
        size = -(-math.prod(shape) * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        taken, self._memory = self._memory[:size], self._memory[size:]
        return taken.view(self.dtype)[: math.prod(shape)].view(shape)

    def norms(self, out_features: int) -> Tensor:
        """DoRA's of a matrix, which change nothing."""
        self.version += 1
        return torch.zeros(self.count, out_features)

    def of_rows(self, num_rows: int) -> Tensor | None:
        """The slots of a step's inputs, which are all tokens or those whose final state is wanted; -1: none.

        None: no token has an adapter.
        """
        return None if self._rows is None else self._rows[num_rows]

    @contextlib.contextmanager
    def applied(
        self, adapters: Sequence[Adapter | None], counts: Sequence[int], wanted: Sequence[int]
    ) -> Iterator[None]:
        """A step within computes sequences with these adapters, of ``counts`` tokens each.

        The last layer goes on with ``wanted`` of them each. At most ``count`` adapters are different ones.
        """
        if all(adapter is None for adapter in adapters):
            yield
            return
        slots = self.hold(adapters)
        with self.applied_rows({sum(n): torch.from_numpy(np.repeat(slots, n)) for n in (wanted, counts)}):
            yield

    @contextlib.contextmanager
    def applied_rows(self, slots: Mapping[int, Tensor]) -> Iterator[None]:
        """A step within has rows with these slots, by how many rows there are."""
        self._rows = slots
        try:
            yield
        finally:
            self._rows = None

    @property
    def rows(self) -> Mapping[int, Tensor]:
        """The slots of the rows of the step that is computed, by how many rows there are."""
        return self._rows or {}

    def fill(self, slot: int, adapter: Adapter) -> None:
        """Let a slot hold an adapter."""
        for product in self.products:
            product.fill(slot, adapter)

    def hold(self, adapters: Sequence[Adapter | None]) -> npt.NDArray[np.int64]:
        """The slot of each, which holds it until the next step; -1 for None."""
        held = self._hold([adapter for adapter in dict.fromkeys(adapters) if adapter is not None])
        return np.array([-1 if adapter is None else held[adapter] for adapter in adapters])

    def _hold(self, adapters: Sequence[Adapter]) -> dict[Adapter, int]:
        """The slot of each; one that has none gets that which was not used for the longest time."""
        self._step += 1
        held = {adapter: slot for slot, adapter in enumerate(self._adapters) if adapter is not None}
        for adapter in adapters:
            if adapter in held:
                self._used[held[adapter]] = self._step
        for adapter in adapters:
            if adapter not in held:
                slot = min(range(self.count), key=self._used.__getitem__)
                self._adapters[slot] = None  # until it is whole
                self.on_fill(slot, adapter)
                self.fill(slot, adapter)
                self._adapters[slot] = adapter
                self._used[slot] = self._step
                held[adapter] = slot
        return {adapter: held[adapter] for adapter in adapters}


_current: ContextVar[AdapterSlots | None] = ContextVar("adapter_slots", default=None)


@contextlib.contextmanager
def building_with(slots: AdapterSlots | None) -> Iterator[None]:
    """Products that are made within take adapters from these slots; None: they take none."""
    token = _current.set(slots)
    try:
        yield
    finally:
        _current.reset(token)


def current_slots() -> AdapterSlots | None:
    """Those that the model which is being built takes adapters from."""
    return _current.get()
