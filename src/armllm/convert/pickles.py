"""From pickles (``.bin``, ``.pt``) to safetensors, by torch's weights-only loader: it makes tensors."""

from __future__ import annotations

import dataclasses
import json
import pickle
import warnings
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file

from armllm.checkpoint.folder import INDEX, SINGLE, Checkpoint, open_checkpoint
from armllm.checkpoint.hub import WANTED, HubOptions, resolve_model
from armllm.checkpoint.json_file import read_object
from armllm.convert.derived import check_free, derived_folder
from armllm.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# Heads of BGE-M3 in files of their own, as its authors and vLLM name them.
_HEAD_FILES = ("sparse_linear.pt", "colbert_linear.pt")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Converted:
    """What was written: the number of tensors and their bytes."""

    folder: Path
    tensors: int
    num_bytes: int


def convert_checkpoint(
    model: str,
    output: Path,
    *,
    revision: str | None = None,
    progress: Callable[[str], object] = str,
) -> Converted:
    """Write ``model`` to the new folder ``output`` with its ``.bin`` files as safetensors.

    Heads of BGE-M3 in ``.pt`` files go with them, also where the rest is safetensors already. The folder
    appears when all is written. Raises RequestError if there is nothing to convert, and CheckpointError for a
    file that holds anything but tensors.
    """
    check_free(output)
    patterns = (*(pattern for pattern in WANTED if pattern != "*.safetensors"), "*.bin", *_HEAD_FILES)
    folder = resolve_model(model, options=HubOptions(revision=revision, patterns=patterns))
    if folder.is_file():
        raise RequestError(f"{folder} is a GGUF file; there is nothing to convert")
    heads = [folder / name for name in _HEAD_FILES if (folder / name).is_file()]
    if any(folder.glob("*.safetensors")) and not heads:
        raise RequestError(f"{folder} has safetensors already; there is nothing to convert")
    files = [*_files(folder), *heads]
    weight_map: dict[str, str] = {}
    size = 0
    with derived_folder(folder, output) as work:
        for number, path in enumerate(files, 1):
            tensors = _read(path)
            if path in heads:
                tensors = {f"{path.stem}.{name}": tensor for name, tensor in tensors.items()}
            name = SINGLE if len(files) == 1 else f"model-{number:05}-of-{len(files):05}.safetensors"
            if twice := tensors.keys() & weight_map.keys():
                raise CheckpointError(f"{path}: tensor {min(twice)} is in another file, too")
            save_file(tensors, work / name, metadata={"format": "pt"})
            (work / name).chmod(0o644)  # it was made for the owner alone
            weight_map |= dict.fromkeys(tensors, name)
            size += sum(tensor.nbytes for tensor in tensors.values())
            progress(f"{number} of {len(files)}: {path.name}")
        if len(files) > 1:
            index = {"metadata": {"total_size": size}, "weight_map": weight_map}
            (work / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        (work / PICKLE_INDEX).unlink(missing_ok=True)
        open_checkpoint(work)  # what was written can be read
    return Converted(folder=output, tensors=len(weight_map), num_bytes=size)


def _files(folder: Path) -> list[Path]:
    """The safetensors; else the pickles that the index lists, or the only one."""
    if any(folder.glob("*.safetensors")):
        return Checkpoint(folder).files()
    if (folder / PICKLE_INDEX).is_file():
        weight_map = read_object(folder / PICKLE_INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{folder / PICKLE_INDEX} is not an index: it has no weight_map")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if "/" in name or not name.endswith(".bin"):
                raise CheckpointError(f"{folder / PICKLE_INDEX} names {name!r:.80}, which is no .bin file")
        return [folder / name for name in names]
    if (folder / PICKLE).is_file():
        return [folder / PICKLE]
    raise RequestError(f"{folder} has neither {PICKLE} nor {PICKLE_INDEX}; there is nothing to convert")


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, each with separate memory."""
    if path.suffix == ".safetensors":
        return load_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols that torch did not write
            state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} holds more than tensors; it could run code when opened, and is not read"
        ) from None
    except (OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        line = str(error).strip().split("\n", 1)[0]
        raise CheckpointError(f"{path} can't be read: {line:.200}") from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise CheckpointError(f"{path} must hold tensors by their names")
    # tied matrices share memory, which safetensors does not write
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
