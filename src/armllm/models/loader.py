"""Weights from safetensors files, mapped, and checked before any is read. Pickles are never opened."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from armllm.errors import CheckpointError
from armllm.models.gguf import GGUFCheckpoint
from armllm.models.mapping import Span, mapped_spans, release, release_tensor
from armllm.models.safetensors_file import SafetensorsFile
from armllm.quant.gguf_blocks import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from armllm.quant.formats import WeightFormat
    from armllm.quant.scheme import Scheme

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FLOATING = ("F32", "F16", "BF16")
READABLE = (*FLOATING, *BLOCKS)  # GGUF's blocks come as fp32
LAYER = re.compile(r"\.(\d+)\.")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class Tensors(Protocol):
    """Named tensors, wherever they come from; ``folder`` is named in errors."""

    folder: Path

    def names(self) -> set[str]:
        """All tensors."""

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """A tensor's dtype, as safetensors writes it, and shape."""

    def read(self, name: str) -> Tensor:
        """A tensor."""

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""


class Checkpoint:
    """The safetensors files of a folder: their headers are read, their data mapped.

    Whoever reads a tensor has mostly copied or packed the one before, and whoever reads one of another layer
    all of those before (experts are read one by one and then joined): their pages are given back to the
    system, so that loading has little in memory beside what the model keeps. What is used as it is mapped
    comes back from the page cache.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._spans: dict[str, list[Span]] = {}  # file name -> where it is mapped
        self._last: tuple[Tensor, list[Span]] | None = None  # what was read, and where its file is mapped
        self._layer = ""
        self._files: dict[str, SafetensorsFile] = {}  # by file name
        self._homes: dict[str, str] = {}  # tensor name -> file name
        listed = _read_index(folder / INDEX)
        for file_name in sorted(set(listed.values())) if listed else _unlisted_files(folder):
            self._open(file_name)
        if listed:
            for name, file_name in listed.items():
                if self._homes.get(name) != file_name:
                    raise CheckpointError(
                        f"{folder / INDEX} says that {file_name} holds {name}, but it does not"
                    )

    def names(self) -> set[str]:
        """All tensors in the files."""
        return set(self._homes)

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """A tensor's dtype, as safetensors writes it, and shape."""
        return self._files[self._homes[name]].describe(name)

    def read(self, name: str) -> Tensor:
        """A tensor, mapped from its file."""
        home, number = self._homes[name], LAYER.search(name)
        if self._last is not None:
            release_tensor(*self._last)
        if number and number[1] != self._layer:
            self._layer = number[1]
            release(span for spans in self._spans.values() for span in spans)
        tensor = self._files[home].read(name)
        if home not in self._spans:
            self._spans[home] = mapped_spans([self.folder / home])
        self._last = tensor, self._spans[home]
        return tensor

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self.folder / self._homes[name]

    def files(self) -> list[Path]:
        """All files."""
        return [self.folder / name for name in self._files]

    def _open(self, file_name: str) -> None:
        path = self.folder / file_name
        try:
            file = SafetensorsFile(path)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing; {INDEX} lists it") from None
        self._files[file_name] = file
        for name in file.names():
            if name in self._homes:
                raise CheckpointError(f"tensor {name} is in {path} and in {self.where(name)}")
            self._homes[name] = file_name


def open_checkpoint(path: Path) -> Checkpoint | GGUFCheckpoint:
    """The tensors of a folder or of a GGUF file."""
    return GGUFCheckpoint(path) if path.is_file() else Checkpoint(path)


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


def _read_index(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        weight_map = index["weight_map"]
        files = {str(name): str(file_name) for name, file_name in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{path} is not an index: it must hold a JSON object with a weight_map"
        ) from None
    if not files:
        raise CheckpointError(f"{path} lists no tensors")
    for file_name in files.values():
        if Path(file_name).name != file_name or not file_name.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} names {file_name!r}, which is not a safetensors file in the same folder"
            )
    return files


def _unlisted_files(folder: Path) -> list[str]:
    if (folder / SINGLE).is_file():
        return [SINGLE]
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if found:
        return found
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder} has only pickled weights ({pickles[0]}), which can run code when opened and are"
            " never read; convert them with transformers: from_pretrained, then save_pretrained"
        )
    raise CheckpointError(f"{folder} has no weights: neither {SINGLE} nor {INDEX}")
