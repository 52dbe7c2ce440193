"""The base image of `--base`: an archive, an OCI layout, or an image in a registry."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from armbuild.artifact import archives
from armbuild.audit.elf import BrokenElf, read_elf
from armbuild.errors import MissingError, UsageError
from armbuild.host import cache, limits
from armbuild.image import content, engines, layer_cache, layers, reader, reference, root, sbom, unpack
from armbuild.image.layers import Layer
from armbuild.image.reference import MACHINES
from armbuild.target import deb_files, debian

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from armbuild.image.documents import LayerBlob, Manifest

OLDEST_GLIBC = "2.28"
"""Of torch and of the packages chosen: manylinux_2_28."""
_LIBRARY_LIMIT, _STATUS_LIMIT, _RECORD_LIMIT = 64 << 20, 16 << 20, 16 << 20
"""Bytes that are read of a base's C library, of its list of packages, and of the RECORD of one."""
DPKG = PurePosixPath("var/lib/dpkg")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
    glibc: str = ""
    """Version of its C library; "" where it hides that."""
    name: str | None = None
    """Of the base image, and its digest; None for a root of our own."""
    digest: str | None = None
    lacking: tuple[str, ...] = ()
    """Debian packages that the engine wants and this base has not."""
    suite: str = ""


def fetch(base: str, architecture: str, work: Path, log: Path) -> Path:
    """Return the file or folder that ``base`` names; what is in a registry is copied into ``work``."""
    path = Path(reference.check_base(base))
    if path.exists():
        return path
    if shutil.which("skopeo") is None:
        raise MissingError(f"--base {base} is in a registry: apt-get install skopeo, or name a local archive")
    target = work / "base.tar"
    source = base if "://" in base else f"docker://{base}"
    platform = ("--override-os", "linux", "--override-arch", architecture)
    engines.copy(
        *platform, source, f"oci-archive:{target}", log=log,
        what=f"--base {base} (a local archive or OCI layout needs no registry)", most=limits.IMAGE,
    )  # fmt: skip
    return target


def read(
    path: Path, architecture: str, python: str, *, name: str, work: Path, replaced: Collection[str] = ()
) -> Foundation:
    """Return an image as a foundation; raises UsageError when the engine cannot stand on it.

    ``replaced`` are names of Python packages that are going to be put where the base has its own.
    """
    with (
        reader.open_image(path) as image,
        tempfile.TemporaryDirectory(prefix="base-", dir=work) as folder,
    ):
        manifest = image.manifest(architecture)
        tree = Path(folder)
        unpack.into_folder(image, manifest, tree)
        variables = _environment(manifest)
        glibc, multiarch = _c_library(tree, architecture, name)
        interpreter, site = _python(tree, python, name, architecture, variables.get("PATH", PATH))
        lacking = {
            "tini": _at(tree, "usr/bin/tini") is None,
            "libtcmalloc-minimal4": _at(tree, root.allocator(architecture)) is None,
            "libstdc++6": not any(_at(tree, f"{place}/libstdc++.so.6") for place in _places(architecture)),
        }
        if lacking["libstdc++6"] and not multiarch:
            raise UsageError(f"--base {name}: it has no libstdc++.so.6, which torch needs: install it there")
        own = [_keep(image, layer, work) for layer in manifest.layers]
        hiding = _hide(tree, site, replaced, work)
        return Foundation(
            layers=(*own, *hiding),
            content=_content(tree, architecture, [manifest.digest, *(layer.digest for layer in hiding)]),
            python=interpreter,
            site=site,
            environment=variables,
            glibc=glibc,
            name=_reference(manifest, path) if Path(name).exists() else name,
            digest=manifest.digest,
            lacking=tuple(package for package, missing in lacking.items() if missing),
            suite=_suite(tree, glibc, name) if any(lacking.values()) else "",
        )


def _reference(manifest: Manifest, path: Path) -> str:
    """Return what a local base calls itself, else its file's name: where it lies is nobody's business."""
    return manifest.name if manifest.name and re.search("[/:]", manifest.name) else path.resolve().name


def _environment(manifest: Manifest) -> dict[str, str]:
    """Return the base's variables; one without a value, which runtimes drop, is dropped."""
    listed = manifest.config.get("config", {}).get("Env") or []
    return dict(item.split("=", 1) for item in listed if "=" in item)


def _at(tree: Path, path: str | PurePosixPath) -> Path | None:
    """Return the file or folder at ``path`` of the image, links followed as inside it; None without one."""
    found = archives.inside(tree, PurePosixPath(path))
    return found if found.exists() else None


def _places(architecture: str) -> list[str]:
    """Return the folders in which distributions have libraries: Debian's first."""
    folders = (f"lib/{root.TRIPLETS[architecture]}", "lib64", "lib")
    return [f"{prefix}{folder}" for folder in folders for prefix in ("usr/", "")]


def _c_library(tree: Path, architecture: str, name: str) -> tuple[str, bool]:
    """Return the GNU C library's version ("" if it hides it), and whether it lies where Debian has it."""
    found = next((place for place in _places(architecture) if _at(tree, f"{place}/libc.so.6")), None)
    if found is None:
        musl = any(tree.glob("lib/ld-musl-*")) or any(tree.glob("usr/lib/ld-musl-*"))
        what = "its C library is musl" if musl else "it has no C library"
        raise UsageError(f"--base {name}: {what}: torch needs the GNU one (glibc)")
    with (_at(tree, f"{found}/libc.so.6") or tree).open("rb") as library:
        content = library.read(_LIBRARY_LIMIT)
    release = re.search(rb"GNU C Library .{1,99} release version (\d{1,9}\.\d{1,9})", content)
    version = release[1].decode() if release else ""
    if version and Version(version) < Version(OLDEST_GLIBC):
        raise UsageError(f"--base {name}: its glibc is {version}: torch needs {OLDEST_GLIBC} or newer")
    return version, root.TRIPLETS[architecture] in found


def _suite(tree: Path, glibc: str, name: str) -> str:
    """Return the Debian release whose packages run on this base: its own, or one with no newer glibc."""
    codename = _release(tree).get("VERSION_CODENAME", "")
    if codename in debian.SUITES:
        return codename
    fitting = [suite for suite, own in debian.GLIBC.items() if not glibc or Version(own) <= Version(glibc)]
    if not fitting:
        oldest = next(iter(debian.GLIBC.values()))
        raise UsageError(
            f"--base {name}: its glibc {glibc} is older than {oldest}, which the Debian packages of tini,"
            " tcmalloc and libstdc++ need: take a newer base, or one that has these"
        )
    return fitting[-1] if glibc else "bookworm"


def _release(tree: Path) -> dict[str, str]:
    """Return what the base's os-release(5) says."""
    path = _at(tree, "etc/os-release")
    text = archives.file_text(path) if path else ""
    return dict(re.findall(r"""^([A-Z_]+)=["']?(.*?)["']?$""", text, re.MULTILINE))


def _python(tree: Path, python: str, name: str, architecture: str, path: str) -> tuple[str, str]:
    """Return the interpreter that the image's PATH finds, and the folder that it reads packages from."""
    program, there = f"python{python}", set()
    for folder in path.split(":"):
        if not folder.startswith("/") or (found := _at(tree, folder)) is None or not found.is_dir():
            continue
        there |= {item.name for item in found.iterdir() if re.fullmatch(r"python3\.\d+", item.name)}
        if interpreter := _at(tree, f"{folder}/{program}"):
            _check_interpreter(interpreter, architecture, name)
            prefix = PurePosixPath(folder).parent
            if not _at(tree, f"{prefix}/pyvenv.cfg"):  # Python looks around the file that links lead to
                prefix = PurePosixPath("/", interpreter.relative_to(tree)).parent.parent
            return f"{folder}/{program}", _site(tree, prefix, program, name)
    have = ", ".join(sorted(there)) or "none"
    raise UsageError(f"--base {name}: it has no Python {python}, which the wheel is for; it has {have}")


def _check_interpreter(interpreter: Path, architecture: str, name: str) -> None:
    with contextlib.suppress(BrokenElf):  # a script in front of it is as good
        machine = read_elf(interpreter).machine
        if machine != MACHINES[architecture]:
            raise UsageError(f"--base {name}: it says linux/{architecture}, but its Python is for {machine}")


def _site(tree: Path, prefix: PurePosixPath, program: str, name: str) -> str:
    """Return where the interpreter below ``prefix`` looks for packages that an administrator adds."""
    libraries = [f"{prefix}/{folder}/{program}" for folder in ("lib", "lib64")]
    standard = [place for place in libraries if _at(tree, f"{place}/asyncio")]
    if not standard and not _at(tree, f"{prefix}/pyvenv.cfg"):
        raise UsageError(f"--base {name}: its {program} lacks the standard library (there is no asyncio)")
    # Debian's own interpreter reads /usr/local/lib/python3.x/dist-packages (its site.py)
    if str(prefix) == "/usr" and (
        _at(tree, "usr/lib/python3/dist-packages") or _at(tree, "etc/debian_version")
    ):
        return f"usr/local/lib/{program}/dist-packages"
    for place in (*standard, *libraries):
        if _at(tree, f"{place}/site-packages"):
            return f"{place}/site-packages".lstrip("/")
    raise UsageError(f"--base {name}: its {program} has no site-packages folder below {prefix}")


def _keep(image: reader.ImageFile, layer: LayerBlob, work: Path) -> Layer:
    """Copy a layer's file as it is: what others have checked and cached stays the same."""
    blob = work / f"layer-{layer.diff_id[7:23]}"
    seen = hashlib.sha256()
    with image.open(layer.name) as source, blob.open("wb") as sink:
        while block := source.read(1 << 20):
            seen.update(block)
            sink.write(block)
    with blob.open("rb") as file:
        kind = layers.media_type(file.read(4))
    return Layer(
        blob=blob,
        media_type=kind,
        digest=f"sha256:{seen.hexdigest()}",
        diff_id=layer.diff_id,
        size=blob.stat().st_size,
        unpacked=blob.stat().st_size,
        comment="base",
    )


def _hide(tree: Path, site: str, names: Collection[str], work: Path) -> list[Layer]:
    """Remove the packages of these names from ``tree``; return the layer that does so in the image, if any.

    Two versions laid over one another would be a mixture. A file ``.wh.NAME`` hides NAME of the layers below:
    OCI image specification, layer.md.
    """
    hidden, found = work / "hidden", set()
    for info in sorted(archives.inside(tree, PurePosixPath(site)).glob("*.dist-info")):
        name = canonicalize_name(info.name.partition("-")[0])
        if name not in names:
            continue
        found.add(name)
        record = archives.inside(tree, PurePosixPath(info.relative_to(tree), "RECORD"))
        rows = csv.reader(io.StringIO(archives.file_text(record, _RECORD_LIMIT))) if record.is_file() else ()
        try:
            gone = {
                archives.inside(tree, PurePosixPath(site, row[0]))
                for row in rows
                if row and ".." not in row[0]
            }
        except csv.Error as error:
            raise UsageError(f"the base's {info.name}/RECORD cannot be read: {error}") from error
        for path in (*(path for path in gone if path.is_file() and path.parent != info), info):
            mark = hidden / path.relative_to(tree).with_name(f".wh.{path.name}")
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
    if not found:
        return []
    comment = f"base: without its own {', '.join(sorted(found))}"
    return [layers.write(hidden, work / "hidden.tar.gz", comment=comment)]


def _content(tree: Path, architecture: str, digests: list[str]) -> content.Content:
    """Audit the base, once for its digests and each state of the audit."""

    def make(folder: Path) -> None:
        packages = sbom.debian_components(_packages(tree, architecture), tree)
        found = content.inspect(tree, map(sbom.as_json, [*packages, *sbom.python_components(tree)]))
        (folder / "content.json").write_text(json.dumps(found.as_dict()))

    folder = cache.fill(cache.root() / "bases" / cache.digest([digests, layer_cache.code()]), make)
    return content.Content.from_dict(json.loads((folder / "content.json").read_text()))


def _packages(tree: Path, architecture: str) -> list[root.Package]:
    """Return the Debian packages that the base says it has; none for other distributions."""
    release = _release(tree)
    parts = _at(tree, DPKG / "status.d")
    names = sorted(path.name for path in parts.iterdir()) if parts and parts.is_dir() else []
    places = [DPKG / "status", *(DPKG / "status.d" / name for name in names if not name.endswith(".md5sums"))]
    return [
        root.Package(
            name=fields["Package"],
            version=fields["Version"],
            architecture=fields.get("Architecture", architecture),
            source=fields.get("Source", fields["Package"]).partition(" ")[0],
            suite=release.get("VERSION_CODENAME") or release.get("VERSION_ID", "unknown"),
            vendor=release.get("ID", "debian"),
        )
        for path in filter(None, (_at(tree, place) for place in places))
        if path.is_file()
        for fields in deb_files.installed(archives.file_text(path, _STATUS_LIMIT))
    ]
