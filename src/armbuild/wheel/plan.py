"""The plan of a build: everything that is decided before the build starts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import armisa
from armbuild.artifact import variant
from armbuild.host import cache, pythons
from armbuild.target import arm64_headers
from armbuild.toolchain.sysroot import MUSL, TRIPLET
from armbuild.wheel import project

if TYPE_CHECKING:
    from collections.abc import Mapping

    from armbuild.host.pythons import HostPython
    from armbuild.toolchain.compile_cache import CompileCache
    from armbuild.wheel.inputs import Input
    from armbuild.wheel.lanes.cibuildwheel import Container
    from armbuild.wheel.settings import Settings
    from armbuild.wheel.user_tests import UserTests

GLIBC = "2.28"
"""What the cross lane links against: manylinux_2_28, the floor of torch's own wheels."""
MUSLLINUX = "musllinux_1_2"
"""The only policy for the musl of today (PEP 656): zig's is 1.2.5."""
STATIC = ("-static-libstdc++",)
"""Our own extension brings its C++ library: torch may have loaded another one. libgcc stays shared: every
Linux has it, and its static unwinder contains SVE code."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `armbuild wheel` is going to do; made by ``planning.plan``, printed by ``--plan``."""

    project: project.Project
    settings: Settings
    """The settings; ``output`` and ``lock`` are absolute."""
    lane: str
    kernels: Mapping[str, bool]
    """Kernel target -> whether it goes into the wheel; empty for projects that have none."""
    baseline: str | None
    """The core below which the wheel does not run, None for plain Armv8.0."""
    variant: str | None
    """The label of the wheel variant that states the baseline; None: the version's local label does."""
    epoch: int
    """SOURCE_DATE_EPOCH."""
    config_settings: tuple[tuple[str, str], ...]
    """Settings for the back end beside those of armbuild; a name that occurs twice is a list."""
    packages: tuple[str, ...]
    """Debian arm64 packages that the project is built with."""
    cpus: tuple[str, ...]
    """Where the smoke test runs; empty: nowhere."""
    tests: UserTests
    """What the smoke test does; nothing named: the engine's own test."""
    variables: tuple[tuple[str, str], ...] = ()
    """What the back end sees beside the caller's variables, by name."""
    patches: tuple[Input, ...] = ()
    """What has changed the copy that ``project.folder`` is."""
    sources: tuple[Input, ...] = ()
    """What CMake's FetchContent takes in place of a download."""
    # What the lane decides.
    pythons: tuple[HostPython, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """Pythons of ``all`` that are not available here, each with the reason."""
    toolchain: str | None = None
    """The cross lane's compiler; "clang" in the container lane: this machine's instead of the image's."""
    flags: tuple[str, ...] = ()
    """Compiler flags for the whole wheel."""
    compile_cache: CompileCache | None = None
    """What answers for compilers that have compiled the same before."""
    container: Container | None = None
    """The variables for cibuildwheel, in the container lane."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the kernel targets that go into the wheel, lowest first."""
        names = project.kernel_targets(self.project) if self.project.is_armllm else ()
        return tuple(name for name in names if self.kernels.get(name, True))

    @property
    def musl(self) -> bool:
        """Whether the wheel is for systems whose C library is musl."""
        return self.settings.platform == "musllinux"

    @property
    def glibc(self) -> str | None:
        """Return the glibc that everything is linked for, None where only the build can tell."""
        return GLIBC if self.lane == "cross" and self.toolchain == "zig" and not self.musl else None

    @property
    def target(self) -> str:
        """Return what zig compiles for: a triplet, with the version of glibc."""
        return MUSL if self.musl else f"{TRIPLET}.{GLIBC}"

    @property
    def label(self) -> str | None:
        """Return the local version label of a raised baseline, such as ``neoverse.v1``."""
        if self.variant or not self.baseline:
            return None
        return self.baseline.replace("-", ".").replace("_", ".")

    def baseline_flags(self, compiler: str) -> tuple[str, ...]:
        """Return the flags of a raised baseline for ``compiler`` ("zig", "gcc")."""
        if self.settings.baseline is None:
            return ()
        core = armisa.Isa.from_target(self.settings.baseline)
        flags = armisa.compiler_flags(variant.narrow(core) if self.variant else core, compiler)
        return tuple(shlex.split(flags))

    def defines(self) -> dict[str, str]:
        """Return the CMake variables that the project is configured with."""
        if not self.project.is_armllm:
            return {}
        switches = {f"ARMLLM_{name.upper()}": "ON" if on else "OFF" for name, on in self.kernels.items()}
        return switches | ({"ARMLLM_BASELINE": self.baseline} if self.baseline else {})

    def key(self, python: HostPython) -> str:
        """Return the digest that names the build folder: equal plans share what was compiled.

        The content of added sources is no part of it: a compile cache knows objects by their paths, too.
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
                self.settings.platform,
                self.packages,
                self.variables,
                self.settings.build_requires,
                [item.name.upper() for item in self.sources],
                *([self.container.as_dict(())] if self.container else []),
            ]
        )

    def wheel_name(self, python: HostPython) -> str:
        """Return the file name to expect, with ``*`` where only the build can tell."""
        version = self.project.version or "*"
        if self.label:
            version = f"{version}{'.' if '+' in version else '+'}{self.label}"
        tags = pythons.tags(python.version)
        libc = f"manylinux_{self.glibc.replace('.', '_') if self.glibc else '*'}"
        if self.musl:
            libc = MUSLLINUX
        ending = f"-{self.variant}" if self.variant else ""
        name = self.project.name.replace("-", "_")
        return f"{name}-{version}-{tags}-{libc}_aarch64{ending}.whl"

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
            "toolchain": self.toolchain,
            "platform": self.settings.platform,
            "glibc": self.glibc,
            "newest_glibc": self.settings.glibc,
            "compile_cache": self.compile_cache.name if self.compile_cache else None,
            "config_settings": [f"{name}={value}" for name, value in self.config_settings],
            "packages": list(self.packages),
            "env": [f"{name}={value}" for name, value in self.variables],
            "build_requires": list(self.settings.build_requires),
            "patches": [item.as_dict() for item in self.patches],
            "sources": [item.as_dict() for item in self.sources],
            "isolation": self.settings.isolation,
            "lock": str(self.settings.lock) if self.settings.lock else None,
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
                    "file": str(self.settings.output / self.wheel_name(python)),
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
