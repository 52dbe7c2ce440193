"""Weights of one checkpoint by their names, checked before any is read."""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from armllm.checkpoint.gguf_blocks import BLOCKS
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from armllm.checkpoint.integer_weight import IntegerWeight
    from armllm.checkpoint.scheme import Scheme
    from armllm.checkpoint.tensors import Tensors

FLOATING = ("F32", "F16", "BF16")
READABLE = (*FLOATING, *BLOCKS)  # GGUF's blocks come as fp32


class WeightFormat(Protocol):
    """How matrices are stored. ``weights`` are at the scope of the layer, ``name`` is that of the matrix."""

    method: str  # quant_method in config.json, or how else users call it

    def __str__(self) -> str:
        """What it is, for people."""

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:
        """What the matrix takes in memory, or None if it is a floating-point one."""

    def claim(self, weights: Weights, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """Note what is missing or wrong, without reading data."""

    def read(self, weights: Weights, name: str, shape: tuple[int, int], scheme: Scheme) -> IntegerWeight:
        """The matrix ``[out_features, in_features]``; CheckpointError says what is wrong with its data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """Quantised matrices that lie side by side: names below ``prefix`` and rows."""

    prefix: str
    parts: dict[str, int]
    in_features: int
    scheme: Scheme
    bias: bool


class Weights:
    """Tensors of one checkpoint in one dtype, by names under a prefix.

    quantization: how matrices of linear layers are stored, or are to be; None: in floating point. watch:
    called with the full name of each part of a product and its inputs, whenever the model computes it. A
    model is built twice from these: once by `check`, on torch's meta device, which finds all that is missing
    or wrong without reading any data; then for real.
    """

    def __init__(
        self,
        checkpoint: Tensors,
        dtype: torch.dtype,
        device: str = "cpu",
        *,
        root: Weights | None = None,
        prefix: str = "",
        quantization: WeightFormat | None = None,
        watch: Callable[[str, Tensor], None] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.device = device
        self.prefix = prefix
        self.quantization = quantization
        self.watch = watch
        self._root = root or self
        if root is None:
            self.problems: list[str] = []
            self.taken: set[str] = set()
            self.num_bytes = 0
            self.num_parameters = 0
            self.schemes: dict[str, Scheme] = {}  # of the quantised matrices, by their full names
            self.rounding_errors: list[float] = []
            self.dense: set[str] = set()  # tensors that are used as they are, by their full names
            self.products: list[Product] = []  # of quantised matrices, in order

    def scope(self, name: str, *, optional: bool = False) -> Weights:
        """The tensors below ``name``; if it is ``optional`` and there are none, these ones."""
        prefix = f"{self.prefix}{name}."
        if optional and not any(known.startswith(prefix) for known in self.checkpoint.names()):
            return self
        return Weights(
            self.checkpoint,
            self.dtype,
            self.device,
            root=self._root,
            prefix=prefix,
            quantization=self.quantization,
            watch=self.watch,
        )

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this tensor."""
        return self.prefix + name in self.checkpoint.names()

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape in the wanted dtype; mapped, not copied, where that is the stored one."""
        full_name = self.claim(name, shape)
        if self.device == "meta":
            return torch.empty(shape, dtype=self.dtype, device="meta")
        return self.checkpoint.read(full_name).to(self.dtype)

    def concatenate(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """Several tensors in one, along their first dimension."""
        full_names = [self.claim(name, shape) for name, shape in zip(names, shapes, strict=True)]
        sizes = [shape[0] for shape in shapes]
        whole = torch.empty((sum(sizes), *shapes[0][1:]), dtype=self.dtype, device=self.device)
        if self.device != "meta":
            for part, full_name in zip(torch.split(whole, sizes), full_names, strict=True):
                part.copy_(self.checkpoint.read(full_name))
        return whole

    def claim(
        self,
        name: str,
        *shapes: tuple[int, ...],
        dtypes: tuple[str, ...] = READABLE,
        num_bytes: int | None = None,
    ) -> str:
        """Note that the model uses a tensor, and what is wrong with it: shape (the first, or another), dtype.

        num_bytes: what it takes in memory, if it is not read as it is. Returns its full name.
        """
        full_name = self.prefix + name
        root, shape = self._root, shapes[0]
        root.taken.add(full_name)
        root.num_bytes += torch.Size(shape).numel() * self.dtype.itemsize if num_bytes is None else num_bytes
        if num_bytes is None:
            root.num_parameters += torch.Size(shape).numel()
            root.dense.add(full_name)
        if full_name not in self.checkpoint.names():
            root.problems.append(f"tensor {full_name} is missing")
            return full_name
        dtype, stored_shape = self.checkpoint.describe(full_name)
        where = self.checkpoint.where(full_name)
        if stored_shape not in shapes:
            root.problems.append(
                f"tensor {full_name} in {where.name} has shape {list(stored_shape)},"
                f" config.json wants {list(shape)}"
            )
        if dtype not in dtypes:
            known = dtypes if dtypes is not READABLE else FLOATING
            root.problems.append(
                f"tensor {full_name} in {where.name} has dtype {dtype}, not one of {', '.join(known)}"
            )
        return full_name

    def claim_matrix(self, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """Note that the model uses a quantised matrix; `WeightFormat.claim` looks at its tensors."""
        if self.quantization is None:
            raise ValueError("the checkpoint is not quantised")
        self.note_scheme(name, shape, scheme)
        self.quantization.claim(self, name, shape, scheme)

    def note_scheme(self, name: str, shape: tuple[int, ...], scheme: Scheme) -> None:
        """Keep what a quantised matrix is in memory."""
        self._root.schemes[self.prefix + name] = scheme
        self._root.num_parameters += torch.Size(shape).numel()

    def note_product(self, parts: Mapping[str, int], in_features: int, scheme: Scheme, *, bias: bool) -> None:
        """Keep that these matrices (name to out_features) are one product."""
        self._root.products.append(
            Product(prefix=self.prefix, parts=dict(parts), in_features=in_features, scheme=scheme, bias=bias)
        )

    def read(self, name: str) -> Tensor:
        """A tensor as it is stored, mapped from its file."""
        return self.checkpoint.read(self.prefix + name)

    def ignore(self, name: str) -> None:
        """Note that a tensor carries nothing."""
        self._root.taken.add(self.prefix + name)

    def stored_type(self, name: str) -> str:
        """A tensor's dtype as the file has it; empty where there is no such tensor."""
        return self.checkpoint.describe(self.prefix + name)[0] if self.has(name) else ""

    def error(self, name: str, message: str) -> CheckpointError:
        """A CheckpointError that names file and tensor."""
        full_name = self.prefix + name
        where = self.checkpoint.where(full_name) if self.has(name) else self.checkpoint.folder
        return CheckpointError(f"{where}: tensor {full_name} {message}")

    def note_rounding(self, error: float) -> None:
        """Keep the relative error of a quantised matrix that had to be rounded anew."""
        self._root.rounding_errors.append(error)

    def finish_check(self, ignored: Sequence[str] = ()) -> None:
        """Raise CheckpointError if a tensor was missing or wrong, or is in the files and not in the model.

        ``ignored``: patterns of names that carry nothing (tables that are computed, a head that is tied).
        """
        problems = list(self._root.problems)
        unknown = sorted(self.checkpoint.names() - self._root.taken)
        problems += [
            f"tensor {name} is not part of the model that config.json describes"
            for name in unknown
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignored)
        ]
        if problems:
            more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
            raise CheckpointError(f"{self.checkpoint.folder}: {problems[0]}{more}")
