"""A folder of safetensors files, with an index or without. Pickles are never opened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from armllm.checkpoint.gguf import GGUFCheckpoint
from armllm.checkpoint.hub import IR
from armllm.checkpoint.json_file import read_object
from armllm.checkpoint.mapping import Span, release, release_tensor
from armllm.checkpoint.safetensors_file import SafetensorsFile
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LAYER = re.compile(r"\.(\d+)\.")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class Checkpoint:
    """The safetensors files of a folder: their headers are read, their data mapped.

    Whoever reads a tensor has mostly copied or packed the one before, and whoever reads one of another layer
    all of those before (experts are read one by one and then joined): their pages are given back to the
    system, so that loading has little in memory beside what the model keeps. What is used as it is mapped
    comes back from the page cache.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: tuple[Tensor, Span] | None = None  # what was read, and where its file is mapped
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
                        f"{folder / INDEX} says that {file_name} holds {name:.100}, but it does not"
                    )

    def names(self) -> set[str]:
        """All tensors in the files."""
        return set(self._homes)

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """A tensor's dtype, as safetensors writes it, and shape."""
        return self._files[self._homes[name]].describe(name)

    def read(self, name: str) -> Tensor:
        """A tensor, mapped from its file."""
        number = LAYER.search(name)
        if self._last is not None:
            release_tensor(*self._last)
        if number and number[1] != self._layer:
            self._layer = number[1]
            release(self.spans())
        file = self._files[self._homes[name]]
        tensor = file.read(name)
        self._last = tensor, file.span
        return tensor

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self.folder / self._homes[name]

    def files(self) -> list[Path]:
        """All files."""
        return [self.folder / name for name in self._files]

    def spans(self) -> list[Span]:
        """Where the files are mapped."""
        return [file.span for file in self._files.values()]

    def _open(self, file_name: str) -> None:
        path = self.folder / file_name
        try:
            file = SafetensorsFile(path)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing; {INDEX} lists it") from None
        self._files[file_name] = file
        for name in file.names():
            if name in self._homes:
                raise CheckpointError(f"tensor {name:.200} is in {path} and in {self.where(name)}")
            self._homes[name] = file_name


def open_checkpoint(path: Path) -> Checkpoint | GGUFCheckpoint:
    """The tensors of a folder or of a GGUF file."""
    return GGUFCheckpoint(path) if path.is_file() else Checkpoint(path)


def _read_index(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{path} is not an index: it must hold a JSON object with a weight_map")
    files = {name: str(file_name) for name, file_name in weight_map.items()}
    if not files:
        raise CheckpointError(f"{path} lists no tensors")
    for file_name in files.values():
        plain = Path(file_name).name == file_name and file_name.isprintable()
        if not plain or not file_name.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} names {file_name!r:.200}, which is not a safetensors file in the same folder"
            )
    return files


def _unlisted_files(folder: Path) -> list[str]:
    if (folder / SINGLE).is_file():
        return [SINGLE]
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if found:
        return found
    if (folder / IR).is_file():
        raise CheckpointError(f"{folder} has a model of OpenVINO ({IR}): add --backend openvino")
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder} has only pickled weights ({pickles[0]}), which can run code when opened;"
            f" `armllm convert {folder} -o FOLDER` writes them as safetensors"
        )
    raise CheckpointError(f"{folder} has no weights: neither {SINGLE} nor {INDEX}")
