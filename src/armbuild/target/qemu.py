"""An emulator with models of the wanted CPUs: the system's, else one from the Debian archive."""

from __future__ import annotations

import functools
import platform
import re
import shutil
import subprocess
from pathlib import Path

from armbuild.errors import MissingError
from armbuild.host import cache
from armbuild.target import debian, emulated_features

NAMES = ("qemu-aarch64", "qemu-aarch64-static")
SUITES = ("bookworm-backports", "trixie")
"""Where ``qemu-user`` is 10.0 or newer and one static program, which runs on any Linux. QEMU 7.2 of
bookworm itself knows three CPUs and shows the host's /proc/cpuinfo to the guest."""
MODELS = frozenset(
    {
        "a64fx", "cortex-a35", "cortex-a53", "cortex-a55", "cortex-a57", "cortex-a710", "cortex-a72",
        "cortex-a76", "max", "neoverse-n1", "neoverse-n2", "neoverse-v1",
    }
)  # fmt: skip
"""The AArch64 CPUs of QEMU 10.0 (`qemu-aarch64 -cpu help`), to name before any emulator is there."""
NEWER = "neoverse-v1"
"""Known to QEMU 8.1 and newer, which show /proc/cpuinfo of the emulated CPU."""
DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64", "ppc64le": "ppc64el"}


def find(cpus: tuple[str, ...] = (), *, mirror: str | None = None) -> Path:
    """Return a ``qemu-aarch64`` that emulates all of ``cpus`` in full, downloaded if the system has none.

    Raises MissingError when there is none and none can be had, with what to do.
    """
    seen = []
    for program in _present(mirror):
        fault = shortcoming(program, cpus)
        if not fault:
            return program
        seen.append(f"{program} {fault}")
    architecture = DEBIAN_ARCHITECTURES.get(platform.machine())
    reasons = []
    if architecture is None:
        reasons.append(f"Debian has no QEMU for {platform.machine()}")
    else:
        for suite in SUITES:
            try:
                program = _fetch(suite, architecture, mirror)
            except MissingError as error:
                reasons.append(str(error).splitlines()[0])
                continue
            fault = shortcoming(program, cpus)
            if not fault:
                return program
            reasons.append(f"QEMU of {suite} {fault}")
    raise MissingError(
        f"no QEMU for {', '.join(cpus) or 'aarch64'}: {'; '.join([*seen, *reasons])}\n"
        "  install qemu-user 8.2 or newer, or name a Debian archive with --mirror"
    )


@functools.cache
def known_cpus(program: Path) -> frozenset[str]:
    """Return the names that ``program -cpu help`` lists; empty when it does not run."""
    try:
        answer = subprocess.run(
            [program, "-cpu", "help"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=emulated_features.SECONDS,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(re.findall(r"^\s+(\S+)$", answer, re.MULTILINE))  # it lists them and exits with 1


def installed(cpus: tuple[str, ...] = (), *, mirror: str | None = None) -> Path | None:
    """Return the emulator that ``find`` would take without downloading anything, or None."""
    return next((path for path in _present(mirror) if not shortcoming(path, cpus)), None)


def shortcoming(program: Path, cpus: tuple[str, ...]) -> str:
    """Return why ``program`` is no emulator of all of ``cpus``, empty where it is one."""
    unknown = set(cpus) - known_cpus(program)
    if unknown:
        return f"does not know {', '.join(sorted(unknown))}"
    return next(filter(None, (emulated_features.fault(program, cpu) for cpu in cpus)), "")


def _present(mirror: str | None) -> list[Path]:
    """The system's emulators, then those fetched; behind all of them, ones that show the host's cpuinfo."""
    return sorted((*_installed(), *_cached(mirror)), key=lambda program: NEWER not in known_cpus(program))


def _installed() -> list[Path]:
    return [Path(path) for name in NAMES if (path := shutil.which(name))]


def _cached(mirror: str | None) -> list[Path]:
    pattern = debian.cache_folder("qemu", "*", mirror).name
    found = (cache.root() / "qemu").glob(f"{pattern}/usr/bin/qemu-aarch64")
    return sorted(map(cache.use, found))


def _fetch(suite: str, architecture: str, mirror: str | None) -> Path:
    def make(folder: Path) -> None:
        debian.install(
            ("qemu-user",),
            folder,
            suite=suite,
            architecture=architecture,
            mirror=mirror,
            dependencies=False,
            only=frozenset({"usr/bin/qemu-aarch64"}),
        )
        if not known_cpus(folder / "usr/bin/qemu-aarch64"):
            raise MissingError(f"QEMU of {suite} does not run here")

    folder = debian.cache_folder("qemu", f"{suite}-{architecture}", mirror)
    return cache.fill(folder, make) / "usr/bin/qemu-aarch64"
