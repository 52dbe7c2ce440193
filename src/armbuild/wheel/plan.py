"""Everything decided before anything is built: lane, Pythons, kernel targets, flags, names. Pure and fast."""

from __future__ import annotations

import os
import platform
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import armisa
from armbuild.errors import UsageError
from armbuild.host import cache, pythons
from armbuild.target import arm64_headers
from armbuild.toolchain import compile_cache, host_clang, sysroot
from armbuild.wheel import choices, container, hints, project
from armbuild.wheel.user_tests import UserTests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from armbuild.host.pythons import HostPython
    from armbuild.toolchain.compile_cache import CompileCache
    from armbuild.wheel.container import Container
    from armbuild.wheel.fetch import Origin

GLIBC = "2.28"
"""What the cross lane links against: manylinux_2_28, the floor of torch's own wheels."""
STATIC = ("-static-libstdc++",)
"""Our own extension brings its C++ library: torch may have loaded another one. libgcc stays shared: every
Linux has it, and its static unwinder contains SVE code."""
NO_TESTS = UserTests()
SMOKE_CPUS = ("neoverse-n1", "neoverse-v1", "max")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `armbuild wheel` is going to do; made by ``plan``, printed by ``--plan``, taken by ``build``."""

    project: project.Project
    lane: str
    pythons: tuple[HostPython, ...]
    kernels: Mapping[str, bool]
    """Kernel target -> whether it goes into the wheel; empty for projects that have none."""
    baseline: str | None
    """The core below which the wheel does not run, None for plain Armv8.0."""
    flags: tuple[str, ...]
    """Compiler flags for the whole wheel."""
    epoch: int
    """SOURCE_DATE_EPOCH."""
    out: Path
    cpus: tuple[str, ...]
    """Where the smoke test runs; empty: nowhere."""
    tests: UserTests = NO_TESTS
    """What the smoke test does; nothing named: the engine's own test."""
    toolchain: str = "zig"
    """The cross lane's compiler; "clang" in the container lane: this machine's instead of the image's."""
    newest_glibc: str | None = None
    """The newest glibc that a wheel may need; None: any."""
    config_settings: tuple[tuple[str, str], ...] = ()
    """What the back end is told beside what armbuild tells it; a name that stands twice is a list."""
    packages: tuple[str, ...] = ()
    """Debian arm64 packages that the project is built with."""
    isolation: bool = True
    """Whether build requirements are installed into an environment of their own (PEP 517)."""
    missing: tuple[tuple[str, str], ...] = ()
    """Pythons that were asked for with ``all`` and cannot be had here, each with the reason."""
    lock: Path | None = None
    """The build requirements, pinned and hashed; written when it is not there yet."""
    container: Container | None = None
    """What cibuildwheel is told, in the container lane."""
    compile_cache: CompileCache | None = None
    """What answers for compilers that have compiled the same before."""
    variant: str | None = None
    """The label of the wheel variant that says the baseline; None: the version's local label says it."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the kernel targets that go into the wheel, lowest first."""
        names = project.kernel_targets(self.project) if self.project.is_armllm else ()
        return tuple(name for name in names if self.kernels.get(name, True))

    @property
    def glibc(self) -> str | None:
        """Return the glibc that everything is linked for, None where only the build can tell."""
        return GLIBC if self.lane == "cross" and self.toolchain == "zig" else None

    @property
    def label(self) -> str | None:
        """Return the local version label of a raised baseline, such as ``neoverse.v1``."""
        if self.variant or not self.baseline:
            return None
        return self.baseline.replace("-", ".").replace("_", ".")

    def defines(self) -> dict[str, str]:
        """Return the CMake variables that the project is configured with."""
        if not self.project.is_armllm:
            return {}
        switches = {f"ARMLLM_{name.upper()}": "ON" if on else "OFF" for name, on in self.kernels.items()}
        return switches | ({"ARMLLM_BASELINE": self.baseline} if self.baseline else {})

    def key(self, python: HostPython) -> str:
        """Return the digest that names the build folder: equal plans share what was compiled.

        The engine's kernels know nothing of Python: wheels for several Pythons are compiled in one folder.
        """
        own = self.project.is_armllm and self.lane == "cross"
        return cache.digest(
            [
                str(self.project.folder),
                self.lane,
                *([] if own else [python.version, str(python.executable)]),
                sorted(self.kernels.items()),
                self.baseline,
                self.flags,
                self.project.backend,
                self.toolchain,
                self.packages,
                *([self.container.as_dict(())] if self.container else []),
            ]
        )

    def wheel_name(self, python: HostPython) -> str:
        """Return the file name to expect, with ``*`` where only the build can tell."""
        version = self.project.version or "*"
        if self.label:
            version = f"{version}{'.' if '+' in version else '+'}{self.label}"
        tags = pythons.tags(python.version)
        glibc = self.glibc.replace(".", "_") if self.glibc else "*"
        variant = f"-{self.variant}" if self.variant else ""
        name = self.project.name.replace("-", "_")
        return f"{name}-{version}-{tags}-manylinux_{glibc}_aarch64{variant}.whl"

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON value."""
        return {
            "schema": 1,
            "project": {
                "folder": str(self.project.folder),
                "name": self.project.name,
                "version": self.project.version,
                "backend": self.project.backend,
                "requires": list(self.project.requires),
            },
            "lane": self.lane,
            "machine": "aarch64",
            "toolchain": self.toolchain if self.lane == "cross" or self.toolchain == "clang" else None,
            "glibc": self.glibc,
            "newest_glibc": self.newest_glibc,
            "compile_cache": self.compile_cache.name if self.compile_cache else None,
            "config_settings": [f"{name}={value}" for name, value in self.config_settings],
            "packages": list(self.packages),
            "isolation": self.isolation,
            "lock": str(self.lock) if self.lock else None,
            "kernels": list(self.targets),
            "baseline": self.baseline,
            "variant": self.variant,
            "flags": list(self.flags),
            "defines": self.defines(),
            "source_date_epoch": self.epoch,
            "wheels": [
                {
                    "python": python.version,
                    "executable": str(python.executable),
                    "headers": arm64_headers.described(python),
                    "file": str(self.out / self.wheel_name(python)),
                }
                for python in self.pythons
            ],
            "container": self.container.as_dict([python.version for python in self.pythons])
            if self.container
            else None,
            "missing": [{"python": version, "reason": reason} for version, reason in self.missing],
            "steps": ["build", "repair", "audit", *(["smoke"] if self.cpus else [])],
            "smoke": list(self.cpus),
            "tests": list(self.tests.labels()),
        }


def plan(
    folder: Path,
    *,
    origin: Origin | None = None,
    python_versions: Sequence[str] = (),
    lane: str | None = None,
    kernels: Mapping[str, bool | None] | None = None,
    baseline: str | None = None,
    out: Path,
    cpus: Sequence[str] = SMOKE_CPUS,
    tests: UserTests = NO_TESTS,
    toolchain: str | None = None,
    newest_glibc: str | None = None,
    config_settings: Sequence[str] = (),
    packages: Sequence[str] = (),
    isolation: bool = True,
    lock: Path | None = None,
    engine: str | None = None,
    image: str | None = None,
    as_variant: bool = False,
    objects: str | None = None,
    find: Callable[[str], HostPython] = pythons.find,
) -> Plan:
    """Check every choice and return what will be done.

    ``kernels`` maps the flags given (KERNEL_FLAGS in choices.py) to on, off or None for "not said";
    ``objects`` names the compile cache. Raises UsageError for a choice that cannot be honoured and
    MissingError for a Python that this machine lacks.
    """
    if lock and not isolation:
        raise UsageError(
            "--lock says what to install for the build, --no-isolation that nothing is installed"
        )
    described = project.read(folder, origin)
    chosen = choices.lane(lane, platform.machine())
    choices.check_writable(out, f"--out {out}")
    listed = tuple(dict.fromkeys(name for item in packages for name in item.split(",") if name))
    if chosen == "container":
        container.check_options(isolation=isolation, lock=lock, packages=listed, objects=objects)
        find = container.find
    elif engine or image:
        raise UsageError(
            f"--{'engine' if engine else 'image'} is for the container lane, and this is {chosen}: "
            "say --lane container"
        )
    interpreters, missing = choices.interpreters(described, python_versions, find)
    for interpreter in interpreters:
        if not described.supports(interpreter.version):
            raise UsageError(
                f"--python {interpreter.version}: {described.name} needs Python {described.requires_python}"
            )
    core, label = choices.baseline(baseline, as_variant=as_variant)
    if chosen == "cross":
        hints.check_languages(described.name, described.requires)
    compiler = choices.toolchain(toolchain, chosen, described)
    if listed and chosen != "cross":
        raise UsageError(
            f"--with: the {chosen} lane uses what is installed: `apt-get install {' '.join(listed)}`"
        )
    sysroot.check_names(listed)
    zig = chosen == "cross" and compiler == "zig"
    flags = armisa.compiler_flags(core[1], "zig" if zig else "gcc") if core else ""
    if described.version is not None:
        choices.check_version(described)
    made = Plan(
        project=described,
        lane=chosen,
        pythons=interpreters,
        kernels=choices.kernels(described, kernels or {}),
        baseline=core[0] if core else None,
        flags=tuple(shlex.split(flags)),
        epoch=project.source_epoch(described),
        out=out.absolute(),
        cpus=tuple(dict.fromkeys(cpus)) if described.is_armllm or tests else (),
        tests=replace(tests, project=described.folder),
        toolchain=compiler,
        newest_glibc=choices.glibc(newest_glibc),
        config_settings=choices.config_settings(config_settings),
        packages=listed,
        isolation=isolation,
        missing=missing,
        lock=lock.absolute() if lock else None,
        compile_cache=None if chosen == "container" else compile_cache.find(objects),
        variant=label,
    )
    if chosen != "container":
        return made
    return replace(
        made,
        container=container.compute(
            tool=described.tool.get("cibuildwheel", {}),
            engine=engine,
            image=image,
            settings=_container_settings(made),
            flags=made.flags,
            link=("-Wl,-s", *(STATIC if described.is_armllm else ())),
            emulated=platform.machine() != "aarch64",
            test=bool(cpus),
            history=container.history(described.folder),
            environ=os.environ,
            compiler=host_clang.arguments() if toolchain == "clang" else (),
        ),
    )


def _container_settings(made: Plan) -> list[tuple[str, str]]:
    own = {f"cmake.define.{name}": value for name, value in made.defines().items()}
    asked = {name for name, _ in made.config_settings}
    return [*((name, value) for name, value in own.items() if name not in asked), *made.config_settings]
