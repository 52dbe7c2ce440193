"""Images: the files of all layers together, each layer read once."""

from __future__ import annotations

import io
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from armbuild.artifact.archives import BROKEN
from armbuild.audit.archive import Archive, BrokenArchive, Member
from armbuild.errors import CheckFailed
from armbuild.image import reader, unpack

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator
    from pathlib import Path

    from armbuild.artifact.limits import Budget


def open_oci(path: Path, number: int = 0) -> Archive:
    """Open image ``number`` of an archive or layout, its layers compared with their digests.

    Raises UsageError for what is no image, BrokenArchive for a damaged one.
    """
    stack = ExitStack()
    try:
        image = stack.enter_context(reader.open_image(path))
        manifests = image.manifests()
        for layer in dict.fromkeys(manifests[number].layers):  # each once, however often it is listed
            image.verify(layer)
    except CheckFailed as error:
        stack.close()
        raise BrokenArchive(str(error)) from error
    problems: list[str] = []
    return Archive(
        path=path,
        kind="oci",
        members=_members(image, manifests[number], image.budget(images=len(manifests)), problems),
        problems=problems,
        size=image.size,
        images=len(manifests),
        _close=stack,
    )


@dataclass
class _Above:
    """What layers hide of those below: ``hidden`` names and all in them, what is in ``emptied`` folders."""

    hidden: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)

    def hides(self, name: str) -> bool:
        """Return whether the file ``name`` of a lower layer is hidden."""
        if name in self.hidden:
            return True
        while "/" in name:
            name = name.rpartition("/")[0]
            if name in self.hidden or name in self.emptied:
                return True
        return "" in self.emptied


def _members(
    image: reader.ImageFile, manifest: reader.Manifest, budget: Budget, problems: list[str]
) -> Iterator[Member]:
    """Yield the files of the highest layer first: what hides a file is known when that is met."""
    above = _Above()
    try:
        for layer in reversed(manifest.layers):
            own = _Above()
            for tar, entry in image.entries(layer, budget):
                if problem := _leads_out(entry):
                    problems.append(problem)
                    continue
                member = _member(tar, entry, own)
                if member is not None and not above.hides(member.name):
                    yield member
            above.hidden |= own.hidden
            above.emptied |= own.emptied
    except CheckFailed as error:
        raise BrokenArchive(str(error)) from error
    except BROKEN as error:
        raise BrokenArchive(f"not a readable OCI archive: {error}") from error


def _leads_out(entry: tarfile.TarInfo) -> str:
    """Return why an unpacker could lay an entry outside of the image, empty when none could."""
    parts = entry.name.rstrip("/").split("/")
    if ".." in parts or parts[-1] in unpack.OF_NO_FILE:
        return f"{entry.name!r}: the name leads out of the image"
    if entry.islnk() and ".." in entry.linkname.split("/"):
        return f"{entry.name!r}: a hard link that leads out of the image, to {entry.linkname!r}"
    return ""


def _member(tar: tarfile.TarFile, entry: tarfile.TarInfo, own: _Above) -> Member | None:
    """Return a file of a layer; note in ``own`` what an entry hides (image-spec, layer.md, "Whiteouts")."""
    name = entry.name.removeprefix("./").strip("/")
    folder, _, base = name.rpartition("/")
    if base == ".wh..wh..opq":
        own.emptied.add(folder)
    elif base.startswith(".wh."):
        own.hidden.add(f"{folder}/{base[4:]}".lstrip("/"))
    elif not entry.isdir():
        own.hidden.add(name)
        if entry.isfile():
            return Member(
                name=name,
                size=entry.size,
                mode=entry.mode & 0o7777,
                open=lambda: tar.extractfile(entry) or io.BytesIO(),
            )
    return None
