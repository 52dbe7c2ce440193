"""The JSON documents of images: OCI image specification, image-layout.md and manifest.md; Docker's, v1.2.

Every document of a layout is compared with its digest. What an audit and a runtime would take in two ways is
refused: runtimes are written in Go, whose encoding/json takes a name in any letters, and the last of two.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from armbuild.errors import CheckFailed
from armbuild.image.layers import MEDIA_TYPE, PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

DOCUMENT = ("manifests", "layers", "config", "rootfs", "architecture", "mediaType", "annotations", "fsLayers")
DESCRIPTOR, PLATFORM, ROOT = (
    ("digest", "mediaType", "platform", "annotations"),
    ("architecture",),
    ("diff_ids",),
)
SAVED = ("Config", "Layers", "RepoTags")
SETTINGS = ("User", "Env", "Entrypoint", "Cmd", "Labels", "Healthcheck", "Shell", "WorkingDir", "Volumes")
"""Names in objects of documents, as the specifications spell them."""
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


@dataclass
class Documents:
    """Those of the archive or layout at ``path``. It opens a file by name, and says whether it has one."""

    path: Path
    open: Callable[[str], IO[bytes]]
    has: Callable[[str], bool]
    _read: int = 0
    """Bytes of documents that were read."""

    def manifests(self) -> list[Manifest]:
        """Return every platform's image.

        Raises CheckFailed for a document that does not match its digest, and what Python raises for one that
        makes no sense.
        """
        found = self._oci() if self.has("index.json") else self._docker()
        if self.has("index.json") and self.has("manifest.json"):
            self._compare(found)
        for manifest in found:
            _check_texts(manifest)
        return found

    def _document(self, name: str, digest: str = "") -> dict[str, Any]:
        with self.open(name) as stream:
            content = stream.read(DOCUMENT_LIMIT - self._read + 1)
        self._read += len(content)
        if self._read > DOCUMENT_LIMIT:
            most = f"{DOCUMENT_LIMIT >> 20} MiB"
            raise CheckFailed(f"{self.path}: refused: its documents have more than {most}")
        if digest and f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise CheckFailed(
                f"{self.path}: {name} was tampered with or damaged: it does not match its digest"
            )
        loaded = _parsed(content)
        if not isinstance(loaded, dict):
            raise CheckFailed(f"{self.path}: {name} is not an object")
        return _spelled(loaded, DOCUMENT)

    def _oci(self) -> list[Manifest]:
        waiting, found = list(self._document("index.json")["manifests"]), []
        if self.has("repositories") and not self.has("manifest.json"):
            raise ValueError("it names other images for old dockers")
        for number in itertools.count():
            if not waiting:
                break
            if number == MAX_MANIFESTS:  # an image behind them would be looked at by nobody but a runtime
                raise CheckFailed(f"{self.path}: refused: more than {MAX_MANIFESTS} manifests and indexes")
            entry = _spelled(waiting.pop(0), DESCRIPTOR)
            document = self._document(blob_name(entry["digest"]), entry["digest"])
            _check_kind(entry, document)
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
            listed = _parsed(stream.read(DOCUMENT_LIMIT))
        if any((_spelled(entry, SAVED)["Config"], *entry["Layers"]) not in known for entry in listed):
            raise CheckFailed(
                f"{self.path}: was tampered with: manifest.json, which docker reads, names another image than"
                " index.json"
            )

    def _image(self, entry: dict[str, Any], document: dict[str, Any]) -> Manifest | None:
        reference = _spelled(document["config"], DESCRIPTOR)["digest"]
        config = self._document(blob_name(reference), reference)
        architecture = config.get("architecture", "")
        platform = _spelled(entry.get("platform") or {}, PLATFORM).get("architecture", architecture)
        if "rootfs" not in config or architecture == platform == "unknown":
            return None  # an artifact, such as an attestation
        if architecture != platform:
            raise ValueError(f"its index says {platform!r:.50}, its configuration {architecture!r:.50}")
        diffs = _spelled(config["rootfs"], ROOT)["diff_ids"]
        if len(diffs) > MAX_LAYERS:
            raise CheckFailed(f"{self.path}: refused: {len(diffs)} layers, more than {MAX_LAYERS}")
        if len(diffs) != len(document["layers"]):
            raise CheckFailed(f"{self.path}: {len(document['layers'])} layers, {len(diffs)} contents")
        layers = [_spelled(layer, DESCRIPTOR) for layer in document["layers"]]
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
            listed = _parsed(stream.read(DOCUMENT_LIMIT))
        found = []
        if len(listed) > MAX_MANIFESTS:
            raise CheckFailed(f"{self.path}: refused: {len(listed)} images, more than {MAX_MANIFESTS}")
        for entry in listed:
            config = self._document(_spelled(entry, SAVED)["Config"])
            with self.open(entry["Config"]) as stream:
                digest = digest_of(stream)
            diffs = _spelled(config["rootfs"], ROOT)["diff_ids"]
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


def _parsed(content: bytes) -> Any:
    """Return a JSON document; ValueError for a name that is there twice, of which readers take either."""
    return json.loads(content, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name that is there twice")
    return found


def _spelled(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return an object of a document; ValueError for a name in other letters, which Go takes for the same."""
    folded = {name.casefold(): name for name in names}
    for name in value:
        if folded.get(name.casefold(), name) != name:
            raise ValueError(f"{name!r:.100} in place of {folded[name.casefold()]!r}")
    return value


def _check_kind(entry: dict[str, Any], document: dict[str, Any]) -> None:
    """Raise ValueError for a document that is an index and an image (CVE-2021-41190)."""
    kinds = {kind for kind in (entry.get("mediaType"), document.get("mediaType")) if kind}
    both = "manifests" in document and {"layers", "config"} & document.keys()
    if len(kinds) > 1 or both or "fsLayers" in document:
        raise ValueError("an index and an image in one, or an image of the first format")


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    """Return an image's configuration with the parts that may be missing; raises as `manifests`."""
    settings = _spelled(dict(config.get("config") or {}), SETTINGS)
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
