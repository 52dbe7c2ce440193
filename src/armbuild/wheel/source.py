"""A project's files, mirrored into a folder of our own: a build writes nothing into the project."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING

from armbuild.host import process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CACHES = frozenset(
    {".git", ".hg", ".tox", ".nox", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
)
OUTPUTS = frozenset({"build", "dist", "wheelhouse", "venv"})
"""At the top of a project, what earlier builds left; deeper these are ordinary names. Where git knows the
project's files, neither list is used."""
MANIFEST = "manifest.json"


def mirror(project: Path, folder: Path, *, leave_out: Path | None = None, complete: bool = False) -> Path:
    """Make ``folder/source`` equal to the project's files, but for those below ``leave_out``, and return it.

    ``complete``: every file counts, as in an sdist, where a folder ``build`` is no left-over.

    Only what changed is written, with the time of writing: build systems then see a change even where the
    new file is older. In a git work tree these are the files that git tracks or would offer to add.
    """
    target, manifest = folder / "source", folder / MANIFEST
    target.mkdir(parents=True, exist_ok=True)
    try:
        known: dict[str, list[int]] = json.loads(manifest.read_text())
    except (OSError, ValueError):
        known = {}
    manifest.unlink(missing_ok=True)  # an interrupted copy starts again
    seen: dict[str, list[int]] = {}
    for name in _files(project, complete=complete):
        source, copy = project / name, target / name
        if leave_out and project in leave_out.parents and source.is_relative_to(leave_out):
            continue
        stat = source.lstat()
        seen[name] = [stat.st_mtime_ns, stat.st_size, stat.st_mode]
        if known.get(name) == seen[name] and os.path.lexists(copy):
            continue
        _make_folder(copy.parent, target)
        _remove(copy)
        if source.is_symlink():
            copy.symlink_to(source.readlink())
        else:
            shutil.copyfile(source, copy)
            shutil.copymode(source, copy)
    for name in known.keys() - seen.keys():
        _make_folder((target / name).parent, target)
        _remove(target / name)
    _link_history(project, target)
    manifest.write_text(json.dumps(seen))
    return target


def _make_folder(folder: Path, top: Path) -> None:
    """Make ``folder`` below ``top``, in place of a link that a build left there to anywhere."""
    if folder != top:
        _make_folder(folder.parent, top)
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink(missing_ok=True)
            folder.mkdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _link_history(project: Path, target: Path) -> None:
    """Let back ends that compute the version from git see the history."""
    link = target / ".git"
    _remove(link)
    if (project / ".git").is_dir():
        link.symlink_to((project / ".git").resolve())  # which may be a link to the folder itself
    elif (project / ".git").is_file():  # a work tree or submodule: the file names the real folder
        shutil.copyfile(project / ".git", link)


def _files(project: Path, *, complete: bool) -> list[str]:
    listed = None
    if (project / ".git").exists() and not complete:
        tracked = process.succeeds(
            [*process.GIT, "-C", project, "ls-files", "-z", "--cached", "--recurse-submodules"]
        )
        others = process.succeeds(
            [*process.GIT, "-C", project, "ls-files", "-z", "--others", "--exclude-standard"]
        )
        if tracked is not None and others is not None:
            listed = [name for name in {*tracked.split("\0"), *others.split("\0")} if name]
    names = listed if listed is not None else list(_walk(project, complete=complete))
    return sorted(name for name in names if _is_file(project / name))


def complete(folder: Path) -> bool:
    """Return whether every file of a source folder counts: no git says which do."""
    return not (folder / ".git").exists()


def digest(folder: Path) -> str:
    """Return the hash of a source folder's files: in-toto's ``dirHash``, as Go's modules have it.

    Of a link it is the text that counts. In a git work tree the files are those of ``mirror``.
    """
    total = hashlib.sha256()
    for name in _files(folder, complete=complete(folder)):
        path = folder / name
        content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        total.update(f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def has_cxx(folder: Path) -> bool:
    """Return whether there is C++ code in a source folder."""
    return any(path.suffix in (".cpp", ".cc", ".cxx", ".pyx", ".mm") for path in folder.rglob("*"))


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _walk(project: Path, *, complete: bool) -> Iterator[str]:
    for parent, folders, files in os.walk(project):
        remaining = []
        for name in sorted(folders):
            path = os.path.join(parent, name)  # noqa: PTH118 - os.walk speaks in strings
            if os.path.islink(path):  # noqa: PTH114
                files.append(name)
            elif complete or (name not in CACHES and not (parent == str(project) and name in OUTPUTS)):
                remaining.append(name)
        folders[:] = remaining
        for name in files:
            yield os.path.relpath(os.path.join(parent, name), project)  # noqa: PTH118
