"""Folders that `armllm pack` wrote: matrices in the kernels' own order, used where the file is mapped."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from armllm import kernels
from armllm.checkpoint.json_file import read_object
from armllm.checkpoint.matrix import PackedMatrix
from armllm.checkpoint.scheme import Scheme
from armllm.errors import CheckpointError
from armllm.kernels import PackedWeight
from armllm.quant.checks import checked_order
from armllm.quant.digest import digest_file, digest_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import CheckingWeights, LoadingWeights, OwnRows, Weights
    from armllm.kernels import Values

MANIFEST = "packed.json"
VERSION = 4
MOST = 1 << 40  # rows, inputs and bytes of a matrix
ALIGNMENT = 64  # bytes: where a matrix begins in its file, which the kernels ask for


def sealed(manifest: dict[str, Any]) -> str:
    """SHA-256 of what a manifest says, without its version and seal: sizes that are changed by hand show."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredMatrix:
    """What the manifest says of a packed matrix, which lies in the tensor ``<first part>.packed``.

    parts: full names and rows of those that lie side by side. scales, values: as `PackedWeight` has them.
    num_bytes: without padding.
    """

    parts: dict[str, int]
    in_features: int
    bits: int
    group_size: int
    zero_points: bool
    scales: str
    values: Values
    ordered: bool
    input_scale: float | None
    input_zero: int | None
    num_bytes: int

    def __post_init__(self) -> None:
        """Raise TypeError for values that no packed matrix has. The kernels check what they describe."""
        sizes = (self.in_features, self.bits, self.group_size, self.num_bytes, *self.parts.values())
        scale, zero = self.input_scale, self.input_zero
        if (
            not self.parts
            or any(type(size) is not int or not 0 <= size < MOST for size in sizes)
            or {type(self.zero_points), type(self.ordered)} != {bool}
            or {type(self.scales), type(self.values)} != {str}
            or not (scale is None or (type(scale) is float and 0 < scale < math.inf))
            or not (zero is None or (type(zero) is int and zero in range(-128, 128)))
        ):
            raise TypeError

    @property
    def scheme(self) -> Scheme:
        return Scheme(
            bits=self.bits,
            group_size=self.group_size,
            symmetric=not self.zero_points,
            values=self.values,
        )

    @property
    def stored_bytes(self) -> int:
        """With padding."""
        return -(-self.num_bytes // ALIGNMENT) * ALIGNMENT


def _check_names(files: dict[str, Any]) -> None:
    """Raise TypeError unless these are names of files in one folder, by which something is said of each."""
    if not isinstance(files, dict) or any(len(name) > 255 or set(name) & {"/", "\0"} for name in files):
        raise TypeError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The checkpoint that was packed: its weight files and config.json, with sizes and times of change."""

    folder: str
    digest: str
    files: dict[str, list[int]]

    def __post_init__(self) -> None:
        """Raise TypeError for values that none has."""
        Path(self.folder)
        _check_names(self.files)

    @classmethod
    def of(cls, folder: Path, names: list[str]) -> Source:
        """Look at the files ``names`` in ``folder``."""
        files = {}
        for name in names:
            found = (folder / name).stat()
            files[name] = [found.st_size, found.st_mtime_ns]
        digest = digest_files(folder / name for name in names)
        return cls(folder=str(folder.resolve()), digest=digest, files=files)

    @property
    def model(self) -> Path:
        """What was packed: the folder or the file."""
        gguf = next((name for name in self.files if name.endswith(".gguf")), "")
        return Path(self.folder, gguf)

    def has_changed(self) -> bool:
        """Whether other files lie there now; False where there is nothing to compare with."""
        try:
            return self._has_changed()
        except (OSError, ValueError):  # of another machine or user
            return False

    def _has_changed(self) -> bool:
        folder = Path(self.folder)
        if not all((folder / name).is_file() for name in self.files):
            others = {path.name for path in folder.glob("*.safetensors")} - self.files.keys()
            return "config.json" in self.files and bool(others)
        now = {name: (folder / name).stat() for name in self.files}
        if all([stat.st_size, stat.st_mtime_ns] == self.files[name] for name, stat in now.items()):
            return False
        return digest_files(folder / name for name in self.files) != self.digest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packed:
    """quant_method "armllm-packed". layouts: by bits, as text. origin: what was packed, for people.

    digests: of the folder's weight files.
    """

    folder: Path
    target: str
    layouts: dict[str, str]
    origin: str
    source: Source
    digests: dict[str, str]
    matrices: dict[str, StoredMatrix]
    method = "armllm-packed"

    def __post_init__(self) -> None:
        """Raise TypeError for values that none has."""
        _check_names(self.digests)
        texts = (self.target, self.origin, *self.layouts.values())
        bits = {str(stored.bits) for stored in self.matrices.values()}
        if {*map(type, texts)} != {str} or not bits <= self.layouts.keys() <= {"4", "8"}:
            raise TypeError

    @classmethod
    def of(cls, reader: ConfigReader) -> Packed:
        """Read the manifest beside config.json."""
        path = reader.path.parent / MANIFEST
        try:
            values = read_object(path)
            version, seal = values.pop("version"), values.pop("seal", None)
        except (OSError, ValueError, KeyError):
            raise CheckpointError(f"{path} is missing or damaged: pack the model again") from None
        if version != VERSION:
            raise CheckpointError(f"{path} was written by another version of armllm: pack the model again")
        if seal != sealed(values):
            raise CheckpointError(f"{path} was changed after it was written: pack the model again")
        try:
            values["source"] = Source(**values["source"])
            values["matrices"] = {name: StoredMatrix(**stored) for name, stored in values["matrices"].items()}
            return cls(folder=reader.path.parent, **values)
        except (KeyError, TypeError, AttributeError):
            raise CheckpointError(f"{path} is damaged: pack the model again") from None

    def __str__(self) -> str:
        return f"packed for {self.target} ({', '.join(sorted(set(self.layouts.values())))}): {self.origin}"

    def check(self) -> None:
        """Refuse what this machine's kernels don't read, another source, and damage.

        All weights are read for their digest.
        """
        for bits, layout in self.layouts.items():
            target = kernels.weight_target(int(bits))
            wanted = kernels.weight_layouts()[target]
            if layout != wanted:
                raise CheckpointError(
                    f"{self.folder} is packed for {self.target} (layout {layout}), and the kernels of this"
                    f" machine ({target}) read {wanted}: pack {self.source.model} with --target native"
                )
        if self.source.has_changed():
            raise CheckpointError(
                f"{self.folder} was packed from other weights than {self.source.model} has now: pack it again"
            )
        for name, digest in self.digests.items():
            path = self.folder / name
            if not path.is_file() or digest_file(path) != digest:
                raise CheckpointError(f"{path} is damaged (its SHA-256 is another): pack or copy it again")

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:
        """By the manifest."""
        stored = self._matrix_of.get(weights.prefix + name)
        if stored is None:
            return None
        if stored.in_features != in_features:
            raise CheckpointError(
                f"{self.folder / MANIFEST}: {weights.prefix}{name} has {stored.in_features} inputs, by"
                f" config.json {in_features}"
            )
        return stored.scheme

    def claim(self, weights: CheckingWeights, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """The tensor of the matrix that begins with ``name``."""
        del scheme
        stored = self._matrix_of[weights.prefix + name]
        if stored.parts[weights.prefix + name] != shape[0]:
            raise CheckpointError(
                f"{self.folder / MANIFEST}: {weights.prefix}{name} has other rows than {shape[0]}"
            )
        if weights.prefix + name != next(iter(stored.parts)):
            return
        weights.claim(f"{name}.packed", (stored.stored_bytes,), dtypes=("U8",), num_bytes=stored.stored_bytes)
        if stored.ordered:
            weights.claim(f"{name}.columns", (stored.in_features,), dtypes=("I64",), num_bytes=0)

    def load(
        self, weights: LoadingWeights, parts: Mapping[str, int], in_features: int, scheme: Scheme
    ) -> list[tuple[list[str], PackedMatrix]]:
        """The matrices of ``parts``, each with its names, mapped from their files."""
        del in_features, scheme  # the manifest says them, and `scheme` has compared them
        found: list[tuple[list[str], PackedMatrix]] = []
        names = list(parts)
        while names:
            stored = self._matrix_of[weights.prefix + names[0]]
            own, names = names[: len(stored.parts)], names[len(stored.parts) :]
            if [weights.prefix + name for name in own] != list(stored.parts):
                raise CheckpointError(f"{self.folder / MANIFEST}: {own[0]} lies beside other matrices")
            target = kernels.weight_target(stored.bits)
            weight = PackedWeight(
                data=weights.read(f"{own[0]}.packed")[: stored.num_bytes],
                out_features=sum(stored.parts.values()),
                in_features=stored.in_features,
                bits=stored.bits,
                group_size=stored.group_size,
                zero_points=stored.zero_points,
                scales=stored.scales,
                values=stored.values,
                layout=self.layouts[str(stored.bits)],
                target=target,
            )
            try:
                kernels.check_packed(weight)
            except (TypeError, ValueError) as error:
                raise weights.error(f"{own[0]}.packed", f"is not as {MANIFEST} says: {error}") from None
            if weights.own is not None:
                weight = self._own_rows(weights.own, weight, stored)
            columns = checked_order(weights, f"{own[0]}.columns") if stored.ordered else None
            matrix = PackedMatrix(
                weight=weight,
                columns=columns,
                input_scale=stored.input_scale,
                input_zero=stored.input_zero,
            )
            found.append((own, matrix))
        return found

    def _own_rows(self, own: OwnRows, weight: PackedWeight, stored: StoredMatrix) -> PackedWeight:
        """Those of a matrix that this rank computes."""
        parts = torch.split(torch.arange(weight.out_features), list(stored.parts.values()))
        try:
            return weight.rows(torch.cat([own.take(part) for part in parts]))
        except ValueError as error:
            raise CheckpointError(
                f"{self.folder}: {next(iter(stored.parts))} can't be cut for this number of ranks: {error};"
                f" take the model it was packed from, {self.source.model}"
            ) from None

    @functools.cached_property
    def _matrix_of(self) -> dict[str, StoredMatrix]:
        """By the full name of any of its parts."""
        return {part: stored for stored in self.matrices.values() for part in stored.parts}
