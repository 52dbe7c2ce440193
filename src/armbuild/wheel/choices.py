"""Checks of what a build is told: each returns the choice that holds, or says why it cannot be honoured."""

from __future__ import annotations

import difflib
import re
import tempfile
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

import armisa
from armbuild.artifact import variant
from armbuild.errors import MissingError, UsageError
from armbuild.host import pythons
from armbuild.wheel import project

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from armbuild.host.pythons import HostPython

LANES = ("cross", "native", "container")
TOOLCHAINS = ("zig", "gcc", "clang")
KERNEL_FLAGS = ("bf16", "dotprod", "fhm", "i8mm", "sve")
"""The targets that have a command-line flag; those without one (scalar, neon) are always in."""
BUILD_FOLDERS = ("build-dir", "builddir")
"""The settings by which scikit-build-core and meson-python are told where to compile."""


def check_writable(folder: Path, option: str) -> None:
    """Find out before the build, not after it, whether what it makes can be written into ``folder``."""
    nearest = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        raise UsageError(f"{option}: {nearest} is not a folder")
    try:  # root may do what the permission bits forbid, but not on a file system that takes no files
        tempfile.TemporaryDirectory(prefix=".armbuild-", dir=nearest).cleanup()
    except OSError as error:
        raise UsageError(
            f"{option}: {nearest} cannot be written to ({error.strerror}): name another folder"
        ) from error


def lane(asked: str | None, machine: str) -> str:
    """Return the lane ``asked`` for, by default the one for this ``machine``."""
    if asked is None:
        return "native" if machine == "aarch64" else "cross"
    if asked not in LANES:
        near = difflib.get_close_matches(asked, LANES, 1)
        raise UsageError(
            f"--lane {asked}: there are cross, native and container"
            + (f"; did you mean {near[0]}?" if near else "")
        )
    if asked == "native" and machine != "aarch64":
        raise UsageError(
            f"--lane native builds on an AArch64 machine, and this is {machine}: use --lane cross"
        )
    return asked


def interpreters(
    described: project.Project, asked: Sequence[str], find: Callable[[str], HostPython]
) -> tuple[tuple[HostPython, ...], tuple[tuple[str, str], ...]]:
    """Return the interpreters to build with and, for ``all``, those that cannot be had with the reason."""
    if "all" not in asked:
        return tuple(map(find, dict.fromkeys(asked))) or (find(pythons.running()),), ()
    if len(set(asked)) > 1:
        raise UsageError("--python all is every version already: name no other beside it")
    found, missing = [], []
    for version in described.pythons:
        try:
            found.append(find(version))
        except MissingError as error:  # noqa: PERF203 - a handful, each tried
            missing.append((version, str(error).splitlines()[0]))
    if not found and not missing:
        raise UsageError(
            f"--python all: {described.name} needs Python {described.requires_python}: none fits"
        )
    if not found:
        raise MissingError(f"--python all: {described.name} can be built for none here: {missing[0][1]}")
    return tuple(found), tuple(missing)


def toolchain(asked: str | None, lane: str, described: project.Project) -> str:
    """Return the compiler of ``lane``: zig, but GCC for what must share torch's libstdc++."""
    if asked and asked not in TOOLCHAINS:
        near = difflib.get_close_matches(asked, TOOLCHAINS, 1)
        raise UsageError(
            f"--toolchain {asked}: there are {', '.join(TOOLCHAINS)}"
            + (f"; did you mean {near[0]}?" if near else "")
        )
    if asked and lane == "container" and asked != "clang":
        raise UsageError(
            f"--toolchain {asked}: the container lane has the image's compiler; --toolchain clang brings one"
        )
    if asked and lane == "native":
        raise UsageError(f"--toolchain {asked}: the native lane has this machine's compiler: set CC and CXX")
    extension = project.needs_torch(described)
    if asked == "zig" and extension:
        raise UsageError(
            f"--toolchain zig: {described.name} extends torch and must share its libstdc++: use gcc or clang"
        )
    return asked or ("gcc" if extension else "zig")


def kernels(described: project.Project, asked: Mapping[str, bool | None]) -> dict[str, bool]:
    """Return each optional kernel target of the project and whether it goes into the wheel."""
    given = {name: value for name, value in asked.items() if value is not None}
    if not described.is_armllm:
        if given:
            flag = next(iter(given))
            raise UsageError(
                f"--{'' if given[flag] else 'no-'}{flag}: {described.name} has no kernel targets of armllm"
            )
        return {}
    there = [name for name in project.kernel_targets(described) if name in KERNEL_FLAGS]
    for name, value in given.items():
        if value and name not in there:
            have = ", ".join(there) or "none of the optional ones"
            raise UsageError(f"--{name}: this version has no {name} kernels; it has {have}")
    return {name: given.get(name, True) for name in there}


def baseline(name: str | None, *, as_variant: bool) -> tuple[tuple[str, armisa.Isa] | None, str | None]:
    """Return the name in its plain spelling and what that core can do, and a variant's label."""
    if name is None:
        if as_variant:
            raise UsageError("--variant says a raised baseline: name it with --baseline, such as neoverse-v1")
        return None, None
    core, plain = armisa.Isa.from_target(name), re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not as_variant:
        return (plain, core), None
    return (plain, variant.narrow(core)), variant.label(plain, variant.properties(core))


def glibc(asked: str | None) -> str | None:
    """Return the newest glibc that a wheel may need; raises UsageError for what is no version of it."""
    if asked and not re.fullmatch(r"2\.\d+", asked):
        raise UsageError(f"--glibc {asked}: not a version of glibc, such as 2.28")
    return asked or None


def config_settings(asked: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of ``KEY=VALUE``; raises UsageError for other words and for what armbuild decides."""
    pairs = []
    for word in asked:
        name, sign, value = word.removeprefix("=").partition("=")  # -C=KEY=VALUE, as some write it
        if not sign or not name:
            raise UsageError(f"--config-settings {word}: expected KEY=VALUE")
        if name in BUILD_FOLDERS:
            raise UsageError(f"--config-settings {word}: armbuild chooses the folder that it compiles in")
        pairs.append((name, value))
    return tuple(pairs)


def check_version(described: project.Project) -> None:
    """Raise UsageError for a version that no wheel's name can hold."""
    try:
        Version(described.version or "0")
    except InvalidVersion as error:
        raise UsageError(
            f"{described.folder / 'pyproject.toml'}: version {described.version!r}: {error}"
        ) from error
