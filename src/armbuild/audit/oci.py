"""Images: the files of all layers together, each layer read once."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from armbuild.artifact.archives import BROKEN
from armbuild.audit.archive import Archive, BrokenArchive, Member
from armbuild.errors import CheckFailed
from armbuild.image import reader, unpack

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from armbuild.artifact.limits import Budget
    from armbuild.artifact.tar_headers import Entry, Tar
    from armbuild.image.documents import Manifest


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
        budget = image.budget(images=len(manifests))
    except CheckFailed as error:
        stack.close()
        raise BrokenArchive(str(error)) from error
    problems: list[str] = []
    return Archive(
        path=path,
        kind="oci",
        members=_members(image, manifests[number], budget, problems),
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


@dataclass
class _Links:
    """The files of one layer, as its hard links have them: these stay when a layer above hides the file."""

    files: set[str] = field(default_factory=set)
    """What the layer has brought so far, but for folders."""
    targets: dict[str, str] = field(default_factory=dict)
    """Of each hard link, the file in the end."""
    skipped: set[str] = field(default_factory=set)
    """Files that were not looked at, since they are hidden."""
    wanted: set[str] = field(default_factory=set)
    """Files that have a name which is not hidden."""

    def take(self, entry: Entry, above: _Above) -> str:
        """Note an entry; return what is wrong with it, empty for nothing."""
        name, target = _name(entry.name), _name(entry.linkname)
        if entry.islnk():
            if target not in self.files:
                return f"{entry.name!r}: a hard link to {entry.linkname!r}, which its layer does not have yet"
            self.targets[name] = self.targets.get(target, target)
            if not above.hides(name):
                self.wanted.add(self.targets[name])
        if not entry.isdir():
            self.files.add(name)
        return ""


def _members(
    image: reader.ImageFile, manifest: Manifest, budget: Budget, problems: list[str]
) -> Iterator[Member]:
    """Yield the files of the highest layer first: what hides a file is known when that is met.

    A layer is read again where a hard link keeps a hidden file.
    """
    above = _Above()
    try:
        for layer in reversed(manifest.layers):
            own, links = _Above(), _Links()
            for tar, entry in image.entries(layer, budget):
                if problem := _leads_out(entry) or links.take(entry, above):
                    problems.append(problem)
                    continue
                member = _member(tar, entry, own)
                if member is not None and above.hides(member.name):
                    links.skipped.add(member.name)
                elif member is not None:
                    yield member
            if hidden := links.wanted & links.skipped:
                yield from _named(image.entries(layer, budget), hidden)
            above.hidden |= own.hidden
            above.emptied |= own.emptied
    except CheckFailed as error:
        raise BrokenArchive(str(error)) from error
    except BROKEN as error:
        raise BrokenArchive(f"not a readable OCI archive: {error}") from error


def _named(entries: Iterator[tuple[Tar, Entry]], names: Collection[str]) -> Iterator[Member]:
    """Yield the files of a layer with these names."""
    found = (_member(tar, entry, _Above()) for tar, entry in entries)
    yield from (member for member in found if member is not None and member.name in names)


def _leads_out(entry: Entry) -> str:
    """Return why an unpacker could lay an entry outside of the image, empty when none could."""
    parts = entry.name.rstrip("/").split("/")
    if ".." in parts or parts[-1] in unpack.OF_NO_FILE:
        return f"{entry.name!r}: the name leads out of the image"
    if entry.islnk() and ".." in entry.linkname.split("/"):
        return f"{entry.name!r}: a hard link that leads out of the image, to {entry.linkname!r}"
    return ""


def _name(path: str) -> str:
    return path.removeprefix("./").strip("/")


def _member(tar: Tar, entry: Entry, own: _Above) -> Member | None:
    """Return a file of a layer; note in ``own`` what an entry hides (image-spec, layer.md, "Whiteouts")."""
    name = _name(entry.name)
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
                open=lambda: entry.content(tar),
            )
    return None
