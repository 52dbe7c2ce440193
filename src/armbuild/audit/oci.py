"""Images: the files that remain when every layer lies over those below it.

Read from OCI archives, and from what `docker save` and `podman save` write.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

from armbuild.audit.archive import BROKEN, MAX_FILES, Archive, BrokenArchive, Member, ZstdFile, is_bomb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Folders and links count too: an image has more of them than files, a bomb much more.
_MAX_ENTRIES = 2 * MAX_FILES


def open_oci(path: Path) -> Archive:
    """Open an OCI archive (image-spec, image-layout.md) or a saved image; raises BrokenArchive."""
    stack = ExitStack()
    try:
        outer = stack.enter_context(tarfile.open(path))  # noqa: SIM115 - it is one, of the stack
        budget = _Budget(path.stat().st_size)
        blobs = {
            member.name.removeprefix("./"): member
            for member in budget.entries(outer)
            if member.isfile() or member.issym() or member.islnk()  # a saved image's equal layers are links
        }
        files = _unpacked(outer, blobs, stack, _Budget(path.stat().st_size))
    except BrokenArchive:
        stack.close()
        raise
    except BROKEN as error:
        stack.close()
        raise BrokenArchive(f"not a readable OCI archive: {error}") from error
    # In the order of the layers: a compressed one is then read from front to back, once.
    return Archive(path=path, kind="oci", members=list(files.values()), _close=stack)


@dataclass
class _Budget:
    """What may still be unpacked, so that no archive, however small, keeps the audit busy for ever."""

    archive_size: int
    total: int = 0
    count: int = 0

    def entries(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        """Yield the entries of ``tar``; raises BrokenArchive before too much of it was read."""
        for entry in tar:
            self.total += max(entry.size, 0)
            self.count += 1
            if self.count > _MAX_ENTRIES or is_bomb(0, self.total, self.archive_size):
                raise BrokenArchive(
                    f"refused: {self.count} entries that unpack from {self.archive_size} bytes to"
                    f" {self.total} or more look like a bomb"
                )
            yield entry


@dataclass
class _Layer:
    """One layer: its files, and what it hides of the layers below.

    ``hidden`` names go with all that is below them, the content of ``emptied`` folders goes too.
    """

    files: dict[str, Member] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)

    def hides(self, name: str) -> bool:
        """Return whether this layer hides the file ``name`` of a lower one."""
        if name in self.hidden:
            return True
        while "/" in name:
            name = name.rpartition("/")[0]
            if name in self.hidden or name in self.emptied:
                return True
        return "" in self.emptied


def _unpacked(
    outer: tarfile.TarFile, blobs: dict[str, tarfile.TarInfo], stack: ExitStack, budget: _Budget
) -> dict[str, Member]:
    files: dict[str, Member] = {}
    for name in _layers(outer, blobs):
        if name not in blobs:
            raise BrokenArchive(f"layer {name} is missing from the archive")
        tar = stack.enter_context(_layer(outer, blobs[name]))
        layer = _Layer()
        for entry in budget.entries(tar):
            _lay(layer, tar, entry)
        files = {name: file for name, file in files.items() if not layer.hides(name)} | layer.files
    return files


def _layers(outer: tarfile.TarFile, blobs: dict[str, tarfile.TarInfo]) -> list[str]:
    def document(name: str) -> dict[str, Any]:
        if name not in blobs:
            raise BrokenArchive(f"{name} is missing: not an OCI archive")
        stream = outer.extractfile(blobs[name])
        loaded = json.loads(stream.read(16 << 20) if stream else b"")
        if isinstance(loaded, list) and loaded:
            loaded = loaded[0]  # of several saved images the first
        if not isinstance(loaded, dict):
            raise BrokenArchive(f"{name} is not an object")
        return loaded

    if "index.json" not in blobs and "manifest.json" in blobs:  # `docker save`, `podman save`
        return list(document("manifest.json")["Layers"])
    manifest = document("index.json")
    for _ in range(4):  # an index may point to an index
        if "layers" in manifest:
            return ["blobs/" + layer["digest"].replace(":", "/") for layer in manifest["layers"]]
        manifest = document("blobs/" + manifest["manifests"][0]["digest"].replace(":", "/"))
    raise BrokenArchive("index.json leads to no image manifest")


def _layer(outer: tarfile.TarFile, blob: tarfile.TarInfo) -> tarfile.TarFile:
    stream = outer.extractfile(blob)
    if stream is None:
        raise BrokenArchive(f"{blob.name}: not a file")
    magic = stream.read(4)
    stream.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return tarfile.open(fileobj=cast("IO[bytes]", gzip.GzipFile(fileobj=stream)), mode="r:")
    if magic == b"\x28\xb5\x2f\xfd" or magic[1:] == b"\x2a\x4d\x18":  # a frame, a skippable frame
        return tarfile.open(fileobj=cast("IO[bytes]", ZstdFile(stream)), mode="r:")
    return tarfile.open(fileobj=stream, mode="r:")


def _lay(layer: _Layer, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
    """Add one entry; what begins with ``.wh.`` hides something (image-spec, layer.md, "Whiteouts")."""
    name = entry.name.removeprefix("./").strip("/")
    folder, _, base = name.rpartition("/")
    if base == ".wh..wh..opq":
        layer.emptied.add(folder)
    elif base.startswith(".wh."):
        layer.hidden.add(f"{folder}/{base[4:]}".lstrip("/"))
    elif entry.isfile():
        layer.hidden.add(name)
        layer.files.pop(name, None)
        layer.files[name] = Member(
            name=name,
            size=entry.size,
            mode=entry.mode & 0o7777,
            open=lambda: tar.extractfile(entry) or io.BytesIO(),
        )
    elif not entry.isdir():
        layer.hidden.add(name)
        layer.files.pop(name, None)
