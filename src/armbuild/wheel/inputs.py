"""What a build takes beside the project: variables, requirements, patches, and sources for CMake.

Files and folders are known by their content: it is a part of the build's key, and of the provenance.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from armbuild.artifact import archives
from armbuild.errors import BuildError, CheckFailed, MissingError, UsageError
from armbuild.host import cache, failure, process
from armbuild.toolchain import crossenv
from armbuild.wheel import project, source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from armbuild.wheel.plan import Plan
    from armbuild.wheel.project import Project
    from armbuild.wheel.settings import Settings

OURS = frozenset(
    {"CMAKE_TOOLCHAIN_FILE", "HOME", "PATH", "PYTHONHOME", "PYTHONPATH", "SOURCE_DATE_EPOCH", "TMPDIR"}
)
"""Variables that armbuild decides in every lane."""
COPIES = "sources"
"""The folder, in a build's own, of the copies of added sources."""
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
OUTSIDE_OF_GIT = ("env", "GIT_DIR=/nonexistent", "GIT_CEILING_DIRECTORIES=/", *process.GIT[1:])
"""How git is asked about files that are in no repository, or whose repository must not be looked at."""
PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z0-9_.+-]+)\}")
"""In the value of a variable, the folder of ``--source NAME``; ``${NAME}`` is left to what reads it."""
DECLARED = re.compile(
    r"(?:FetchContent_Declare|CPM(?:Add|Find)Package)\s*\(\s*(?:NAME\s+)?\"?([\w.+-]+)", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file or a folder that somebody adds to a project's sources."""

    name: str
    """Of a patch, its file's name; of sources, the name that FetchContent knows."""
    path: Path
    """Where it was, absolute."""
    digest: Mapping[str, str]
    """Its sha256, or a folder's dirHash, in hexadecimal digits: in-toto's DigestSet."""
    folder: Path | None = None
    """Where an archive was unpacked, or the folder itself; None for a patch."""

    def as_dict(self) -> dict[str, str]:
        """Return it as a JSON value."""
        return {"name": self.name, "path": str(self.path), **self.digest}


def variables(asked: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of ``NAME=VALUE``; raises UsageError for other text, and for what armbuild decides."""
    pairs: dict[str, str] = {}
    for item in asked:
        name, sign, value = item.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise UsageError(f"--env {item}: expected NAME=VALUE")
        if name in OURS:
            raise UsageError(f"--env {name}: armbuild decides it")
        if pairs.get(name, value) != value:
            raise UsageError(f"--env {name} stands twice, with two values")
        pairs[name] = value
    return tuple(sorted(pairs.items()))


def check_variables(asked: Sequence[tuple[str, str]], own: Mapping[str, str], lane: str) -> None:
    """Raise UsageError for a variable that ``own`` sets otherwise; flags of a compiler are added to."""
    for name, value in asked:
        if name in own and not own[name].startswith(value):
            raise UsageError(f"--env {name}: the {lane} lane decides it: {own[name]}")


def require(described: Project, asked: Sequence[str]) -> Project:
    """Return the project with further build requirements; raises UsageError for what is none."""
    try:
        extra = [str(Requirement(item)) for item in asked]
    except InvalidRequirement as error:
        raise UsageError(f"--build-requires: {str(error).splitlines()[0]}") from error
    return replace(described, requires=tuple(dict.fromkeys((*described.requires, *extra))))


def patches(asked: Sequence[str]) -> tuple[Input, ...]:
    """Return the patch files that ``asked`` names; raises UsageError for one that is not there."""
    found = []
    for text in asked:
        path = Path(text).absolute()
        if not path.is_file():
            raise UsageError(f"--patch {text}: no such file")
        found.append(Input(name=path.name, path=path, digest=_sha256(path)))
    return tuple(found)


def patch(described: Project, files: Sequence[Input], settings: Settings) -> Project:
    """Return the project as the patches change it, in a copy: all apply as a whole, or UsageError."""
    if not files:
        return described
    complete = described.origin is not None
    state = described.origin.sha256 if described.origin else source.digest(described.folder)
    key = cache.digest([str(described.folder), state, [item.digest for item in files]])

    def fill(folder: Path) -> None:
        copy = source.mirror(
            described.folder, folder, leave_out=settings.output.absolute(), complete=complete
        )
        for item in files:
            _apply(item, copy, folder / "patch.log")
        copy.rename(folder / described.folder.name)

    place = cache.fill(cache.root() / "patched" / key, fill)
    changed = project.read(place / described.folder.name, described.origin)
    return replace(changed, unpatched=described.folder)


def _apply(item: Input, folder: Path, log: Path) -> None:
    """Apply one patch with git, which changes all of its files or none."""
    if shutil.which("git") is None:
        raise MissingError("--patch: git, which applies it, is not installed: `apt-get install git`")
    command: list[str | Path] = [*OUTSIDE_OF_GIT, "apply", "-p1", "--whitespace=nowarn", item.path]
    try:
        process.run(command, log=log, what=f"git apply {item.name}", cwd=folder)
    except BuildError as error:
        reasons = re.findall(r"(?m)^(?:error|fatal): (.*)$", failure.read_log(log))
        raise UsageError(
            f"--patch {item.path}: it does not apply to the sources: {reasons[0] if reasons else error}"
        ) from error


def sources(
    asked: Sequence[str], described: Project, variables: Sequence[tuple[str, str]] = ()
) -> tuple[Input, ...]:
    """Return the sources that ``NAME=DIR`` and ``NAME=ARCHIVE`` name.

    Raises UsageError for other text, for a name that stands twice, for one that neither a CMake file nor one
    of ``variables`` has, and for a variable with a ``{NAME}`` that is none of the sources.
    """
    found: dict[str, Input] = {}
    for item in asked:
        name, sign, where = item.partition("=")
        if not sign or not where or not re.fullmatch(r"[A-Za-z0-9_.+-]+", name):
            raise UsageError(f"--source {item}: expected NAME=DIR or NAME=ARCHIVE")
        if name.upper() in found:
            raise UsageError(f"--source {name} stands twice")
        found[name.upper()] = _source(name, Path(where).absolute())
    used = _used(variables, found)
    folders = [described.folder, *(added.folder for added in found.values() if added.folder)]
    texts = [path.read_text(errors="replace") for path in _cmake_files(folders)] if found else []
    for key, added in found.items():
        if key not in used and not any(
            re.search(rf"(?<![\w-]){re.escape(added.name)}(?![\w-])", text, re.IGNORECASE) for text in texts
        ):
            names = sorted({declared for text in texts for declared in DECLARED.findall(text)})
            listed = f"they declare {', '.join(names)}" if names else "they declare nothing to fetch"
            raise UsageError(f"--source {added.name}: no CMake file of {described.name} names it: {listed}")
    return tuple(found[key] for key in sorted(found))


def _used(variables: Sequence[tuple[str, str]], found: Mapping[str, Input]) -> set[str]:
    """Return the names, in capitals, of the sources whose folders variables have in their values."""
    used: set[str] = set()
    for variable, value in variables:
        for name in PLACEHOLDER.findall(value):
            if name.upper() not in found:
                have = ", ".join(item.name for item in found.values()) or "none"
                raise UsageError(f"--env {variable}: no --source is called {name} (there: {have})")
            used.add(name.upper())
    return used


def _cmake_files(folders: Sequence[Path]) -> list[Path]:
    found = [
        path for folder in folders for form in ("CMakeLists.txt", "*.cmake") for path in folder.rglob(form)
    ]
    return [path for path in found if path.is_file()]


def _source(name: str, path: Path) -> Input:
    if path.is_dir():
        return Input(name=name, path=path, digest={"dirHash": source.digest(path)}, folder=path)
    if not path.is_file():
        raise UsageError(f"--source {name}={path}: no such folder or file")
    if not path.name.endswith(ARCHIVES):
        raise UsageError(f"--source {name}={path}: neither a folder nor an archive ({', '.join(ARCHIVES)})")
    digest = _sha256(path)

    def fill(folder: Path) -> None:
        unpack = archives.unpack_zip if path.name.endswith(".zip") else archives.unpack_tar
        try:
            unpack(path, folder)
        except (*archives.BROKEN, CheckFailed) as error:
            if isinstance(error, OSError) and error.errno in archives.OF_THIS_MACHINE:
                raise
            reason = str(error).partition("\n")[0]
            raise UsageError(f"--source {name}={path}: a damaged archive ({reason})") from error

    folder = cache.fill(cache.root() / "sources" / digest["sha256"][:24], fill)
    entries = list(folder.iterdir())
    top = entries[0] if len(entries) == 1 and entries[0].is_dir() else folder
    return Input(name=name, path=path, digest=digest, folder=top)


def _sha256(path: Path) -> dict[str, str]:
    return {"sha256": cache.sha256(path)}


def environment(plan: Plan, own: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return what the back end of ``plan`` sees beside what its lane says, which is ``own``."""
    copies = lay_out(plan.sources, folder)
    variables = {
        variable: PLACEHOLDER.sub(lambda found: str(copies[found[1].upper()]), value)
        for variable, value in plan.variables
    }
    check_variables(tuple(variables.items()), own, plan.lane)
    epoch = {"SOURCE_DATE_EPOCH": str(plan.epoch), "GIT_OPTIONAL_LOCKS": "0"}
    return {**epoch, **variables, **for_cmake(copies)}


def lay_out(found: Sequence[Input], folder: Path) -> dict[str, Path]:
    """Copy sources into a build's ``folder``, where it may write, and return where, by names in capitals."""
    return {
        item.name.upper(): source.mirror(
            item.folder, folder / COPIES / item.name, complete=source.complete(item.folder)
        )
        for item in found
        if item.folder
    }


def libraries(folder: Path) -> list[Path]:
    """Return the folders of shared libraries that a build in ``folder`` made in copies of sources."""
    return sorted({path.parent for path in (folder / COPIES).rglob("lib*.so*") if path.is_file()})


def for_cmake(copies: Mapping[str, Path]) -> dict[str, str]:
    """Return the variables that name copies of sources.

    CMake reads them in the toolchain file; some projects ask for them in the environment, too.
    """
    places = {f"FETCHCONTENT_SOURCE_DIR_{name}": str(copy) for name, copy in copies.items()}
    listed = ";".join(f"{name}={place}" for name, place in places.items())
    named = {name: place for name, place in places.items() if name.isidentifier()}
    return named | ({crossenv.SOURCES_VARIABLE: listed} if places else {})
