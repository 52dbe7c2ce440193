"""Debian's packages as files: their control fields, and their content below a root, without root rights."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, cast

from armbuild.artifact import archives
from armbuild.artifact.limits import MAX_ENTRIES, Budget
from armbuild.errors import BuildError, CheckFailed, packages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from armbuild.artifact.tar_headers import Entry, Tar

_CONTROL_LIMIT = 256 << 10
"""Bytes of a package's control file; those of Debian stay far below."""
_CONTROL_FILES = 1000
"""Of a package's scripts and fields, of which Debian's have some 20."""
MERGED = ("bin", "sbin", "lib")  # these folders are links into usr/ on every Debian since bookworm


def control(package: Path) -> dict[str, str]:
    """Return the control fields of a .deb file by name, continuation lines included."""
    with packages_of("build"):
        from debian.deb822 import Deb822  # noqa: PLC0415 - an audit does without this extra

    text: bytes | None = None

    def take(tar: Tar, member: Entry) -> None:
        nonlocal text
        if text is None and member.isreg() and PurePosixPath(member.name) == PurePosixPath("control"):
            if member.size > _CONTROL_LIMIT:
                raise CheckFailed(f"its control file has {member.size} bytes")
            text = cast("IO[bytes]", tar.extractfile(member)).read()

    _read(package, "--ctrl-tarfile", take, _CONTROL_FILES)
    if text is None:
        raise BuildError(f"{package.name} is damaged: it has no control file")
    try:
        return dict(Deb822([line.decode() for line in text.splitlines()]))
    except ValueError as error:
        raise BuildError(f"{package.name} is damaged: {error}") from error


def _read(
    package: Path,
    part: str,
    take: Callable[[Tar, Entry], None],
    most: int = MAX_ENTRIES,
) -> None:
    """Give each entry of a package's ``part``, an option of dpkg-deb, to ``take``, before it is too much.

    Raises BuildError for a damaged package.
    """
    budget = Budget(package, package.stat().st_size, most=most)
    with subprocess.Popen(
        ["dpkg-deb", part, package], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        try:
            with archives.open_tar(stream=cast("IO[bytes]", child.stdout), mode="r|") as tar:
                for member in budget.entries(tar):
                    take(tar, member)
        except (*archives.BROKEN, CheckFailed) as error:
            if isinstance(error, OSError) and error.errno in archives.OF_THIS_MACHINE:
                raise
            raise BuildError(f"{package.name} is damaged: {error}") from error
    if child.returncode:
        raise BuildError(f"dpkg-deb cannot read {package.name}: it is damaged")


def installed(status: str) -> Iterator[dict[str, str]]:
    """Yield the fields of the packages that dpkg's status file, or one of status.d, says are there."""
    # Without python-debian: an audit has the base packages alone. 790 packages take 8 ms, with it 51 ms.
    for stanza in status.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
        if fields.get("Package") and fields.get("Version") and "deinstall" not in fields.get("Status", ""):
            yield fields


def unpack(packages: list[Path], root: Path, *, only: frozenset[str] = frozenset()) -> None:
    """Unpack .deb files over one another into ``root``, with /usr merged and absolute links made relative.

    Owners and device files are left out, as an ordinary user must; modes are kept. ``only`` names the files
    wanted (``usr/bin/x``), all when empty. Raises BuildError for a damaged package or one that writes
    outside ``root``.
    """
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")

    def take(tar: Tar, member: Entry) -> None:
        if not only or str(merged(member.name)) in only:
            _unpack_member(tar, member, root)

    for package in packages:
        _read(package, "--fsys-tarfile", take)


def _unpack_member(tar: Tar, member: Entry, root: Path) -> None:
    path = merged(member.name)
    if not path.parts:
        return  # ./, the root itself
    target = _place(root, path, member.name)
    if member.isdir():
        if not target.is_dir():
            target.mkdir(parents=True)
    elif member.issym():
        if path == merged(member.linkname) or str(path) in MERGED:
            return  # base-files' own lib -> usr/lib, which is there
        _replace(target)
        target.symlink_to(relative_link(path, member.linkname))
    elif member.islnk():
        _replace(target)
        os.link(_place(root, merged(member.linkname), member.name), target, follow_symlinks=False)
    elif member.isreg():
        _replace(target)
        content = cast("IO[bytes]", tar.extractfile(member))  # a regular file has content
        with target.open("wb") as sink:
            shutil.copyfileobj(content, sink, 1 << 20)
        target.chmod(member.mode & 0o777)


def _place(root: Path, path: PurePosixPath, name: str) -> Path:
    """Return where ``path`` lies below ``root``; BuildError for one that leads outside, by links too."""
    with contextlib.suppress(CheckFailed):
        if path.parts and ".." not in path.parts:
            return archives.inside(root, path.parent, strict=True) / path.name
    raise BuildError(f"a package writes outside its root: {name!r:.200}")


def _replace(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)


def merged(name: str) -> PurePosixPath:
    """Return a package's path below the root as it is with /usr merged: ``./lib/x`` is ``usr/lib/x``."""
    path = PurePosixPath(name.lstrip("/"))
    return (
        PurePosixPath("usr") / path
        if path.parts[:1] and path.parts[0] in MERGED and len(path.parts) > 1
        else path
    )


def relative_link(path: PurePosixPath, target: str) -> str:
    """Return ``target`` of the link at ``path`` so that it stays inside the root wherever that lies."""
    if not target.startswith("/"):
        return target
    return os.path.relpath(merged(target), path.parent)
