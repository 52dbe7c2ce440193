"""What a model is built from: tensors of one checkpoint by their names, looked at first and read then.

A model takes its weights from a `Weights` twice. `CheckingWeights` finds all that is missing or wrong, and
what the model takes in memory, without reading any data; `LoadingWeights` reads.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import fnmatch
import math
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from armllm.checkpoint.dummy import DummyTensors
from armllm.checkpoint.gguf_blocks import BLOCKS
from armllm.checkpoint.tensors import Fp8Tensors
from armllm.errors import CheckpointError
from armllm.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from armllm.checkpoint.matrix import Fp8Matrix, IntegerWeight, PackedMatrix
    from armllm.checkpoint.scheme import Scheme
    from armllm.checkpoint.tensors import Tensors

    class OwnRows(Protocol):
        """Which rows of a product's matrices this process computes (`layers.ranks.Cut`)."""

        def num_rows(self, count: int) -> int:
            """How many of ``count`` rows."""

        def take(self, whole: Tensor) -> Tensor:
            """These rows, copied."""


FLOATING = ("F32", "F16", "BF16")
READABLE = (*FLOATING, *BLOCKS)  # GGUF's blocks come as fp32
MOST_PROBLEMS = 1000  # a model that has nothing to do with the files is not built to its end
LARGEST_TENSOR = 1 << 60  # elements
CACHE_SCALES = ("*.[kqv]_scale", "*.kv_scale", "*.[kqv]_zero_point", "*.[kv]_proj.output_scale")
"""Tensors for a KV cache in FP8, as compressed-tensors, ModelOpt and AutoFP8 call them: ours needs none."""


class WeightFormat(Protocol):
    """How matrices are stored. ``weights`` are at the scope of the layer, ``name`` is that of the matrix."""

    method: str  # quant_method in config.json, or how else users call it

    def __str__(self) -> str:
        """What it is, for people."""

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:
        """What the matrix takes in memory, or None if it is a floating-point one."""

    def claim(self, weights: CheckingWeights, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """Note what is missing or wrong, without reading data."""

    def load(
        self, weights: LoadingWeights, parts: Mapping[str, int], in_features: int, scheme: Scheme
    ) -> Sequence[tuple[list[str], IntegerWeight | PackedMatrix]]:
        """The matrices of ``parts`` (name to out_features), joined where they can be, each with its names.

        CheckpointError says what is wrong with their data.
        """


class StackedFormat(Protocol):
    """How several matrices are stored in one tensor."""

    def claim_stack(
        self, weights: CheckingWeights, name: str, shape: tuple[int, ...], scheme: Scheme
    ) -> None:
        """Note what is missing or wrong of ``[count, out_features, in_features]``."""

    def read_stack(self, weights: LoadingWeights, name: str) -> Sequence[IntegerWeight]:
        """All matrices; CheckpointError says what is wrong with their data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """Quantized matrices that lie side by side: names below ``prefix`` and rows. bias: see `matrices`."""

    prefix: str
    parts: dict[str, int]
    in_features: int
    scheme: Scheme
    bias: bool | None


@dataclasses.dataclass(kw_only=True)
class Inventory:
    """What a model takes of a checkpoint. Tensors and matrices by their full names.

    num_bytes: what all of it takes in memory. schemes: of the quantized matrices. dense: tensors that are
    used as they are. transposed: those with `inputs_first`. products: of quantized matrices, in order.
    repeats: what `Weights.repeats` found. problems: what is missing or wrong.
    """

    taken: set[str] = dataclasses.field(default_factory=set)
    num_bytes: int = 0
    num_parameters: int = 0
    schemes: dict[str, Scheme] = dataclasses.field(default_factory=dict)
    dense: set[str] = dataclasses.field(default_factory=set)
    transposed: set[str] = dataclasses.field(default_factory=set)
    products: list[Product] = dataclasses.field(default_factory=list)
    repeats: dict[tuple[str, str], bool] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)


class Weights(abc.ABC):
    """Tensors of one checkpoint in one dtype, by names under a prefix.

    quantization: how matrices of linear layers are stored, or are to be; None: in floating point. watch:
    called with the full name of each part of a product and its inputs, whenever the model computes it. own:
    matrices come with these rows only; None: with all. inventory: what the check found, or is to find.
    inputs_first: matrices of floating-point numbers are stored transposed (GPT-2).
    """

    watch: Callable[[str, Tensor], None] | None = None
    own: OwnRows | None = None
    inputs_first = False

    def __init__(
        self,
        checkpoint: Tensors,
        dtype: torch.dtype,
        quantization: WeightFormat | None = None,
        *,
        inventory: Inventory | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.quantization = quantization
        self.inventory = inventory or Inventory()
        self.prefix = ""

    def scope(self, name: str, *, optional: bool = False) -> Weights:
        """The tensors below ``name``; if it is ``optional`` and there are none, these ones."""
        prefix = f"{self.prefix}{name}."
        if optional and not any(known.startswith(prefix) for known in self.checkpoint.names()):
            return self
        scoped = copy.copy(self)
        scoped.prefix = prefix
        return scoped

    def cut(self, own: OwnRows) -> Weights:
        """The same tensors, of which `concatenate` and `matrices` give these rows only."""
        found = copy.copy(self)
        found.own = own
        return found

    def transposed(self) -> Weights:
        """The same tensors with `inputs_first`."""
        found = copy.copy(self)
        found.inputs_first = True
        return found

    def in_dtype(self, dtype: torch.dtype) -> Weights:
        """The same tensors in another dtype."""
        found = copy.copy(self)
        found.dtype = dtype
        return found

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this tensor."""
        return self.prefix + name in self.checkpoint.names()

    def stored_type(self, name: str) -> str:
        """A tensor's dtype as the file has it; empty where there is no such tensor."""
        return self.checkpoint.describe(self.prefix + name)[0] if self.has(name) else ""

    def repeats(self, name: str, other: Weights, other_name: str) -> bool:
        """Whether a tensor, if it is stored, has the values of another one; the first to ask reads both."""
        if not self.has(name) or not other.has(other_name):
            return True
        found, names = self.inventory.repeats, (self.prefix + name, other.prefix + other_name)
        if names not in found:
            one, two = map(self.checkpoint.read, names)
            found[names] = one.shape == two.shape and torch.equal(one, two.to(one.dtype))
        return found[names]

    def error(self, name: str, message: str) -> CheckpointError:
        """A CheckpointError that names file and tensor."""
        full_name = self.prefix + name
        where = self.checkpoint.where(full_name) if self.has(name) else self.checkpoint.folder
        return CheckpointError(f"{where}: tensor {full_name} {message}")

    @abc.abstractmethod
    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape in the wanted dtype."""

    @abc.abstractmethod
    def concatenate(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """Several tensors in one, along their first dimension."""

    @abc.abstractmethod
    def stored(
        self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[int, Iterator[Tensor]] | None:
        """What `concatenate` would join: how many rows, and the parts in the dtypes of the files.

        A part may be gone once the next one is read. None while checking, which `concatenate` does.
        """

    @abc.abstractmethod
    def fp8(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> Sequence[Fp8Matrix] | None:
        """The tensors as E4M3 with scales; None where one comes only decoded, and then `stored` has them.

        While checking, none come, and what decoding them would take more is left out of the memory.
        """

    def fp8_group(self, names: Sequence[str]) -> int | None:
        """How many inputs share a scale, 0: all; None where the tensors can't be one matrix of E4M3."""
        if not isinstance(self.checkpoint, Fp8Tensors) or not all(map(self.has, names)) or self.inputs_first:
            return None
        groups = {self.checkpoint.fp8_group(self.prefix + name) for name in names}
        return groups.pop() if len(groups) == 1 else None

    @abc.abstractmethod
    def matrices(
        self, parts: Mapping[str, int], in_features: int, scheme: Scheme, *, bias: bool | None
    ) -> Sequence[tuple[list[str], IntegerWeight | PackedMatrix]]:
        """The quantized matrices of one product: those of ``parts`` (name to out_features).

        They come joined where they can be, each with the names of its parts. Without ``bias`` the checkpoint
        may have biases of zeros; None: the caller takes them by itself.
        """

    @abc.abstractmethod
    def slices(
        self, name: str, count: int, shape: tuple[int, int], scheme: Scheme, *, transposed: bool = False
    ) -> Sequence[Tensor]:
        """The floating-point matrices of a tensor ``[count, *shape]``, each of which is to be rounded.

        ``transposed``: the shape has the inputs first, and so have the matrices.
        """

    @abc.abstractmethod
    def stack(
        self, form: StackedFormat, name: str, count: int, shape: tuple[int, int], scheme: Scheme
    ) -> Sequence[IntegerWeight]:
        """The ``count`` quantized matrices of this shape that ``name`` holds; while checking, none."""


class CheckingWeights(Weights):
    """Reads nothing: tensors come on torch's meta device, and no quantized matrices come at all.

    ``inventory`` holds what the model has requested, and ``finish`` says whether it was all there.
    """

    def take(self, name: str, *shape: int) -> Tensor:
        self.claim(name, shape)
        return torch.empty(shape, dtype=self.dtype, device="meta")

    def concatenate(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        for name, shape in zip(names, shapes, strict=True):
            self.claim(name, shape)
        rows = sum(shape[0] for shape in shapes)
        return torch.empty((rows, *shapes[0][1:]), dtype=self.dtype, device="meta")

    def stored(
        self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[int, Iterator[Tensor]] | None:
        del names, shapes  # `concatenate` notes them
        return None

    def fp8(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> Sequence[Fp8Matrix] | None:
        size = self.fp8_group(names)
        for rows, inputs in shapes if size is not None else ():
            scales = rows * (-(-inputs // size) if size else 1)
            self.inventory.num_bytes -= rows * inputs * (self.dtype.itemsize - 1) - scales * 4
        return None

    def matrices(
        self, parts: Mapping[str, int], in_features: int, scheme: Scheme, *, bias: bool | None
    ) -> Sequence[tuple[list[str], IntegerWeight | PackedMatrix]]:
        if self.quantization is None:
            raise ValueError("the checkpoint is not quantized")
        self.inventory.products.append(
            Product(prefix=self.prefix, parts=dict(parts), in_features=in_features, scheme=scheme, bias=bias)
        )
        for name, rows in parts.items():
            self._note_scheme(name, (rows, in_features), scheme)
            self.quantization.claim(self, name, (rows, in_features), scheme)
            if bias:
                self.claim(f"{name}.bias", (rows,))
            elif bias is False and self.has(f"{name}.bias"):
                self.claim(f"{name}.bias", (rows,), num_bytes=0)
        return []

    def slices(
        self, name: str, count: int, shape: tuple[int, int], scheme: Scheme, *, transposed: bool = False
    ) -> Sequence[Tensor]:
        matrix = shape[::-1] if transposed else shape
        self.claim(name, (count, *shape), num_bytes=count * scheme.num_bytes(*matrix))
        self._note_scheme(name, (count, *shape), scheme)
        return []

    def stack(
        self, form: StackedFormat, name: str, count: int, shape: tuple[int, int], scheme: Scheme
    ) -> Sequence[IntegerWeight]:
        form.claim_stack(self, name, (count, *shape), scheme)
        self._note_scheme(name, (count, *shape), scheme)
        return []

    def claim(
        self,
        name: str,
        *shapes: tuple[int, ...],
        dtypes: tuple[str, ...] = READABLE,
        num_bytes: int | None = None,
    ) -> None:
        """Note that the model uses a tensor, and what is wrong with it: shape (the first, or another), dtype.

        num_bytes: what it takes in memory, if it is not read as it is.
        """
        full_name = self.prefix + name
        if self.inputs_first and name.endswith("weight") and dtypes is READABLE:
            shapes = tuple(shape[::-1] for shape in shapes)
            self.inventory.transposed.add(full_name)
        seen, shape = self.inventory, shapes[0]
        if math.prod(shape) > LARGEST_TENSOR:
            raise self.error(name, f"would have shape {list(shape)} by config.json: no tensor is that large")
        seen.taken.add(full_name)
        seen.num_bytes += math.prod(shape) * self.dtype.itemsize if num_bytes is None else num_bytes
        if num_bytes is None:
            seen.num_parameters += math.prod(shape)
            seen.dense.add(full_name)
        if isinstance(self.checkpoint, DummyTensors):
            self.checkpoint.add(full_name, shape)
        if full_name not in self.checkpoint.names():
            packed_names = {f"{full_name}_packed", f"{full_name.removesuffix('weight')}qweight"}
            packed = not packed_names.isdisjoint(self.checkpoint.names())
            how = "is there only packed, which is not supported for it" if packed else "is missing"
            self._note_problem(f"tensor {full_name} {how}")
            return
        dtype, stored_shape = self.checkpoint.describe(full_name)
        where = self.checkpoint.where(full_name)
        if stored_shape not in shapes:
            self._note_problem(
                f"tensor {full_name} in {where.name} has shape {list(stored_shape)},"
                f" config.json wants {list(shape)}"
            )
        if dtype not in dtypes:
            known = dtypes if dtypes is not READABLE else FLOATING
            self._note_problem(
                f"tensor {full_name} in {where.name} has dtype {dtype}, not one of {', '.join(known)}"
            )

    def ignore(self, name: str) -> None:
        """Note that a tensor carries nothing."""
        self.inventory.taken.add(self.prefix + name)

    def finish(self, ignored: Sequence[str] = ()) -> Inventory:
        """The inventory; CheckpointError if a tensor was missing or wrong, or is in the files and not used.

        ``ignored``: patterns of names that carry nothing (tables that are computed, a head that is tied).
        """
        unknown = sorted(self.checkpoint.names() - self.inventory.taken)
        self.inventory.problems += [
            f"tensor {name} is not part of the model that config.json describes"
            for name in unknown
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in (*ignored, *CACHE_SCALES))
        ]
        if self.inventory.problems:
            raise self._refusal()
        return self.inventory

    def _note_problem(self, problem: str) -> None:
        self.inventory.problems.append(problem)
        if len(self.inventory.problems) >= MOST_PROBLEMS:
            raise self._refusal()

    def _refusal(self) -> CheckpointError:
        problems = self.inventory.problems
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        return CheckpointError(f"{self.checkpoint.folder}: {problems[0]:.400}{more}")

    def _note_scheme(self, name: str, shape: tuple[int, ...], scheme: Scheme) -> None:
        self.inventory.schemes[self.prefix + name] = scheme
        self.inventory.num_parameters += math.prod(shape)


class LoadingWeights(Weights):
    """Reads what `CheckingWeights` found to be there.

    ``rounding_errors``: relative errors of the quantized matrices that had to be rounded again.
    """

    def __init__(
        self,
        checkpoint: Tensors,
        dtype: torch.dtype,
        quantization: WeightFormat | None = None,
        *,
        inventory: Inventory | None = None,
        watch: Callable[[str, Tensor], None] | None = None,
    ) -> None:
        super().__init__(checkpoint, dtype, quantization, inventory=inventory)
        self.watch = watch
        self.rounding_errors: list[float] = []

    def take(self, name: str, *shape: int) -> Tensor:
        """Mapped, not copied, where the wanted dtype is the stored one."""
        return self._read(name, shape).to(self.dtype)

    def concatenate(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        rows, parts = self.stored(names, shapes)
        whole = torch.empty((rows, *shapes[0][1:]), dtype=self.dtype)
        first = 0
        for part in parts:
            whole[first : first + len(part)] = part
            first += len(part)
        return whole

    def stored(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> tuple[int, Iterator[Tensor]]:
        own = self.own
        rows = sum(shape[0] if own is None else own.num_rows(shape[0]) for shape in shapes)
        tensors = (self._read(name, shape) for name, shape in zip(names, shapes, strict=True))
        return rows, (tensor if own is None else own.take(tensor) for tensor in tensors)

    def fp8(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> Sequence[Fp8Matrix] | None:
        if self.fp8_group(names) is None or not isinstance(self.checkpoint, Fp8Tensors):
            return None
        found = []
        for name, shape in zip(names, shapes, strict=True):
            progress.update(self.prefix + name)
            matrix = self.checkpoint.read_fp8(self.prefix + name)
            self._check_shape(name, matrix.values, shape)
            found.append(matrix if self.own is None else matrix.rows(self.own.take))
        return found

    def matrices(
        self, parts: Mapping[str, int], in_features: int, scheme: Scheme, *, bias: bool | None
    ) -> Sequence[tuple[list[str], IntegerWeight | PackedMatrix]]:
        if self.quantization is None:
            raise ValueError("the checkpoint is not quantized")
        if bias is False:
            self.check_idle_biases(parts)
        return self.quantization.load(self, parts, in_features, scheme)

    def slices(
        self, name: str, count: int, shape: tuple[int, int], scheme: Scheme, *, transposed: bool = False
    ) -> Sequence[Tensor]:
        del scheme, transposed  # the caller rounds
        return list(self._read(name, (count, *shape)))

    def stack(
        self, form: StackedFormat, name: str, count: int, shape: tuple[int, int], scheme: Scheme
    ) -> Sequence[IntegerWeight]:
        del count, shape, scheme
        return form.read_stack(self, name)

    def read(self, name: str) -> Tensor:
        """A tensor as it is stored, mapped from its file."""
        progress.update(self.prefix + name)
        tensor = self.checkpoint.read(self.prefix + name)
        if self.inputs_first and name.endswith("weight") and tensor.is_floating_point():
            return tensor.T.contiguous()
        return tensor

    def check_idle_biases(self, names: Iterable[str]) -> None:
        """Refuse a bias that is not zero in a model without biases; AutoGPTQ once wrote zeros everywhere."""
        for name in names:
            if self.has(f"{name}.bias") and self.read(f"{name}.bias").any():
                raise self.error(f"{name}.bias", "is not zero, and by config.json the model has no such bias")

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self.read(name)
        self._check_shape(name, tensor, shape)
        return tensor

    def _check_shape(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:  # the check let it pass: the file was changed since
            raise self.error(name, f"has shape {list(tensor.shape)} now, and not {list(shape)} any more")
