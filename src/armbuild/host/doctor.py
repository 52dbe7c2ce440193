"""What this machine lacks for each part of the work, and the one command that installs it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from armbuild.errors import ArmbuildError
from armbuild.host import cache, containers, isolation, limits, process, pythons
from armbuild.target import debian, qemu
from armbuild.wheel.lanes.container import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NEEDED_BYTES = 3 << 30
"""Zig's runtime, an arm64 root and torch for AArch64 take about 2.5 GB together."""
EXTRA = "pip install 'armllm[build]'"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    needed_for: str
    ok: bool
    found: str
    """What is there, or why it is not enough."""
    packages: tuple[str, ...] = ()
    """Debian packages that bring it."""
    command: str = ""
    """What brings it where no Debian package does."""
    optional: bool = False
    """Whether the ordinary lanes do without it."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All findings."""

    machine: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is missing that `armbuild wheel` needs by default."""
        return all(finding.ok or finding.optional for finding in self.findings)

    @property
    def command(self) -> str | None:
        """Return the one command that installs what is missing, None when nothing can be installed."""
        missing = [finding for finding in self.findings if not finding.ok and not finding.optional]
        packages = sorted({package for finding in missing for package in finding.packages})
        commands = list(dict.fromkeys(finding.command for finding in missing if finding.command))
        if packages:
            root = "" if os.geteuid() == 0 else "sudo "
            commands.insert(0, f"{root}apt-get install -y {' '.join(packages)}")
        return " && ".join(commands) or None

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON value."""
        return {
            "schema": 1,
            "ok": self.ok,
            "machine": self.machine,
            "command": self.command,
            "findings": [asdict(finding) for finding in self.findings],
        }


def diagnose(*, mirror: str | None = None) -> Diagnosis:
    """Look at everything that `armbuild wheel` and `armbuild smoke` use here, and ask the archives.

    No package is downloaded.
    """
    native = platform.machine() == "aarch64"
    checks: list[Callable[[], Finding]] = [
        _python,
        _build,
        _uv,
        _patchelf,
        _compiler if native else _zig,
        _space,
        _index,
    ]
    findings = [check() for check in checks]
    if not native:
        findings += _emulation(mirror)
    findings.append(_engine())
    return Diagnosis(machine=platform.machine(), findings=tuple(findings))


def _python() -> Finding:
    name, need = "Python", "building for this interpreter's version"
    try:
        found = pythons.find()
    except ArmbuildError as error:
        return Finding(name=name, needed_for=need, ok=False, found=str(error))
    others = [
        version for version in pythons.SUPPORTED if version != found.version and pythons.find_or_none(version)
    ]
    also = f"; also {', '.join(others)}" if others else ""
    if found.include is None and platform.machine() == "aarch64":
        package = f"python{found.version}-dev"
        return Finding(
            name=name,
            needed_for=need,
            ok=False,
            found=f"{found.version} without Python.h",
            packages=(package,),
        )
    headers = "" if found.include else ", headers from a Debian archive"
    return Finding(
        name=name, needed_for=need, ok=True, found=f"{found.version} ({found.executable}){headers}{also}"
    )


def _module(name: str, need: str) -> Finding:
    there = importlib.util.find_spec(name) is not None
    return Finding(
        name=name,
        needed_for=need,
        ok=there,
        found="installed" if there else "not installed",
        command="" if there else EXTRA,
    )


def _build() -> Finding:
    return _module("build", "running a project's own back end")


def _zig() -> Finding:
    return _module("ziglang", "the cross lane's compiler")


def _program(name: str, need: str) -> Finding:
    path = pythons.tool(name)
    return Finding(
        name=name,
        needed_for=need,
        ok=path is not None,
        found=str(path or "not installed"),
        command="" if path else EXTRA,
    )


def _uv() -> Finding:
    return _program("uv", "build environments and AArch64 packages")


def _patchelf() -> Finding:
    return _program("patchelf", "auditwheel's repair")


def _compiler() -> Finding:
    compiler = os.environ.get("CXX") or next(
        (name for name in ("c++", "g++", "clang++") if shutil.which(name)), None
    )
    return Finding(
        name="C++ compiler",
        needed_for="the native lane",
        ok=compiler is not None,
        found=compiler or "none of c++, g++, clang++",
        packages=() if compiler else ("g++",),
    )


def _space() -> Finding:
    try:
        folder = cache.root()
    except ArmbuildError as error:
        return Finding(name="cache", needed_for="everything", ok=False, found=str(error))
    free = shutil.disk_usage(folder).free
    return Finding(
        name="disk space",
        needed_for="the cache (compiler runtime, arm64 root, torch)",
        ok=free >= NEEDED_BYTES,
        found=f"{free / 2**30:.1f} GiB free in {folder}"
        + ("" if free >= NEEDED_BYTES else ", 3 GiB are needed"),
    )


def _index() -> Finding:
    """Ask the Python index, as uv is configured here, for a package that every build environment may need."""
    name, need = "Python index", "build requirements, AArch64 packages"
    if pythons.tool("uv") is None:
        return Finding(name=name, needed_for=need, ok=False, found="not asked: uv is not installed")
    try:
        with cache.work_folder("ask") as work:
            (work / "wanted.in").write_text("packaging\n")
            process.run(
                [
                    isolation.uv_program(),
                    "pip",
                    "compile",
                    "-q",
                    "--no-cache",
                    "--no-deps",
                    work / "wanted.in",
                ],
                cwd=work,
                log=work / "ask.log",
                what="asking it",
                env={**isolation.clean(), "UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "0"},
                limits=limits.DOWNLOAD,
            )
    except ArmbuildError as error:
        return Finding(name=name, needed_for=need, ok=False, found=str(error).splitlines()[0])
    return Finding(name=name, needed_for=need, ok=True, found="answers")


def _engine() -> Finding:
    engines = containers.installed()
    answering = next((name for name in engines if process.succeeds([name, "info"]) is not None), None)
    packages: tuple[str, ...]
    if answering:
        found = (
            answering if registered() else f"{answering}, which runs no AArch64 programs: no binfmt handler"
        )
        packages = () if registered() else ("qemu-user-static", "binfmt-support")
    else:
        found = (
            f"{engines[0]} does not answer: start it"
            if engines
            else f"none of {', '.join(containers.ENGINES)}"
        )
        packages = () if engines else ("podman",)
    return Finding(
        name="containers",
        needed_for="--lane container, docker --builder",
        ok=bool(answering) and not packages,
        found=found,
        packages=packages,
        optional=True,
    )


def _emulation(mirror: str | None) -> Iterator[Finding]:
    reader = _module("debian", "reading packages of Debian")
    if not reader.ok:
        yield reader
        return
    try:
        source = debian.archive(mirror)
        reason = debian.ask(source)
        archive = "" if reason else source.uri
    except ArmbuildError as error:
        archive, reason = "", str(error)
    emulator = qemu.installed(("neoverse-n1", "neoverse-v1", "max"), mirror=mirror)
    fetched = f"will be fetched from {archive}" if archive else f"none that knows neoverse-v1; {reason}"
    yield Finding(
        name="QEMU",
        needed_for="the smoke test",
        ok=bool(emulator or archive),
        found=str(emulator or fetched),
    )
    yield Finding(
        name="Debian archive",
        needed_for="the arm64 root of the smoke test, headers of Pythons without them",
        ok=bool(archive),
        found=archive or reason,
    )
