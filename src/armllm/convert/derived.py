"""Folders made from a model's folder: all of it but the weights, which are written again."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Beside these, everything in the folder is copied: tokenizer, chat template, generation_config.json.
WEIGHT_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.gguf",
    "*.h5",
    "*.onnx",
)


def check_free(output: Path) -> None:
    """RequestError if there is something at ``output``."""
    if output.exists():
        raise RequestError(f"{output} exists already; choose another folder")


@contextlib.contextmanager
def derived_folder(source: Path | None, output: Path) -> Iterator[Path]:
    """A copy of ``source`` without weights, or an empty folder, to be completed.

    It becomes ``output`` if the block ends well.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        if source is not None:
            _copy_others(source, work)
        yield work
        work.chmod(0o755)
        work.rename(output)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _copy_others(folder: Path, work: Path) -> None:
    """Copy all but the weights, and what is hidden."""
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inner.parts)
        if path.is_file() and not hidden and not any(path.match(pattern) for pattern in WEIGHT_FILES):
            (work / inner).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, work / inner)
