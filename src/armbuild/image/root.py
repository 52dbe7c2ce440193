"""The image's root: Debian packages of the target, and the files that their scripts would have made."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from armbuild.errors import BuildError, UsageError
from armbuild.host import cache
from armbuild.target import arm64_root, deb_files, debian

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TRIPLETS = {"arm64": "aarch64-linux-gnu", "amd64": "x86_64-linux-gnu"}
USER, USER_ID = "armllm", 10001
"""The user that the image runs as; a number that no distribution gives to anybody."""
OWNERS = {f"home/{USER}": USER_ID}
WITH_DEPENDENCIES = ("libstdc++6", "libtcmalloc-minimal4", "tini")
"""C++ for torch, the allocator that is preloaded, the init that forwards signals and reaps orphans."""
BEFORE_T64 = {"bullseye", "bookworm"}
RENAMED = {"libtcmalloc-minimal4": "libtcmalloc-minimal4t64"}
"""After those releases, libraries with times in their interface: https://wiki.debian.org/ReleaseGoals/64bit-time."""
ALONE = ("base-files", "ca-certificates", "tzdata")
"""What is wanted without debconf, OpenSSL's program and perl, which only their scripts need."""
LEFT_OUT = frozenset({"dpkg", "libacl1", "libmd0", "libpcre2-8-0", "libselinux1", "tar"})
"""readline-common depends on dpkg for its scripts; the rest comes with dpkg."""
UNUSED = (
    "boot", "etc/alternatives", "etc/cron*", "etc/default", "etc/init.d", "etc/logrotate.d", "etc/rmt",
    "etc/systemd", "etc/update-motd.d", "usr/bin/pdb3*", "usr/bin/pydoc3*", "usr/bin/pygettext3*",
    "usr/bin/tini-static", "usr/lib/*/libtcmalloc_minimal_debug.so*", "usr/lib/binfmt.d", "usr/lib/systemd",
    "usr/lib/tmpfiles.d", "usr/lib/python3*/config-*", "usr/lib/python3*/ensurepip",
    "usr/lib/python3*/idlelib", "usr/lib/python3*/lib2to3", "usr/lib/python3*/test",
    "usr/lib/python3*/turtledemo", "usr/sbin/*", "usr/share/applications", "usr/share/binfmts",
    "usr/share/bug", "usr/share/debconf", "usr/share/doc-base", "usr/share/gdb", "usr/share/info",
    "usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/share/menu", "usr/share/perl5",
    "usr/share/pixmaps", "usr/share/sensible-utils",
)  # fmt: skip
LINKS = {"etc/localtime": "../usr/share/zoneinfo/Etc/UTC"}
NOBODYS_SHELL = "/usr/sbin/nologin"
FILES = {
    "etc/passwd": f"root:x:0:0:root:/root:{NOBODYS_SHELL}\n"
    f"{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:{NOBODYS_SHELL}\n"
    f"nobody:x:65534:65534:nobody:/nonexistent:{NOBODYS_SHELL}\n",
    "etc/group": f"root:x:0:\n{USER}:x:{USER_ID}:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "etc/timezone": "Etc/UTC\n",
}
FOLDERS = ("dev", "etc", f"home/{USER}", "models", "proc", "root", "run", "sys", "usr/local/bin")
HUB = "root/.cache/huggingface"  # where guides mount the cache of the Hugging Face hub
SHARED = ("tmp", "var/tmp", HUB)
BUNDLE = "etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of Debian or its kin, as the bill of materials names it."""

    name: str
    version: str
    architecture: str
    source: str
    suite: str
    vendor: str = "debian"


def suite_of(python: str) -> str:
    """Return the Debian release with this Python; raises UsageError where none has it."""
    suite = arm64_root.SUITES.get(python)
    if suite is None:
        known = ", ".join(version for version in arm64_root.SUITES if version != "3.9")
        raise UsageError(
            f"Python {python}: no Debian release carries it, only {known}; or --base an image that has it"
        )
    return suite


def allocator(architecture: str) -> str:
    """Return where tcmalloc lies in the image."""
    return f"/usr/lib/{TRIPLETS[architecture]}/libtcmalloc_minimal.so.4"


def make(
    tree: Path,
    *,
    python: str | None,
    suite: str,
    architecture: str,
    source: debian.Archive,
    only: Iterable[str] = WITH_DEPENDENCIES,
    log: Path,
) -> tuple[Package, ...]:
    """Lay a root with ``python`` into the empty folder ``tree`` and return the packages in it.

    With ``python`` None only the packages ``only`` are laid out, as an addition to an image that has the
    rest. Raises MissingError when the archive is not available.
    """
    with cache.work_folder("image-root") as work:
        (main := work / "main").mkdir()
        (alone := work / "alone").mkdir()
        own = [name if suite in BEFORE_T64 else RENAMED.get(name, name) for name in only]
        wanted = (f"python{python}", *own) if python else tuple(own)

        def get(names: tuple[str, ...], into: Path, *, dependencies: bool) -> list[Path]:
            return debian.download(
                names,
                suite=suite,
                architecture=architecture,
                source=source,
                into=into,
                dependencies=dependencies,
                log=log,
            )

        files = get(wanted, main, dependencies=python is not None)
        if python:
            files += get(ALONE, alone, dependencies=False)
        files = [file for file in files if file.name.partition("_")[0] not in LEFT_OUT]
        files.sort(key=lambda file: file.name)
        deb_files.unpack(files, tree)
        packages = tuple(_record(tree, file, suite) for file in files)
    _prune(tree)
    if python:
        _finish(tree, python, TRIPLETS[architecture])
    else:
        (tree / f"home/{USER}").mkdir(parents=True)
        for name in deb_files.MERGED:  # whether these are links is the other image's choice
            (tree / name).unlink()
    return packages


def _record(tree: Path, file: Path, suite: str) -> Package:
    """Note a package where scanners look for it in images without dpkg (status.d, as distroless does)."""
    fields = deb_files.control(file)
    try:
        package = Package(
            name=fields["Package"],
            version=fields["Version"],
            architecture=fields["Architecture"],
            source=fields.get("Source", fields["Package"]).partition(" ")[0],
            suite=suite,
        )
    except KeyError as error:
        raise BuildError(f"{file.name} has no field {error}: not a Debian package") from error
    if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", package.name):  # Debian policy, 5.6.1
        raise BuildError(f"{file.name}: {package.name[:80]!r} is not a Debian package's name")
    status = tree / "var/lib/dpkg/status.d" / package.name
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    return package


def _prune(tree: Path) -> None:
    """Remove what serves no running engine; licenses stay."""
    for pattern in UNUSED:
        for path in tree.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in (tree / "usr/share/doc").rglob("*"):
        if path.name != "copyright" and not path.is_dir():
            path.unlink()


def _finish(tree: Path, python: str, triplet: str) -> None:
    """Do by hand what maintainer scripts do on a real system."""
    for name in FOLDERS:
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        (tree / name).mkdir(parents=True, exist_ok=True)
        (tree / name).chmod(0o1777)
    for name, content in FILES.items():
        (tree / name).unlink(missing_ok=True)
        (tree / name).write_text(content)
    # The loader searches these folders by itself; the list is for an ldconfig run in a derived image.
    paths = tree / "etc/ld.so.conf.d" / f"{triplet}.conf"
    paths.parent.mkdir(exist_ok=True)
    paths.write_text(f"/usr/local/lib/{triplet}\n/lib/{triplet}\n/usr/lib/{triplet}\n")
    (tree / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    links = {**LINKS, "usr/bin/python3": f"python{python}", "usr/lib/ssl/cert.pem": f"../../../{BUNDLE}"}
    for name, target in links.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
    bundle_certificates(tree)
    _check(tree, python)


def bundle_certificates(tree: Path) -> None:
    """Join the certificates of Debian's package as its script does; raises BuildError when it holds none."""
    certificates = sorted((tree / "usr/share/ca-certificates").rglob("*.crt"), key=os.fspath)
    if not certificates:
        raise BuildError("Debian's ca-certificates package holds no certificate")
    bundle = tree / BUNDLE
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(path.read_text().rstrip("\n") + "\n" for path in certificates))


def _check(tree: Path, python: str) -> None:
    interpreter = tree / f"usr/bin/python{python}"
    if not interpreter.is_file():
        raise BuildError(f"Debian's python{python} package brought no /usr/bin/python{python}")
    release = (tree / "etc/os-release").read_text()
    if not re.search(r"^ID=debian$", release, re.MULTILINE):
        raise BuildError("base-files of this archive is not Debian's")
