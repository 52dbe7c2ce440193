"""Writing images: an OCI layout in one tar, which also carries what `docker load` reads.

OCI image specification, image-layout.md, manifest.md, config.md, image-index.md; docker's manifest.json.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from armbuild.image.documents import blob_name
from armbuild.image.layers import TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from armbuild.image.layers import Layer

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


@dataclass(frozen=True, kw_only=True)
class Image:
    """One platform's image: its configuration and its layers, the lowest first."""

    config: Mapping[str, Any]
    layers: tuple[Layer, ...]
    annotations: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Written:
    """An archive that was written."""

    path: Path
    digest: str
    """Of the manifest, or of the index where there are several platforms."""
    manifests: Mapping[str, str]
    """Architecture -> digest of its manifest."""
    size: int


def write(images: Sequence[Image], path: Path, *, name: str) -> Written:
    """Write ``images`` as the archive ``path``, known as ``name``; nobody ever sees a part of it.

    An OSError names ``path``. Equal images give equal bytes.
    """
    blobs: dict[str, bytes] = {}
    descriptors, manifests = [], {}
    for image in images:
        config = _put(blobs, CONFIG, _json(image.config))
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": [layer.descriptor() for layer in image.layers],
            "annotations": dict(image.annotations),
        }
        descriptor = _put(blobs, MANIFEST, _json(manifest))
        manifests[image.config["architecture"]] = descriptor["digest"]
        platform = {"architecture": image.config["architecture"], "os": "linux"}
        descriptors.append({**descriptor, "platform": platform})
    top = descriptors[0]
    if len(images) > 1:
        common = set.intersection(*(set(image.annotations.items()) for image in images))
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": descriptors}
        top = _put(blobs, INDEX, _json({**index, "annotations": dict(common)}))
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(
            {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{**top, "annotations": names}]}
        ),
        "manifest.json": _json([_docker(images[0], blobs, name)]),
        **{blob_name(digest): content for digest, content in blobs.items()},
    }
    layers = {blob_name(layer.digest): layer for image in images for layer in image.layers}
    _write_tar(path, files, layers)
    return Written(path=path, digest=top["digest"], manifests=manifests, size=path.stat().st_size)


def _docker(image: Image, blobs: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Return what `docker load` reads; of several platforms it takes the first."""
    config = _put(dict(blobs), CONFIG, _json(image.config))
    return {
        "Config": blob_name(config["digest"]),
        "RepoTags": [name],
        "Layers": [blob_name(layer.digest) for layer in image.layers],
    }


def _put(blobs: dict[str, bytes], media_type: str, content: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    blobs[digest] = content
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _write_tar(path: Path, files: Mapping[str, bytes], layers: Mapping[str, Layer]) -> None:
    try:
        with _whole(path) as sink, tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for folder in ("blobs", "blobs/sha256"):
                tar.addfile(_entry(folder, folder=True))
            for name, content in sorted(files.items()):
                tar.addfile(_entry(name, len(content)), io.BytesIO(content))
            for name, layer in sorted(layers.items()):
                if name not in files:
                    with layer.blob.open("rb") as content_file:
                        tar.addfile(_entry(name, layer.size), content_file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """Give a file that becomes ``path`` at the end of the block, unless that raises.

    Until it is whole it has no name (O_TMPFILE, open(2)), so that not even a killed process leaves a part of
    it; on file systems which cannot do that its name is a hidden one.
    """
    scratch = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except OSError:
        descriptor = os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as sink:
            yield sink
            sink.flush()
            os.fsync(descriptor)
            if not os.fstat(descriptor).st_nlink:
                _name(descriptor, scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _name(descriptor: int, path: Path) -> None:
    opened = os.open("/proc/self/fd", os.O_RDONLY)
    try:  # only with a folder to start from does os.link follow the link that /proc has
        os.link(str(descriptor), path, src_dir_fd=opened, follow_symlinks=True)
    finally:
        os.close(opened)


def _entry(name: str, size: int = 0, *, folder: bool = False) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, TIME
    entry.type, entry.mode = (tarfile.DIRTYPE, 0o755) if folder else (tarfile.REGTYPE, 0o644)
    return entry
