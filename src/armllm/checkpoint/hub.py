"""From what a user calls a model to a place on this disk: a folder, a GGUF file, or a name on the hub."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model")
# Subfolders hold other formats, consolidated files the same weights once more under Mistral's own names.
UNWANTED = ("*/*", "consolidated*")


def resolve_model(source: str, what: str = "model") -> Path:
    """The folder or .gguf file that ``source`` names; one on the Hugging Face hub is downloaded if need be.

    What is in the hub's cache already is found without a network. CheckpointError says in one line what
    failed; ``what`` names the option in it.
    """
    path = Path(source).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        for file in _unreadable(path):
            raise CheckpointError(
                f"{what} {source!r}: user {os.getuid()} may not read {file}; `chmod -R a+rX` lets everybody"
            )
        return path
    if path.is_file():
        raise CheckpointError(f"{what} {source!r} is a file, but neither a folder nor a .gguf file")
    if not HUB_NAME.fullmatch(source):
        raise CheckpointError(
            f"{what} {source!r} is not a folder; give the path of a checkpoint,"
            " or a hub name such as org/name"
        )
    return _download(source, what)


def _unreadable(path: Path) -> Iterator[Path]:
    """What this user may not read of a model: a container's user is often another than the files' owner."""
    if not os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK):
        yield path
        return
    for pattern in WANTED:
        yield from (file for file in path.glob(pattern) if file.exists() and not os.access(file, os.R_OK))


@functools.lru_cache(maxsize=8)
def _download(name: str, what: str) -> Path:
    # here, because importing it takes a third of a second
    import huggingface_hub  # noqa: PLC0415

    try:
        folder: str = huggingface_hub.snapshot_download(
            name, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)
        )
    except Exception as error:  # noqa: BLE001 - it raises its own, httpx's, OSError and ValueError
        line = str(error).strip().split("\n", 1)[0]
        raise CheckpointError(
            f"{what} {name!r} is not a folder here, and the hub did not give it"
            f" ({type(error).__name__}: {line})"
        ) from None
    return Path(folder)
