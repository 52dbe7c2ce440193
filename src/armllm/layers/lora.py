"""LoRA adapters beside the products that they change: several in one batch, each token with its own.

The adapters of a step lie in slots, one above another in one tensor per matrix. A step sorts its tokens by
slot and computes two batched products for each matrix. Tokens without an adapter are not touched.
"""

from __future__ import annotations

import contextlib
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

from armllm.checkpoint.adapter import plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from torch import Tensor

    from armllm.checkpoint.adapter import Adapter, LowRank

CHUNK = 256  # columns of a weight that are looked at at once
HEAD = "lm_head"


class MatrixProduct(Protocol):
    """y = x W^T + b, however W is stored."""

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, in_features]`` to ``[T, out_features]``, same dtype."""


class AdapterRows(NamedTuple):
    """Which tokens of a product's inputs have adapters, U of them, and where they lie sorted by slot.

    slots: those of the step. rank: the greatest of theirs. length: tokens per slot, as many as the fullest
    has. tokens int64 ``[U]``: rows of the inputs; None: all. gather int64 ``[slots * length]``: the row at
    each place; None: all in order. places int64 ``[U]``: the place of each token. slot_of int64 ``[U]``.
    """

    slots: slice
    rank: int
    length: int
    tokens: Tensor | None
    gather: Tensor | None
    places: Tensor | None
    slot_of: Tensor


class AdapterFactors(NamedTuple):
    """The slots' factors of one matrix: ``a[slots, rank, in]`` and ``b[slots, rank, out]``."""

    a: Tensor
    b: Tensor


class AdapterLinear:
    """A product, and what the adapters add for their tokens.

    With DoRA a row is ``f (W x + s B A x) + bias``, where f is the magnitude over the norm of ``W + s B A``.
    Its f is in ``b`` already, and ``norms`` ``[slots, out]`` holds ``f - 1`` for the rest.
    """

    def __init__(
        self,
        product: MatrixProduct,
        parts: Mapping[str, int],
        in_features: int,
        slots: AdapterSlots,
    ) -> None:
        self.product = product
        self.in_features = in_features
        self.out_features = sum(parts.values())
        self.parts: dict[str, slice] = {}  # columns of the result
        first = 0
        for name, rows in parts.items():
            self.parts[name] = slice(first, first + rows)
            first += rows
        self.changed: dict[str, AdapterFactors] = {}  # of parts that some adapter has changed
        self.bias: Tensor | None = None
        self.norms: Tensor | None = None
        self._slots = slots
        self._known: weakref.WeakKeyDictionary[Adapter, Tensor] = weakref.WeakKeyDictionary()

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, in_features]`` to ``[T, out_features]``, same dtype."""
        y = self.product(x)
        rows = self._slots.rows_of(len(x))
        if rows is None or not self.changed:
            return y
        adapted = y if rows.tokens is None else y.index_select(0, rows.tokens)
        if self.norms is not None and self.bias is not None:
            adapted.addcmul_(adapted - self.bias, self.norms.index_select(0, rows.slot_of).to(y.dtype))
        sorted_x = (x if rows.gather is None else x.index_select(0, rows.gather)).to(self._slots.dtype)
        sorted_x = sorted_x.view(-1, rows.length, self.in_features)
        for name, (a, b) in self.changed.items():
            low = torch.bmm(sorted_x, a[rows.slots, : rows.rank].transpose(1, 2))
            change = torch.bmm(low, b[rows.slots, : rows.rank]).flatten(0, 1)
            if rows.places is not None:
                change = change.index_select(0, rows.places)
            adapted[:, self.parts[name]] += change
        return adapted if rows.tokens is None else y.index_copy_(0, rows.tokens, adapted)

    def fill(self, slot: int, adapter: Adapter) -> None:
        """Let a slot hold what an adapter changes here."""
        changes = {name: adapter.matrices[name] for name in self.parts if name in adapter.matrices}
        norms = self._norms(adapter, changes)
        if norms is not None and self.norms is None:
            self.norms = torch.zeros(self._slots.count, self.out_features)
        if self.norms is not None:
            self.norms[slot] = 0 if norms is None else norms - 1
        for name, columns in self.parts.items():
            if name not in changes:
                if name in self.changed:
                    self.changed[name].b[slot] = 0
                continue
            change = changes[name]
            if name not in self.changed:
                self.changed[name] = AdapterFactors(
                    self._slots.zeros(self.in_features), self._slots.zeros(columns.stop - columns.start)
                )
            scaled = change.b.float() * change.scaling
            if norms is not None:
                scaled *= norms[columns, None]
            for factor, own in zip(self.changed[name], (change.a, scaled.T), strict=True):
                factor[slot] = 0
                factor[slot, : len(own)] = own

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
        zero = torch.zeros(1, self.in_features, dtype=self._slots.model_dtype)
        self.bias = self.product(zero)[0]
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
        inputs = torch.zeros(size + 1, self.in_features, dtype=self._slots.model_dtype)
        inputs[torch.arange(size), first + torch.arange(size)] = unit
        outputs = product(inputs).float()
        return (outputs[:size] - outputs[size]) / unit


def _side_by_side(product: MatrixProduct) -> list[MatrixProduct]:
    return getattr(product, "products", None) or [product]


class AdapterSlots:
    """``count`` adapters, of rank ``max_rank`` at most, that one step may use.

    They are computed in ``dtype``; ``model_dtype`` is that of inputs and results.
    """

    def __init__(self, count: int, max_rank: int, dtype: torch.dtype, model_dtype: torch.dtype) -> None:
        self.count = count
        self.max_rank = max_rank
        self.dtype = dtype
        self.model_dtype = model_dtype
        self.products: list[AdapterLinear] = []
        self._adapters: list[Adapter | None] = [None] * count
        self._used = [0] * count  # when, in steps
        self._step = 0
        self._rows: dict[int, AdapterRows | None] | None = None

    @property
    def num_bytes(self) -> int:
        """What full slots take in memory, if adapters change all matrices."""
        sizes = (rows + columns for rows, columns in self.shapes().values())
        return self.count * self.max_rank * sum(sizes) * self.dtype.itemsize

    def shapes(self) -> dict[str, tuple[int, int]]:
        """The matrices that adapters can change: (out, in) by `plain_name`."""
        return {
            name: (columns.stop - columns.start, product.in_features)
            for product in self.products
            for name, columns in product.parts.items()
        }

    def join(self, product: MatrixProduct, parts: Mapping[str, int], in_features: int) -> MatrixProduct:
        """The product of ``parts`` (full name to out_features) with what adapters add; the head as it is."""
        plain = {plain_name(name): rows for name, rows in parts.items()}
        if HEAD in plain:
            return product
        self.products.append(AdapterLinear(product, plain, in_features, self))
        return self.products[-1]

    def zeros(self, features: int) -> Tensor:
        """``[count, max_rank, features]``: a factor that changes nothing."""
        return torch.zeros(self.count, self.max_rank, features, dtype=self.dtype)

    def rows_of(self, num_rows: int) -> AdapterRows | None:
        """Which of a step's inputs have adapters: all tokens, or those whose final state is wanted."""
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
        held = self._hold([adapter for adapter in dict.fromkeys(adapters) if adapter is not None])
        slots = np.array([-1 if adapter is None else held[adapter] for adapter in adapters])
        self._rows = {int(sum(n)): self._sort(np.repeat(slots, n)) for n in (wanted, counts)}
        try:
            yield
        finally:
            self._rows = None

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
                for product in self.products:
                    product.fill(slot, adapter)
                self._adapters[slot] = adapter
                self._used[slot] = self._step
                held[adapter] = slot
        return {adapter: held[adapter] for adapter in adapters}

    def _sort(self, slots: npt.NDArray[np.int64]) -> AdapterRows | None:
        """Places for tokens with these slots, -1 for none."""
        (tokens,) = np.nonzero(slots >= 0)
        if not len(tokens):
            return None
        of_token = slots[tokens]
        first, last = int(of_token.min()), int(of_token.max())
        counts = np.bincount(of_token - first)
        length = int(counts.max())
        order = np.argsort(of_token, kind="stable")
        places = np.empty(len(tokens), dtype=np.int64)
        before = np.cumsum(counts) - counts
        places[order] = (
            np.arange(len(tokens)) - before[of_token[order] - first] + (of_token[order] - first) * length
        )
        gather = np.zeros(len(counts) * length, dtype=np.int64)
        gather[places] = tokens
        alone, everywhere = first == last, len(tokens) == len(slots)
        ranks = [one.rank for one in self._adapters[first : last + 1] if one is not None]
        return AdapterRows(
            slots=slice(first, last + 1),
            rank=max(ranks),
            length=length,
            tokens=None if everywhere else torch.from_numpy(tokens),
            gather=None if alone and everywhere else torch.from_numpy(gather),
            places=None if alone else torch.from_numpy(places),
            slot_of=torch.from_numpy(of_token),
        )


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
