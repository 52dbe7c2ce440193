"""Unpacking an image as a container runtime does: layer over layer, whiteouts, nothing outside the root.

OCI image specification, layer.md, "Applying Changesets".
"""

from __future__ import annotations

import os
import shutil
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, cast

from armbuild.artifact.archives import BROKEN, OF_THIS_MACHINE, inside
from armbuild.errors import CheckFailed

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.artifact.limits import Budget
    from armbuild.artifact.tar_headers import Entry, Tar
    from armbuild.image.documents import LayerBlob, Manifest
    from armbuild.image.reader import ImageFile

OPAQUE = ".wh..wh..opq"
WHITEOUT = ".wh."
OF_NO_FILE = (".wh.", ".wh..", ".wh...")
"""Whiteouts of a folder itself, and of the one above it."""


def into_folder(image: ImageFile, manifest: Manifest, root: Path) -> None:
    """Lay the image's layers into the empty folder ``root``; owners and device files are left out.

    Raises CheckFailed for a layer that does not match its digest, and for one that writes outside.
    """
    for layer in dict.fromkeys(manifest.layers):
        image.verify(layer)
    budget = image.budget()
    for layer in manifest.layers:
        apply(image, layer, root, budget)


def apply(image: ImageFile, layer: LayerBlob, root: Path, budget: Budget) -> None:
    """Lay one layer over what is in ``root``; CheckFailed when its content is not what it should be."""
    written: set[str] = set()
    try:
        for tar, entry in image.entries(layer, budget):
            _lay_entry(tar, entry, root, written)
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno in OF_THIS_MACHINE:
            raise
        raise CheckFailed(f"{image.path}: layer {layer.diff_id} is damaged: {error}") from error


def _lay_entry(tar: Tar, entry: Entry, root: Path, written: set[str]) -> None:
    """Lay one entry; ``written`` are the paths that this layer has brought so far."""
    name = PurePosixPath("/", entry.name.lstrip("/"))
    if ".." in name.parts or name.name in OF_NO_FILE:
        raise CheckFailed(f"a layer writes outside of the image: {entry.name!r}")
    if name == PurePosixPath("/"):
        return
    target = inside(root, name.parent) / name.name
    if name.name == OPAQUE:
        _hide_all(target.parent, written)
    elif name.name.startswith(WHITEOUT):
        hidden = target.with_name(name.name.removeprefix(WHITEOUT))
        if os.fspath(hidden) not in written:  # only lower layers are hidden
            _remove(hidden)
    else:
        _place(tar, entry, target, root)
        _note(os.fspath(target), os.fspath(root), written)


def _note(place: str, root: str, written: set[str]) -> None:
    """Add a path and the folders above it, up to one that is there with those above."""
    while place not in written and len(place) >= len(root):
        written.add(place)
        place = os.path.dirname(place)  # noqa: PTH120 - of each entry: it is quick


def _place(tar: Tar, entry: Entry, target: Path, root: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if entry.isdir():
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            _remove(target)
        target.mkdir(exist_ok=True)
        target.chmod(entry.mode & 0o7777 | 0o700)  # without rights we could not remove it again
        return
    _remove(target)
    if entry.issym():
        target.symlink_to(entry.linkname)
    elif entry.islnk():
        link = PurePosixPath("/", entry.linkname.lstrip("/"))
        source = inside(root, link.parent) / link.name
        if not os.path.lexists(source):
            raise CheckFailed(f"{entry.name}: a hard link to {entry.linkname}, which is not in the image")
        os.link(source, target, follow_symlinks=False)
    elif entry.isreg():
        content = cast("IO[bytes]", tar.extractfile(entry))
        with target.open("wb") as sink:
            shutil.copyfileobj(content, sink, 1 << 20)
        target.chmod(entry.mode & 0o7777 | 0o400)


def _hide_all(folder: Path, written: set[str]) -> None:
    """Remove what lower layers left in ``folder``; what this layer has written stays, in any order."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and os.fspath(path) in written:
            _hide_all(path, written)
        elif os.fspath(path) not in written:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
