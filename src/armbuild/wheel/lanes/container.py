"""The container lane: cibuildwheel in an AArch64 container, natively on Arm, under QEMU elsewhere.

The project is built by cibuildwheel, as its ``[tool.cibuildwheel]`` says; repair, audit and smoke test are
those of the other lanes. Nothing of this machine is in the container but the project's copy.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from armbuild.errors import ArmbuildError, BuildError, MissingError, UsageError
from armbuild.host import containers, failure, isolation, process
from armbuild.target import arm64_headers
from armbuild.toolchain import compile_cache, host_clang
from armbuild.wheel import hints, source
from armbuild.wheel.interpreters import find_interpreters
from armbuild.wheel.lanes import cibuildwheel
from armbuild.wheel.lanes.cibuildwheel import PLATFORM
from armbuild.wheel.lanes.lane import BuiltWheel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from armbuild.host.pythons import HostPython
    from armbuild.wheel.lanes.cibuildwheel import Container
    from armbuild.wheel.lanes.lane import Watcher
    from armbuild.wheel.plan import Plan
    from armbuild.wheel.settings import Settings

BINFMT = Path("/proc/sys/fs/binfmt_misc")
AARCH64 = re.compile(r"^magic 7f454c460201.{20}0200b7", re.MULTILINE)
"""Of a handler of binfmt_misc: 64-bit, little-endian ELF, a program, for AArch64 (elf(5))."""
REGISTER = (
    "`apt-get install qemu-user-static binfmt-support` or `docker run --privileged --rm tonistiigi/binfmt "
    "--install arm64` registers it; or --lane cross, which runs nothing of the target"
)
REFUSED = re.compile(
    r"(?im)^(?:Error|docker)\b:?(?: (?:initializing source|choosing an image from manifest list) \S+:)?(.*(?:"
    r"dial tcp|no such host|timeout|connection|TLS|certificate|network|unauthorized|denied|manifest"
    r"|short-name|toomanyrequests|reference|not found).*)$"
)
"""What docker and podman say when an image cannot be fetched, and why."""
TESTING = re.compile(r"(?m)^(?:::group::)?Testing wheel\.\.\.$(?P<output>(?:\n(?!Copying wheels back).*)*)\Z")
"""How cibuildwheel's output ends when the project's own test-command, or what it requires, failed."""
TEST_FAILURE = re.compile(r"(?m)^(?:FAILED |ERROR:? |E {2,})(.*\S)")
"""How pytest and pip, which write to standard output, say what failed."""
NOT_STARTED = re.compile(r"Command \[[^\]]*'create'")
"""What cibuildwheel says when the engine could not make the container of its image."""

KNOWN: tuple[tuple[str, type[ArmbuildError], str], ...] = (
    (r"(?i)exec format error", MissingError, f"{{image}}: its programs do not run here: {REGISTER}"),
    (
        r"executable doesn't exist in image|'manylinux-interpreters ensure [^']*' needed",
        MissingError,
        "{image} has no Python {version} ({place}): choose another --image",
    ),
    (
        r'exec: "(/[^"]+)": stat [^:]+: no such file',
        MissingError,
        "{image} has no {0}, which cibuildwheel runs: choose another --image",
    ),
    (
        r"error setting rlimit",
        MissingError,
        "the engine may not raise limits here: see default_ulimits at the end of docs/containers.md",
    ),
    (
        r"No build identifiers selected",
        UsageError,
        "[tool.cibuildwheel] leaves Python {version} out (skip, enable or requires-python): choose another",
    ),
    (
        r"a pure Python wheel was generated",
        UsageError,
        "the project has no compiled code: the container lane is not needed, use --lane cross",
    ),
    (
        r"(?m)^.*?\b(yum|dnf|apt-get|apk): (?:command )?not found",
        BuildError,
        "before-all or before-build calls {0}, which {image} lacks: `armbuild manylinux-image --with DEB`",
    ),
)
"""What cibuildwheel reports, the error that it is, and what to do."""


def plan(draft: Plan, find: Callable[[str], HostPython]) -> Plan:
    """Refuse what cibuildwheel and the image decide, and work out the variables for cibuildwheel."""
    del find  # the image has its own
    settings = draft.settings
    _check_settings(settings, draft.packages)
    pythons, missing = find_interpreters(draft.project, settings.python, cibuildwheel.find)
    if settings.toolchain not in (None, "clang"):
        raise UsageError(
            f"--toolchain {settings.toolchain}: the container lane has the image's compiler; "
            "--toolchain clang brings one"
        )
    complete = replace(
        draft,
        pythons=pythons,
        missing=missing,
        toolchain=settings.toolchain,
        flags=draft.baseline_flags("gcc"),
    )
    emulated = platform.machine() != "aarch64"
    return replace(complete, container=cibuildwheel.compute(complete, emulated=emulated, environ=os.environ))


def _check_settings(settings: Settings, packages: Sequence[str]) -> None:
    if settings.sandbox:
        raise UsageError(
            "--sandbox is for the cross and the native lane: here the project's code runs in a container, "
            "with a network"
        )
    if not settings.isolation:
        raise UsageError(
            "--no-isolation: in the container lane this is cibuildwheel's: "
            '[tool.cibuildwheel] build-frontend = { name = "build", args = ["--no-isolation"] }'
        )
    if settings.lock:
        raise UsageError(
            "--lock: the container lane installs build requirements inside the container: "
            "[tool.cibuildwheel] environment = { PIP_CONSTRAINT = ... }, or --lane cross"
        )
    if settings.env:
        raise UsageError(
            "--env: in the container lane this is cibuildwheel's: [tool.cibuildwheel] environment"
        )
    if settings.build_requires:
        raise UsageError(
            "--build-requires: the container lane installs what [build-system] requires names: a --patch of "
            "pyproject.toml adds to it, or --lane cross"
        )
    if settings.source:
        raise UsageError("--source: nothing of this machine is in the container: use --lane cross")
    if settings.compile_cache not in (None, "none"):
        raise UsageError(
            f"--compile-cache: the container lane uses what is in the image: "
            f"`armbuild manylinux-image --with {settings.compile_cache}`"
        )
    if packages:
        raise UsageError(
            "--with: the container lane uses what is in the image: [tool.cibuildwheel] before-all installs, "
            f"or `armbuild manylinux-image --with {','.join(packages)}`"
        )


def build(plan: Plan, python: HostPython, work: Path, *, mirror: str | None, watcher: Watcher) -> BuiltWheel:
    """Let cibuildwheel build a fresh copy of the project: what was compiled before stayed in its container.

    Raises MissingError with what this machine lacks, BuildError with the first error of the build, UsageError
    where the project's own configuration leaves this build out.
    """
    del mirror  # the image has its own
    container = plan.container
    if container is None:
        raise UsageError(f"--lane {plan.lane} is not the container lane")
    log, out = work / f"build-{python.version}.log", work / f"built-{python.version}"
    with watcher.step("build", f"Python {python.version}, {container.engine}, cibuildwheel"):
        sources = source.mirror(
            plan.project.folder,
            work / f"project-{python.version}",
            leave_out=plan.settings.output,
            complete=plan.project.origin is not None,
        )
        _run(plan, container, python, sources=sources, out=out, log=log)
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(f"cibuildwheel brought {len(wheels)} wheels\n  log: {log}")
    version = out / "compiler.txt"
    lines = version.read_text(errors="replace").splitlines() if version.is_file() else []
    return BuiltWheel(
        plan=plan,
        python=python,
        path=wheels[0],
        compiler=f"{lines[0] if lines else 'no compiler'} in {container.reference}",
        headers=arm64_headers.described(python),
        libraries=(out / "libraries",),
        tools=requirements(log.read_text(errors="replace")),
        cached=compile_cache.counts(out / "ccache.txt"),
    )


def _run(
    plan: Plan, container: Container, python: HostPython, *, sources: Path, out: Path, log: Path
) -> None:
    """Run cibuildwheel on ``sources`` in a container that is gone afterwards."""
    if plan.toolchain == "clang" and remote():
        raise MissingError(
            "--toolchain clang: the engine is on another machine, which does not see this one's"
        )
    check(container, asked=container.variables.get("CIBW_MANYLINUX_AARCH64_IMAGE"))
    if plan.toolchain == "clang":
        host_clang.write()
    label = f"armbuild.wheel.build={uuid.uuid4()}"
    environment = {
        **cibuildwheel.clean(isolation.clean()),
        **container.environment(python.version, f"--label={label}"),
        "SOURCE_DATE_EPOCH": str(plan.epoch),
    }
    try:
        process.run(
            [sys.executable, *cibuildwheel.COMMAND, "--output-dir", out],
            log=log,
            what="cibuildwheel",
            cwd=sources,
            env=environment,
        )
    except BuildError as error:
        raise _explain(error, failure.read_log(log), container, python) from error
    except BaseException:  # an interrupt ends cibuildwheel before it has removed its container
        _remove(container.engine, label)
        raise


def requirements(text: str) -> dict[str, str]:
    """Return the build requirements that `python -m build` reports as installed; older ones report none."""
    listed = re.findall(r"(?m)^\* Installed build dependency versions:\n((?:  - .*\n)+)", text)
    lines = re.findall(r"(?m)^  - ([\w.-]+)==(\S+)$", "".join(listed))
    return {canonicalize_name(name): version for name, version in lines}


def _remove(engine: str, label: str) -> None:
    for name in (process.succeeds([engine, "ps", "-aq", "--filter", f"label={label}"]) or "").split():
        process.succeeds([engine, "rm", "--force", "--volumes", name])


def check(container: Container, *, asked: str | None) -> None:
    """Raise MissingError, in a line, for what keeps a container from running here.

    ``asked`` is the image where it was named; another one is for cibuildwheel to fetch.
    """
    engine = container.engine
    if importlib.util.find_spec("cibuildwheel") is None:
        raise MissingError("cibuildwheel is not installed: pip install 'armllm[build]'")
    if shutil.which(engine) is None:
        others = "neither docker nor podman is" if not containers.installed() else f"{engine} is not"
        raise MissingError(
            f"no container engine: {others} installed: `apt-get install podman`, or --lane cross, "
            "which needs none"
        )
    status, answer = _ask([engine, "info"])
    if status:
        raise MissingError(
            f"{engine} is installed but does not answer (`{engine} info`: {answer[:200] or status}): "
            "start it, or use --lane cross"
        )
    if not (remote() or registered()):
        raise MissingError(
            f"this {platform.machine()} machine runs no AArch64 programs in containers: {REGISTER}"
        )
    if asked:
        _check_image(engine, asked)


def _check_image(engine: str, image: str) -> None:
    """Refuse a local image of another machine, and one that no registry can have."""
    status, answer = _ask([engine, "image", "inspect", image, "--format", "{{.Os}}/{{.Architecture}}"])
    if status == 0 and answer != PLATFORM:
        raise MissingError(
            f"--image {image}: it is for {answer}, not {PLATFORM}: `{engine} pull --platform {PLATFORM}` the "
            "right one, or make one with `armbuild manylinux-image`"
        )
    if status and image.startswith("localhost/"):
        raise MissingError(
            f"--image {image}: {engine} has no such image: `armbuild manylinux-image --load {engine}` makes "
            f"one, `{engine} load -i FILE` reads one"
        )


def remote() -> bool:
    """Return whether the engine runs on another machine, whose binfmt cannot be looked at from here."""
    hosts = (os.environ.get("DOCKER_HOST", ""), os.environ.get("CONTAINER_HOST", ""))
    return any(host and not host.startswith("unix:") for host in hosts)


def registered() -> bool:
    """Return whether AArch64 programs run in this machine's containers: an AArch64 CPU, or binfmt_misc.

    The handler must have the flag F: its emulator was opened when it was registered, since a container's
    files do not hold it.
    """
    if platform.machine() == "aarch64":
        return True
    try:
        handlers = [
            entry.read_text() for entry in BINFMT.iterdir() if entry.name not in ("register", "status")
        ]
    except OSError:
        return False
    return any(
        AARCH64.search(text) and text.startswith("enabled") and re.search(r"^flags:.*F", text, re.MULTILINE)
        for text in handlers
    )


def _ask(command: list[str]) -> tuple[int, str]:
    """Return a question's status and its answer, or why there is none."""
    seconds = process.QUESTION_SECONDS
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer in {seconds:.0f} s"
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return done.returncode, lines[-1] if lines else ""


def _explain(error: BuildError, text: str, container: Container, python: HostPython) -> ArmbuildError:
    """Return the error that says what to do about what cibuildwheel reported."""
    image, log = container.reference, str(error).splitlines()[-1].strip()
    if NOT_STARTED.search(text) and (reason := REFUSED.search(text)):
        return MissingError(
            f"the image {image} is not here and cannot be fetched: {reason[1].strip()[:240]}\n"
            "  name a local one with --image; `armbuild manylinux-image` makes one from Debian packages"
        )
    if tests := TESTING.search(text):
        reason = TEST_FAILURE.search(tests["output"])
        cause = reason[1] if reason else failure.first_error(text)
        return BuildError(
            f"the wheel was built, and the project's own test-command failed: {cause[:240]}\n"
            f"  CIBW_TEST_SKIP='*' leaves it out, --import NAME tests the wheel instead ({log})"
        )
    for pattern, kind, sentence in KNOWN:
        if found := re.search(pattern, text):
            place = python.executable.parents[1]
            advice = sentence.format(*found.groups(), image=image, version=python.version, place=place)
            return kind(f"{advice}\n  {log}")
    if lacking := hints.missing(str(error)) or hints.missing(text):
        what, package = lacking
        brings = f"with {package}" if package else "with the Debian package that brings it"
        return BuildError(
            f"{str(error).splitlines()[0]}\n  {what}: [tool.cibuildwheel] before-all installs it, or "
            f"`armbuild manylinux-image --{brings}` ({log})"
        )
    if hints.TOO_OLD.search(text):
        return BuildError(
            f"{str(error).splitlines()[0]}\n  the image's library is too old: `armbuild manylinux-image "
            f"--suite` of a newer Debian, or [tool.cibuildwheel] before-all brings another ({log})"
        )
    return error
