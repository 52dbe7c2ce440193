"""Reading images: OCI layouts (a folder or a tar) and what `docker save` and `podman save` write.

What they say of themselves is in their `documents`. Every blob is compared with its digest before it is used.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from armbuild.artifact import pieces
from armbuild.artifact.archives import BROKEN, OF_THIS_MACHINE, open_file, open_tar, walk
from armbuild.artifact.limits import FEW_IMAGES, Budget, refuse_holes
from armbuild.errors import CheckFailed, UsageError
from armbuild.image.documents import Documents, digest_of
from armbuild.image.layers import MEDIA_TYPE, PLAIN, media_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from armbuild.artifact.tar_headers import Entry, Tar
    from armbuild.image.documents import LayerBlob, Manifest

_MAX_BLOBS = 10_000
"""Files of an archive, in which each layer is one, or three with folders."""
_BROKEN = tuple(kind for kind in BROKEN if kind is not OSError)


@dataclass(kw_only=True)
class ImageFile:
    """An opened archive or layout; ``open_image`` makes it."""

    path: Path
    _tar: Tar | None
    _members: dict[str, Entry]
    _unpacked: int = 0
    """Bytes of a compressed archive's copy."""
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, name: str) -> IO[bytes]:
        """Open a file of the layout; raises CheckFailed when it is missing."""
        if self._tar is None:
            try:  # a link may lead to a device, and a pipe would never answer
                return open_file(self.path, PurePosixPath(name))
            except OSError as error:
                raise CheckFailed(f"{self.path}: {name!s:.200} is missing") from error
        member = self._members.get(name)
        stream = self._tar.extractfile(member) if member else None
        if stream is None:
            raise CheckFailed(f"{self.path}: {name!s:.200} is missing")
        return stream

    def has(self, name: str) -> bool:
        """Return whether the layout holds a file of this name."""
        return name in self._members if self._tar else (self.path / name).is_file()

    def manifest(self, architecture: str) -> Manifest:
        """Return the image for ``architecture`` ("arm64"); raises UsageError when there is none.

        CheckFailed is as for ``manifests``.
        """
        found = self.manifests()
        for candidate in found:
            if candidate.architecture == architecture:
                return candidate
        there = ", ".join(f"linux/{candidate.architecture}" for candidate in found)
        raise UsageError(f"{self.path}: it holds {there}, not linux/{architecture}")

    def manifests(self) -> list[Manifest]:
        """Return every platform's image, one at least.

        Raises CheckFailed, which says which document does not match its digest or makes no sense.
        """
        try:
            found = Documents(self.path, self.open, self.has).manifests()
        except _BROKEN as error:
            raise CheckFailed(f"{self.path}: its documents make no sense: {error!r:.200}") from error
        if not found:
            raise CheckFailed(f"{self.path}: it holds no image")
        return found

    def verify(self, layer: LayerBlob) -> None:
        """Compare a layer's file with its digest; raises CheckFailed when somebody changed it."""
        if layer.digest:
            with self.open(layer.name) as stream:
                actual = digest_of(stream)
            if actual != layer.digest:
                raise CheckFailed(
                    f"{self.path}: layer {layer.digest} was tampered with or damaged: its content is {actual}"
                )

    @property
    def size(self) -> int:
        """How large the archive, or all that is in the layout, is in bytes."""
        files = walk(self.path) if self._tar is None else [self.path]
        return sum(path.stat().st_size for path in files)

    def budget(self, images: int = 1) -> Budget:
        """Return what reading all layers of one image may come to, of so many that are read one by one.

        Raises CheckFailed where unpacking the archive so often is too much.
        """
        budget = Budget(self.path, self.size, images=images)
        budget.take_bytes(self._unpacked // FEW_IMAGES)  # which happens again for each image
        return budget

    def entries(self, layer: LayerBlob, budget: Budget) -> Iterator[tuple[Tar, Entry]]:
        """Yield what a layer holds; an entry's content can be had of its tar before the next is asked for.

        Raises CheckFailed in the end when the whole is not what the image's configuration says, or once it is
        too much, and what ``tarfile`` and the decompressors raise.
        """
        with self.content(layer) as content:
            stream = _Hashing(content)
            with open_tar(stream=cast("IO[bytes]", stream), mode="r|") as tar:
                for entry in budget.entries(tar):
                    yield tar, entry
            budget.rest(stream)  # what follows the tar's end mark belongs to the digest too
        with self.open(layer.name) as blob:  # long headers of gzip are read, and unpack to nothing
            budget.take_bytes(max(0, blob.seek(0, os.SEEK_END) - stream.size))
        if f"sha256:{stream.digest.hexdigest()}" != layer.diff_id:
            raise CheckFailed(f"{self.path}: layer {layer.diff_id} was tampered with: its content is another")

    @contextmanager
    def content(self, layer: LayerBlob) -> Iterator[IO[bytes]]:
        """Open the tar inside a layer."""
        with self.open(layer.name) as stream:
            kind = media_type(stream.read(4))
            stream.seek(0)
            if kind == PLAIN:
                yield stream
            else:
                with pieces.opened(stream, is_gzip=kind == MEDIA_TYPE) as inner:
                    yield inner


class _Hashing:
    """A stream that hashes what is read from it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.digest: Any = hashlib.sha256()
        self.size = 0
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self.size += len(block)
        self.digest.update(block)
        return block


def open_image(path: Path) -> ImageFile:
    """Open an OCI archive, an OCI layout folder or a saved image.

    Raises UsageError for anything else, CheckFailed for one that looks like a bomb.
    """
    if path.is_dir():
        if not (path / "index.json").is_file():
            raise UsageError(f"{path}: not an OCI layout: it has no index.json")
        for file in walk(path):
            refuse_holes(file)
        return ImageFile(path=path, _tar=None, _members={})
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    refuse_holes(path)
    stack = ExitStack()
    try:
        stream, unpacked = _plain(path, stack)
        tar = stack.enter_context(open_tar(stream=stream, mode="r:"))
        entries = Budget(path, path.stat().st_size, most=_MAX_BLOBS).entries(tar)
        members = _by_name(path, entries)
    except CheckFailed:
        stack.close()
        raise
    except (*_BROKEN, OSError) as error:
        stack.close()
        if isinstance(error, OSError) and error.errno in OF_THIS_MACHINE:
            raise
        raise UsageError(
            f"{path}: not an image: it is no tar archive, plain or compressed with gzip, or a damaged one"
        ) from error
    _follow_links(members)
    if "index.json" not in members and "manifest.json" not in members:
        stack.close()
        raise UsageError(
            f"{path}: a tar archive, but not an image: it has neither index.json nor manifest.json"
        )
    return ImageFile(path=path, _tar=tar, _members=members, _unpacked=unpacked, _stack=stack)


def _plain(path: Path, stack: ExitStack) -> tuple[IO[bytes], int]:
    """Open an archive; of a compressed one a temporary copy, of which the size is returned, too.

    Else each file that is opened would unpack again what is before it.

    Raises CheckFailed for one that looks like a bomb.
    """
    file = stack.enter_context(path.open("rb"))
    is_gzip = file.read(2) == pieces.GZIP
    file.seek(0)
    if not is_gzip:
        return file, 0
    copy = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    budget = Budget(path, path.stat().st_size)
    with pieces.opened(file, is_gzip=True) as unpacked:
        for block in budget.blocks(unpacked):
            copy.write(block)
    copy.seek(0)
    return copy, budget.total


def _by_name(path: Path, entries: Iterator[Entry]) -> dict[str, Entry]:
    """Return the entries of an archive; CheckFailed for two of one name, of which readers take either."""
    found: dict[str, Entry] = {}
    for entry in entries:
        name = posixpath.normpath(f"/./{entry.name}")[1:]
        if name in found and not (entry.isdir() and found[name].isdir()):
            raise CheckFailed(f"{path}: refused: it has two files with the name {name!r:.200}")
        found[name] = entry
    return found


def _follow_links(members: dict[str, Entry]) -> None:
    """Put what links lead to in their place: podman and old dockers link a layer's file to another's."""
    for name, member in list(members.items()):
        if member.issym() or member.islnk():
            target = str(Path(name).parent / member.linkname) if member.issym() else member.linkname
            parts: list[str] = []
            for part in Path(target).parts:
                if part != "..":
                    parts.append(part)
                elif parts:
                    parts.pop()
            if (linked := members.get("/".join(parts))) is not None:
                members[name] = linked
