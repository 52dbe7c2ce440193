"""From settings and project to a plan: every request is checked before anything is built.

Fast, and without side effects but for copies in the cache: of patched sources, and of unpacked archives.
"""

from __future__ import annotations

import platform
import re
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import Version

import armisa
from armbuild.artifact import variant
from armbuild.errors import UsageError
from armbuild.host import pythons
from armbuild.wheel import cpus, inputs, project
from armbuild.wheel.lanes import LANES
from armbuild.wheel.lanes.cross import NO_RUST_FOR_MUSL
from armbuild.wheel.plan import Plan
from armbuild.wheel.settings import KERNELS
from armbuild.wheel.user_tests import UserTests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from armbuild.host.pythons import HostPython
    from armbuild.wheel.project import Project
    from armbuild.wheel.settings import Settings

BUILD_FOLDERS = ("build-dir", "builddir")
"""The settings of scikit-build-core and meson-python for the build folder."""
LONGEST_VERSION = 128
"""Characters of a version, which is a part of files' names."""


def plan(settings: Settings, described: Project, *, find: Callable[[str], HostPython] = pythons.find) -> Plan:
    """Check every request and return what will be done; ``find`` returns this machine's interpreters.

    Raises UsageError for a request that is not supported and MissingError for a Python that this machine
    lacks.
    """
    settings.check()
    if settings.lock and not settings.isolation:
        raise UsageError(
            "--lock says what to install for the build, --no-isolation that nothing is installed"
        )
    if settings.sandbox and settings.compile_cache not in (None, "none"):
        raise UsageError(
            f"--compile-cache {settings.compile_cache}: a build in a sandbox may not write what others use"
        )
    if settings.glibc and not re.fullmatch(r"2\.\d+", settings.glibc):
        raise UsageError(f"--glibc {settings.glibc}: not a version of glibc, such as 2.28")
    variables, patches = inputs.variables(settings.env), inputs.patches(settings.patch)
    described = inputs.require(inputs.patch(described, patches, settings), settings.build_requires)
    name = settings.lane or ("native" if platform.machine() == "aarch64" else "cross")
    if settings.platform == "musllinux":
        check_musl(settings, described, name)
    check_writable(settings.output, f"--output {settings.output}")
    check_version(described)
    tests = UserTests(
        imports=settings.imports,
        command=settings.command,
        requires=settings.requires,
        project=described.folder,
        sandbox=settings.sandbox,
    )
    tests.check()
    tested = described.is_armllm or bool(tests)
    cores = (settings.cpu or cpus.default_cpus()) if settings.smoke and tested else ()
    cpus.check_names(cores)
    check_proof(settings, described.name, tested=tested)
    core, label = baseline(settings.baseline, as_variant=settings.variant)
    draft = Plan(
        project=described,
        settings=replace(
            settings,
            output=settings.output.absolute(),
            lock=settings.lock.absolute() if settings.lock else None,
        ),
        lane=name,
        kernels=kernels(described, settings.kernels),
        baseline=core,
        variant=label,
        epoch=project.source_epoch(described),
        config_settings=config_settings(settings.config_settings),
        packages=tuple(
            dict.fromkeys(package for item in settings.packages for package in item.split(",") if package)
        ),
        cpus=tuple(dict.fromkeys(cores)),
        tests=tests,
        variables=variables,
        patches=patches,
        sources=inputs.sources(settings.source, described, variables),
    )
    return LANES[name].plan(draft, find)


def check_musl(settings: Settings, described: Project, lane: str) -> None:
    """Raise UsageError for what does not work with musl, and why."""
    reasons = {
        f"--lane {lane}": lane != "cross" and "the cross lane builds for musl: use --lane cross",
        "--glibc": settings.glibc and "musl is another C library",
        f"--toolchain {settings.toolchain}": settings.toolchain in ("gcc", "clang")
        and "it has GNU's C library of an old Debian; zig has musl's",
        "--with": settings.packages and "Debian's libraries need GNU's C library, which musl's systems lack",
        described.name: (described.is_armllm or project.needs_torch(described))
        and "it needs torch, which has no wheels for musl",
        "Rust": project.announces_rust(described) and NO_RUST_FOR_MUSL,
    }
    for what, reason in reasons.items():
        if reason:
            raise UsageError(f"--platform musllinux, {what}: {reason}")


def check_proof(settings: Settings, name: str, *, tested: bool) -> None:
    """Raise UsageError where a wheel must be run and is not: a green job must mean that the wheel ran."""
    if settings.require_proof and not settings.smoke:
        raise UsageError("--require-proof says that the wheel must be run, --no-smoke that it is not")
    if settings.smoke and not tested and settings.proof_required:
        why = "--require-proof" if settings.require_proof else "in CI a wheel must be run (--no-smoke: not)"
        raise UsageError(f"{why}: no test of {name} was named: use --import NAME or --command TEXT")


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


def kernels(described: Project, asked: Mapping[str, bool]) -> dict[str, bool]:
    """Return each optional kernel target of the project and whether it goes into the wheel."""
    if not described.is_armllm:
        for name, value in asked.items():
            raise UsageError(
                f"--{'' if value else 'no-'}{name}: {described.name} has no kernel targets of armllm"
            )
        return {}
    there = [name for name in project.kernel_targets(described) if name in KERNELS]
    for name, value in asked.items():
        if value and name not in there:
            have = ", ".join(there) or "none of the optional ones"
            raise UsageError(f"--{name}: this version has no {name} kernels; it has {have}")
    return {name: asked.get(name, True) for name in there}


def baseline(name: str | None, *, as_variant: bool) -> tuple[str | None, str | None]:
    """Return the core's name in its plain spelling, and the variant's label; None for what there is not."""
    if name is None:
        if as_variant:
            raise UsageError("--variant says a raised baseline: name it with --baseline, such as neoverse-v1")
        return None, None
    core, plain = armisa.Isa.from_target(name), re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return plain, variant.label(plain, variant.properties(core)) if as_variant else None


def config_settings(asked: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of ``KEY=VALUE``; raises UsageError for other words and for what armbuild decides."""
    pairs = []
    for item in asked:
        name, sign, value = item.removeprefix("=").partition("=")  # -C=KEY=VALUE, as some write it
        if not sign or not name:
            raise UsageError(f"--config-settings {item}: expected KEY=VALUE")
        if name in BUILD_FOLDERS:
            raise UsageError(f"--config-settings {item}: armbuild chooses the folder that it compiles in")
        pairs.append((name, value))
    return tuple(pairs)


def check_version(described: Project) -> None:
    """Raise UsageError for a version that no wheel's name can hold."""
    try:  # None: the back end computes it
        Version(described.version or "0")
    except ValueError as error:  # also for a number of too many digits
        raise UsageError(
            f"{described.folder / 'pyproject.toml'}: version {described.version!r:.100}: {error!s:.200}"
        ) from error
    if len(described.version or "") > LONGEST_VERSION:
        raise UsageError(f"{described.folder}: its version has more than {LONGEST_VERSION} characters")
