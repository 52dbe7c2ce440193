"""The tensors of GGUF files under the names of Hugging Face's checkpoints."""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING

import torch

from armllm.checkpoint.gguf_blocks import BLOCKS, dequantize
from armllm.checkpoint.gguf_file import open_gguf
from armllm.checkpoint.gguf_names import names_of
from armllm.checkpoint.gguf_order import input_order, joined_part, numbers, reordered, reshaped
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from armllm.checkpoint.mapping import Span

# Read into the configuration, not into the model.
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
NUM_DIMENSIONS = 3  # of a tensor of all experts: expert, row, input


@dataclasses.dataclass(frozen=True)
class Place:
    """The stored tensor that one of Hugging Face's comes from, and what takes it from there or all."""

    stored: str
    take: Callable[[Tensor], Tensor] | None = None


class GGUFCheckpoint:
    """The tensors of a file by Hugging Face's names; stands in for `Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        self._path = path
        self._file = open_gguf(path)
        self._layers = self._file.num_layers()
        self._names = names_of(self._file.architecture, experts=bool(self._file.own("expert_count")))
        self._places: dict[str, Place] = {}
        for name in self._file.tensors:
            if name not in FACTORS:
                self._places |= self._translate(name)

    def names(self) -> set[str]:
        """All tensors in the file."""
        return set(self._places)

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """A tensor's dtype, as safetensors writes it, and shape."""
        place = self._places[name]
        shape = self._file.shape(place.stored)
        if place.take is not None:
            try:
                shape = tuple(place.take(torch.empty(shape, device="meta")).shape)
            except RuntimeError:
                raise CheckpointError(
                    f"{self._path}: tensor {place.stored} of shape {list(shape)} can't be {name}"
                ) from None
        return self._file.tensors[place.stored].type, shape

    def read(self, name: str) -> Tensor:
        """A tensor: mapped from the file if it is a floating-point one, else dequantized to fp32."""
        kind, stored = self.read_blocks(name)
        tensor = dequantize(kind, stored) if kind in BLOCKS else numbers(name, stored)
        order = self.input_order(name)
        if order is None:
            return tensor
        ordered = torch.empty_like(tensor)
        ordered[:, order] = tensor
        return ordered

    def read_blocks(self, name: str) -> tuple[str, Tensor]:
        """A tensor's type, and the tensor as it is stored: quantized ones as bytes ``[N, blocks, bytes]``.

        Its rows are in order, its columns as `input_order` says.
        """
        place = self._places[name]
        tensor = self._file.tensor(place.stored)
        if place.take is not None:
            tensor = place.take(tensor)
        return self._file.tensors[place.stored].type, reordered(self._file, name, tensor)

    def input_order(self, name: str) -> Tensor | None:
        """The input that each stored column of a matrix belongs to; None: they are in order."""
        return input_order(self._file, name)

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._file.where(self._places[name].stored)

    def spans(self) -> list[Span]:
        """Where the file is mapped, or its parts."""
        return [part.span for part in self._file.parts.values()]

    def _translate(self, name: str) -> dict[str, Place]:
        """Hugging Face's name, or those of experts and of modules that are joined, each with its place.

        A name that is not known stays as it is, and is then found to be left over.
        """
        names = self._names
        stem, _, ending = name.rpartition(".")
        if stem in names.outside:
            return {f"{names.outside[stem]}.{ending}": Place(name)}
        block, _, rest = name.partition(".")
        index, _, tensor = rest.partition(".")
        if block != "blk":
            return {name: Place(name)}
        if index.isdecimal() and int(index) >= self._layers > 0:  # they predict further tokens
            return {f"mtp.{name}": Place(name)}
        return self._in_layer(name, f"{names.layers}.{index}", tensor) or {name: Place(name)}

    def _in_layer(self, name: str, layer: str, tensor: str) -> dict[str, Place]:
        """The same of what a layer calls ``tensor``; empty where that is not known."""
        names, (part, _, ending) = self._names, tensor.rpartition(".")
        if tensor in names.whole:
            full_name = f"{layer}.{names.whole[tensor]}"
            return {full_name: Place(name, reshaped(self._file, name, full_name))}
        if part in names.joined:
            modules = names.joined[part]
            return {
                f"{layer}.{module}.{ending}": Place(name, joined_part(self._file, number, len(modules)))
                for number, module in enumerate(modules)
            }
        if part in names.layer:
            full_name = f"{layer}.{names.layer[part]}.{ending}"
            return {full_name: Place(name, reshaped(self._file, name, full_name))}
        shape = self._file.shape(name)
        if part in names.experts and len(shape) == NUM_DIMENSIONS and all(shape):
            place = f"{layer}.{names.experts[part]}.{ending}"
            return {
                place.format(expert): Place(name, operator.itemgetter(expert)) for expert in range(shape[0])
            }
        return {}
