"""Files that a command leaves for its user: each appears whole, in one rename, or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from armbuild.host import cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCRATCH = ".armbuild-"


def move_into(file: Path, folder: Path) -> Path:
    """Move ``file`` into ``folder`` as ``move_all_into`` does, and return where it is now."""
    return move_all_into([file], folder)[0]


def move_all_into(files: Sequence[Path], folder: Path) -> list[Path]:
    """Move ``files`` into ``folder``, all or none, each in one rename: nobody ever sees a part of one.

    Returns where they are now. An OSError names the file that could not be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        moved = [(_copy_beside(file, folder, stack), folder / file.name) for file in files]
        for scratch, target in moved:
            scratch.replace(target)
    for file in files:
        file.unlink()
    return [target for _, target in moved]


def _copy_beside(file: Path, folder: Path, stack: contextlib.ExitStack) -> Path:
    """Return a whole copy of ``file`` in ``folder``, under a hidden name; it goes with ``stack``."""
    cache.remove_left(folder, f".{glob.escape(file.name)}-????????")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=folder)
        scratch = Path(name)
        stack.callback(scratch.unlink, missing_ok=True)
        stack.callback(os.close, descriptor)
        cache.claim(descriptor)
        with file.open("rb") as source, os.fdopen(descriptor, "wb", closefd=False) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        os.fsync(descriptor)
        scratch.chmod(0o666 & ~_umask())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder / file.name)) from error
    return scratch


def replace_file(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file in one rename: nobody sees a part of it, and what cannot be written leaves the old one.

    A pipe or a device is written to as it is. An OSError names ``path``.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as sink:
                fill(sink)
            return
        descriptor, name = tempfile.mkstemp(prefix=SCRATCH, dir=path.parent)
        with contextlib.ExitStack() as stack:
            stack.callback(Path(name).unlink, missing_ok=True)
            with os.fdopen(descriptor, "wb") as sink:
                fill(sink)
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path.resolve())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
