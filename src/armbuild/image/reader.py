"""Reading images: OCI layouts (a folder or a tar) and what `docker save` and `podman save` write.

Formats: OCI image specification, image-layout.md and manifest.md; Docker image specification v1.2.
Every blob is compared with its digest before it is used.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import posixpath
import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from armbuild.artifact.archives import BROKEN, ZstdFile, open_file, open_tar, walk
from armbuild.artifact.limits import Budget, refuse_holes
from armbuild.errors import CheckFailed, UsageError
from armbuild.image import documents
from armbuild.image.layers import MEDIA_TYPE, PLAIN, media_type

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
DOCUMENT_LIMIT = 16 << 20
"""Bytes of one document, and of all that are read to list an archive's images."""
MAX_MANIFESTS = 100
MAX_LAYERS = 1000
"""Of one image; overlay file systems mount 500 at most."""
LISTS = ("Env", "Entrypoint", "Cmd")
_BROKEN = tuple(kind for kind in BROKEN if kind is not OSError)


@dataclass(frozen=True, kw_only=True)
class LayerBlob:
    """A layer as the manifest names it."""

    digest: str
    """Of the file in the archive; empty where the format has none (docker save)."""
    diff_id: str
    media_type: str
    name: str
    """Of the file in the archive."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One image of one platform."""

    architecture: str
    config: Mapping[str, Any]
    """Its ``config`` is an object, and the ``Labels`` therein are texts."""
    config_name: str
    """Of its file in the archive."""
    layers: tuple[LayerBlob, ...]
    digest: str
    """Of the manifest; of the configuration where the format has no manifest."""
    annotations: Mapping[str, str]
    name: str | None
    """What the archive calls it."""


@dataclass(kw_only=True)
class ImageFile:
    """An opened archive or layout; ``open_image`` makes it."""

    path: Path
    _tar: tarfile.TarFile | None
    _members: dict[str, tarfile.TarInfo]
    _documents: int = 0
    """Bytes of documents that were read to list the images."""
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
        self._documents = 0
        try:
            found = self._oci() if self.has("index.json") else self._docker()
            if self.has("index.json") and self.has("manifest.json"):
                self._compare(found)
            for manifest in found:
                _check_texts(manifest)
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
        """Return what reading all layers of one image may come to, of so many that are read one by one."""
        return Budget(self.path, self.size, images=images)

    def entries(self, layer: LayerBlob, budget: Budget) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
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
                opened = gzip.GzipFile(fileobj=stream) if kind == MEDIA_TYPE else ZstdFile(stream)
                with opened as inner:
                    yield cast("IO[bytes]", inner)

    def _document(self, name: str, digest: str = "") -> dict[str, Any]:
        with self.open(name) as stream:
            content = stream.read(DOCUMENT_LIMIT - self._documents + 1)
        self._documents += len(content)
        if self._documents > DOCUMENT_LIMIT:
            most = f"{DOCUMENT_LIMIT >> 20} MiB"
            raise CheckFailed(f"{self.path}: refused: its documents have more than {most}")
        if digest and f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise CheckFailed(
                f"{self.path}: {name} was tampered with or damaged: it does not match its digest"
            )
        loaded = documents.parsed(content)
        if not isinstance(loaded, dict):
            raise CheckFailed(f"{self.path}: {name} is not an object")
        return documents.spelled(loaded, documents.DOCUMENT)

    def _oci(self) -> list[Manifest]:
        waiting, found = list(self._document("index.json")["manifests"]), []
        if self.has("repositories") and not self.has("manifest.json"):
            raise ValueError("it names other images for old dockers")
        for number in itertools.count():
            if not waiting:
                break
            if number == MAX_MANIFESTS:  # an image behind them would be looked at by nobody but a runtime
                raise CheckFailed(f"{self.path}: refused: more than {MAX_MANIFESTS} manifests and indexes")
            entry = documents.spelled(waiting.pop(0), documents.DESCRIPTOR)
            document = self._document(blob_name(entry["digest"]), entry["digest"])
            documents.check_kind(entry, document)
            if entry.get("mediaType") in INDEXES or "manifests" in document:
                name = entry.get("annotations", {})
                waiting += [
                    {**inner, "annotations": {**name, **inner.get("annotations", {})}}
                    for inner in document["manifests"]
                ]
            elif "layers" in document and "config" in document:
                found.append(self._image(entry, document))
        return [manifest for manifest in found if manifest is not None]

    def _compare(self, found: list[Manifest]) -> None:
        """Raise CheckFailed unless docker, which reads manifest.json, gets an image of index.json too."""
        known = {(image.config_name, *(layer.name for layer in image.layers)) for image in found}
        with self.open("manifest.json") as stream:
            listed = documents.parsed(stream.read(DOCUMENT_LIMIT))
        if any(
            (documents.spelled(entry, documents.SAVED)["Config"], *entry["Layers"]) not in known
            for entry in listed
        ):
            raise CheckFailed(
                f"{self.path}: was tampered with: manifest.json, which docker reads, names another image than"
                " index.json"
            )

    def _image(self, entry: dict[str, Any], document: dict[str, Any]) -> Manifest | None:
        reference = documents.spelled(document["config"], documents.DESCRIPTOR)["digest"]
        config = self._document(blob_name(reference), reference)
        architecture = config.get("architecture", "")
        platform = documents.spelled(entry.get("platform") or {}, documents.PLATFORM).get(
            "architecture", architecture
        )
        if "rootfs" not in config or architecture == platform == "unknown":
            return None  # an artifact, such as an attestation
        if architecture != platform:
            raise ValueError(f"its index says {platform!r:.50}, its configuration {architecture!r:.50}")
        diffs = documents.spelled(config["rootfs"], documents.ROOT)["diff_ids"]
        if len(diffs) > MAX_LAYERS:
            raise CheckFailed(f"{self.path}: refused: {len(diffs)} layers, more than {MAX_LAYERS}")
        if len(diffs) != len(document["layers"]):
            raise CheckFailed(f"{self.path}: {len(document['layers'])} layers, {len(diffs)} contents")
        layers = [documents.spelled(layer, documents.DESCRIPTOR) for layer in document["layers"]]
        names = entry.get("annotations", {})
        return Manifest(
            architecture=architecture,
            config=_checked(config),
            config_name=blob_name(reference),
            layers=tuple(
                LayerBlob(
                    digest=layer["digest"],
                    diff_id=diff,
                    media_type=layer.get("mediaType", MEDIA_TYPE),
                    name=blob_name(layer["digest"]),
                )
                for layer, diff in zip(layers, diffs, strict=True)
            ),
            digest=entry["digest"],
            annotations=document.get("annotations", {}),
            name=names.get("io.containerd.image.name") or names.get("org.opencontainers.image.ref.name"),
        )

    def _docker(self) -> list[Manifest]:
        with self.open("manifest.json") as stream:
            listed = documents.parsed(stream.read(DOCUMENT_LIMIT))
        found = []
        if len(listed) > MAX_MANIFESTS:
            raise CheckFailed(f"{self.path}: refused: {len(listed)} images, more than {MAX_MANIFESTS}")
        for entry in listed:
            config = self._document(documents.spelled(entry, documents.SAVED)["Config"])
            with self.open(entry["Config"]) as stream:
                digest = digest_of(stream)
            diffs = documents.spelled(config["rootfs"], documents.ROOT)["diff_ids"]
            if len(diffs) > MAX_LAYERS:
                raise CheckFailed(f"{self.path}: refused: {len(diffs)} layers, more than {MAX_LAYERS}")
            found.append(
                Manifest(
                    architecture=config.get("architecture", ""),
                    config=_checked(config),
                    config_name=entry["Config"],
                    layers=tuple(
                        LayerBlob(digest="", diff_id=diff, media_type=PLAIN, name=name)
                        for name, diff in zip(entry["Layers"], diffs, strict=True)
                    ),
                    digest=digest,
                    annotations={},
                    name=next(iter(entry.get("RepoTags") or []), None),
                )
            )
        return found


class _Hashing:
    """A stream that hashes what is read from it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.digest: Any = hashlib.sha256()
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
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
        tar = stack.enter_context(open_tar(path))
        entries = Budget(path, path.stat().st_size).entries(tar)
        members = _by_name(path, entries)
    except CheckFailed:
        stack.close()
        raise
    except (*_BROKEN, OSError) as error:
        stack.close()
        raise UsageError(f"{path}: not an image: it is no tar archive, or a damaged one") from error
    _follow_links(members)
    if "index.json" not in members and "manifest.json" not in members:
        stack.close()
        raise UsageError(
            f"{path}: a tar archive, but not an image: it has neither index.json nor manifest.json"
        )
    return ImageFile(path=path, _tar=tar, _members=members, _stack=stack)


def _by_name(path: Path, entries: Iterator[tarfile.TarInfo]) -> dict[str, tarfile.TarInfo]:
    """Return the entries of an archive; CheckFailed for two of one name, of which readers take either."""
    found: dict[str, tarfile.TarInfo] = {}
    for entry in entries:
        name = posixpath.normpath(f"/./{entry.name}")[1:]
        if name in found and not (entry.isdir() and found[name].isdir()):
            raise CheckFailed(f"{path}: refused: it has two files with the name {name!r:.200}")
        found[name] = entry
    return found


def _follow_links(members: dict[str, tarfile.TarInfo]) -> None:
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


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    """Return an image's configuration with the parts that may be missing; raises one of _BROKEN."""
    settings = documents.spelled(dict(config.get("config") or {}), documents.SETTINGS)
    labels = dict(settings.get("Labels") or {})
    if not all(isinstance(value, str) for value in labels.values()):
        raise TypeError("a label that is no text")
    health = dict(settings.get("Healthcheck") or {})
    for name, value in (*((name, settings.get(name)) for name in LISTS), ("Test", health.get("Test"))):
        texts = value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value))
        if not texts:
            raise TypeError(f"its {name} is no list of texts")
    user = settings.get("User") or ""
    if not isinstance(user, str):
        raise TypeError("its User is no text")
    lists = (settings.get(name) or [] for name in LISTS)
    for text in (user, *labels, *labels.values(), *(health.get("Test") or []), *itertools.chain(*lists)):
        if "\0" in text or text.encode(errors="replace") != text.encode(errors="surrogatepass"):
            raise ValueError(f"{text!a:.100} is no text that a program can be given")
    return {**config, "config": {**settings, "Labels": labels}}


def _check_texts(manifest: Manifest) -> None:
    """Raise TypeError where a document has something else than a text."""
    layers = (text for layer in manifest.layers for text in vars(layer).values())
    annotations = (*manifest.annotations.keys(), *manifest.annotations.values())
    name = "" if manifest.name is None else manifest.name
    own = (manifest.architecture, manifest.digest, manifest.config_name, name)
    for text in (*own, *annotations, *layers):
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.100} is no text")


def blob_name(digest: str) -> str:
    """Return where a layout keeps the blob with this digest; raises ValueError for what is no digest."""
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"{digest!r} is not a sha256 digest")
    return digest.replace("sha256:", "blobs/sha256/")


def digest_of(stream: IO[bytes]) -> str:
    """Return the digest of a stream's content as manifests write it."""
    seen = hashlib.sha256()
    while block := stream.read(1 << 20):
        seen.update(block)
    return f"sha256:{seen.hexdigest()}"
