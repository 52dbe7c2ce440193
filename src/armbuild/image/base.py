"""What an image stands on when the user brings it: an archive, an OCI layout, or an image in a registry."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armbuild import cache, debian, process
from armbuild.errors import MissingError, UsageError
from armbuild.image import content, reader, root, unpack
from armbuild.image.layers import MEDIA_TYPE, PLAIN, Layer

if TYPE_CHECKING:
    from collections.abc import Mapping

LOADERS = {"arm64": "ld-linux-aarch64.so.1", "amd64": "ld-linux-x86-64.so.2"}


@dataclass(frozen=True, kw_only=True)
class Foundation:
    """The lowest layers of an image, and where things are in it."""

    layers: tuple[Layer, ...]
    content: content.Content
    python: str
    """Path of the interpreter in the image."""
    site: str
    """Folder in the image, without the leading slash, that this interpreter reads packages from."""
    environment: Mapping[str, str]
    name: str | None = None
    """Of the base image, and its digest; None for a root of our own."""
    digest: str | None = None
    lacking: tuple[str, ...] = ()
    """Debian packages that the engine wants and this base has not."""
    suite: str = ""


def fetch(base: str, architecture: str, work: Path, log: Path) -> Path:
    """Return the file or folder that ``base`` names; what is in a registry is copied into ``work``."""
    path = Path(base)
    if path.exists():
        return path
    if re.match(r"[./~]", base) or base.endswith((".tar", ".tar.gz", ".tgz")):
        raise UsageError(f"--base {base}: no such file or folder")
    if shutil.which("skopeo") is None:
        raise MissingError(f"--base {base} is in a registry: apt-get install skopeo, or name a local archive")
    target = work / "base.tar"
    command = ["skopeo", "copy", "--quiet", "--override-os", "linux", "--override-arch", architecture]
    source = base if "://" in base else f"docker://{base}"
    process.run(
        [*command, source, f"oci-archive:{target}"], log=log, what=f"--base {base}", error=MissingError
    )
    return target


def read(path: Path, architecture: str, python: str, *, name: str, work: Path) -> Foundation:
    """Return an image as a foundation; raises UsageError when the engine cannot stand on it."""
    with reader.open_image(path) as image:
        manifest = image.manifest(architecture)
        tree = work / f"base-{architecture}"
        tree.mkdir()
        unpack.unpack(image, manifest, tree)
        layers = tuple(_keep(image, layer, work) for layer in manifest.layers)
    if not any(tree.glob(f"**/{LOADERS[architecture]}")):
        raise UsageError(f"--base {name}: it has no GNU C library, which torch needs (a musl or empty image)")
    interpreter, site = _python(tree, python, name)
    release = (tree / "etc/os-release").read_text() if (tree / "etc/os-release").is_file() else ""
    codename = re.search(r"^VERSION_CODENAME=(\w+)$", release, re.MULTILINE)
    suite = codename[1] if codename and codename[1] in debian.SUITES else "bookworm"
    found = _content(tree, architecture, manifest.digest)
    lacking = {
        "tini": not (tree / "usr/bin/tini").exists(),
        "libtcmalloc-minimal4": not (tree / root.allocator(architecture).lstrip("/")).exists(),
        "libstdc++6": not any(tree.glob("**/libstdc++.so.6")),
    }
    shutil.rmtree(tree)
    variables = (item.partition("=") for item in manifest.config.get("config", {}).get("Env") or [])
    return Foundation(
        layers=layers,
        content=found,
        python=interpreter,
        site=site,
        environment={key: value for key, _, value in variables},
        name=name,
        digest=manifest.digest,
        lacking=tuple(package for package, missing in lacking.items() if missing),
        suite=suite,
    )


def _python(tree: Path, python: str, name: str) -> tuple[str, str]:
    program = f"python{python}"
    if (tree / f"usr/local/bin/{program}").exists():
        return f"/usr/local/bin/{program}", f"usr/local/lib/{program}/site-packages"
    if (tree / f"usr/bin/{program}").exists():
        if (tree / "usr/lib/python3/dist-packages").is_dir() or (tree / "etc/debian_version").exists():
            return f"/usr/bin/{program}", f"usr/local/lib/{program}/dist-packages"
        for folder in ("usr/lib64", "usr/lib"):
            if (tree / folder / program / "site-packages").is_dir():
                return f"/usr/bin/{program}", f"{folder}/{program}/site-packages"
    there = sorted(
        {path.name for path in tree.glob("usr/**/bin/python3.*") if re.fullmatch(r"python3\.\d+", path.name)}
    )
    have = ", ".join(there) or "none"
    raise UsageError(f"--base {name}: it has no Python {python}, which the wheel is for; it has {have}")


def _keep(image: reader.ImageFile, layer: reader.LayerBlob, work: Path) -> Layer:
    """Copy a layer's file as it is: what others have checked and cached stays the same."""
    blob = work / f"layer-{layer.diff_id[7:23]}"
    seen = hashlib.sha256()
    with image.open(layer.name) as source, blob.open("wb") as sink:
        while block := source.read(1 << 20):
            seen.update(block)
            sink.write(block)
    with blob.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return Layer(
        blob=blob,
        media_type=MEDIA_TYPE if compressed else PLAIN,
        digest=f"sha256:{seen.hexdigest()}",
        diff_id=layer.diff_id,
        size=blob.stat().st_size,
        unpacked=blob.stat().st_size,
        comment="base",
    )


def _content(tree: Path, architecture: str, digest: str) -> content.Content:
    """Audit the base, once for each digest."""

    def make(folder: Path) -> None:
        found = content.inspect(tree, content.debian_components(_packages(tree, architecture)))
        (folder / "content.json").write_text(json.dumps(found.as_dict()))

    folder = cache.fill(cache.root() / "bases" / digest.rpartition(":")[2], make)
    return content.Content.from_dict(json.loads((folder / "content.json").read_text()))


def _packages(tree: Path, architecture: str) -> list[root.Package]:
    """Return the Debian packages that the base says it has; none for other distributions."""
    files = [tree / "var/lib/dpkg/status", *sorted((tree / "var/lib/dpkg").glob("status.d/*"))]
    found = []
    for path in files:
        if not path.is_file() or path.suffix == ".md5sums":
            continue
        for stanza in path.read_text(errors="replace").split("\n\n"):
            fields: dict[str, Any] = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
            if "Package" in fields and "Version" in fields and "deinstall" not in fields.get("Status", ""):
                found.append(
                    root.Package(
                        name=fields["Package"],
                        version=fields["Version"],
                        architecture=fields.get("Architecture", architecture),
                        source=fields.get("Source", fields["Package"]).partition(" ")[0],
                        suite="base",
                    )
                )
    return found
