"""Check of a model folder for an image: it must be complete. Only headers are read."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from armbuild.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

HEADER_LIMIT = 100 << 20
"""The safetensors format's own limit."""


def check(folder: Path) -> Path:
    """Return ``folder`` if it is a whole Hugging Face checkpoint; UsageError says what is wrong."""
    if not folder.is_dir():
        what = (
            "not a folder: name that of a checkpoint in safetensors" if folder.exists() else "no such folder"
        )
        raise UsageError(f"--with-model {folder}: {what}")
    _check_kinds(folder)
    config = _json(folder / "config.json")
    if not isinstance(config, dict) or not ("architectures" in config or "model_type" in config):
        raise UsageError(f"--with-model {folder}: its config.json describes no model")
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(f"--with-model {folder}: not a whole model: tokenizer.json is missing")
    index = folder / "model.safetensors.index.json"
    weights = _shards(index) if index.is_file() else {path.name for path in folder.glob("*.safetensors")}
    if not weights:
        raise UsageError(f"--with-model {folder}: not a whole model: there are no .safetensors files")
    for name in sorted(weights):
        _check_weights(folder / name)
    return folder.resolve()


def files(folder: Path) -> list[Path]:
    """Return what of a model folder goes into the image: its files, not a download's caches and histories."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _check_kinds(folder: Path) -> None:
    """Refuse pipes, devices, and links out of the model, before anything is read.

    The maker of a link could have any file of this machine put into the image. A snapshot in the hub's cache
    has links to the files in `blobs`.
    """
    homes = [home := folder.resolve()]
    if home.parent.name == "snapshots":
        homes.append(home.parents[1] / "blobs")
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        target = path.resolve() if path.is_symlink() else path
        if path.is_symlink() and not any(map(target.is_relative_to, homes)):
            raise UsageError(
                f"--with-model {folder}: {name} is a link to {target}, outside of"
                " the model: copy the model with `cp -rL`"
            )
        if target.exists() and not target.is_file() and not target.is_dir():
            raise UsageError(f"--with-model {folder}: {name} is neither a file nor a folder")


def _shards(index: Path) -> set[str]:
    table = _json(index)
    names = table.get("weight_map", {}) if isinstance(table, dict) else {}
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and "/" not in name for name in names.values()
    ):
        raise UsageError(f"--with-model: {index}: no list of weights")
    return set(names.values())


def _check_weights(path: Path) -> None:
    """Compare a safetensors file's length with what its header says (8 bytes of length, JSON, data)."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else HEADER_LIMIT + 1
            if length > HEADER_LIMIT:
                raise UsageError(f"--with-model: {path} is not a safetensors file")
            header = json.loads(file.read(length))
        ends = [value["data_offsets"][1] for name, value in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UsageError(f"--with-model: not a whole model: {path} is missing") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise UsageError(f"--with-model: {path} is not a safetensors file") from error
    if path.stat().st_size != expected:
        raise UsageError(
            f"--with-model: {path} has {path.stat().st_size} of {expected} bytes: download it again"
        )


def _json(path: Path) -> Any:
    try:
        if path.stat().st_size > HEADER_LIMIT:
            raise UsageError(f"--with-model: {path}: it has more than {HEADER_LIMIT >> 20} MiB")
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UsageError(f"--with-model {path.parent}: not a model: {path.name} is missing") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--with-model: {path}: not valid JSON: {error}") from error
