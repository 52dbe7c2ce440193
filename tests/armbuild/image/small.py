"""Images of a few files, for tests that need no network: trees, layers, archives."""

import dataclasses
import gzip
import hashlib
import json

from armbuild.artifact.archives import zstd
from armbuild.image import archive, layers


def tree(folder, files):
    """Lay files (name -> text, bytes or a link's target as ("->", target)) into ``folder``."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, tuple):
            path.symlink_to(content[1])
        elif content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def layer(folder, files, *, name="layer", compress=True):
    folder.mkdir(parents=True, exist_ok=True)
    content = tree(folder / f"{name}.tree", files) if files else (folder / f"{name}.tree")
    content.mkdir(exist_ok=True)
    return layers.write(content, folder / f"{name}.tar.gz", comment=name, compress=compress)


def image(written, *, architecture="arm64", annotations=None, **config):
    document = {
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [item.diff_id for item in written]},
        "history": [{"created_by": item.comment} for item in written],
    }
    labels = {"title": "small", **(annotations or {})}
    return archive.Image(config=document, layers=tuple(written), annotations=labels)


def write(folder, *stack, path="image.tar", architecture="arm64", **config):
    """Write an archive whose layers hold the files of ``stack``, the lowest first."""
    written = [layer(folder, files, name=f"layer{number}") for number, files in enumerate(stack)]
    return archive.write(
        [image(written, architecture=architecture, **config)], folder / path, name="localhost/small:1"
    ).path


def with_diff_id(written, diff_id):
    return dataclasses.replace(written, diff_id=diff_id)


def with_zstd(written, *, cut=None):
    """Return the layer compressed as buildkit and podman can do it; ``cut``: its first bytes only."""
    content = zstd.compress(gzip.decompress(written.blob.read_bytes()))[:cut]
    blob = written.blob.with_suffix(".zst")
    blob.write_bytes(content)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    kind = "application/vnd.oci.image.layer.v1.tar+zstd"  # image specification, media-types.md
    return dataclasses.replace(written, blob=blob, media_type=kind, digest=digest, size=len(content))


def layout(folder, layers, count=1):
    """A layout of ``count`` images of ``layers`` equal layers each."""
    (blobs := folder / "blobs/sha256").mkdir(parents=True)

    def blob(document):
        content = json.dumps(document).encode()
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}"}

    layer = f"sha256:{'1' * 64}"
    config = blob({"architecture": "arm64", "rootfs": {"diff_ids": [layer] * layers}})
    manifest = blob({"config": config, "layers": [{"digest": layer}] * layers})
    (folder / "index.json").write_text(json.dumps({"manifests": [manifest] * count}))
    return blobs / ("1" * 64)
