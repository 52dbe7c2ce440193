"""Run the project's own back end for each Python of a plan, and check that what comes out is AArch64."""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.version import Version

from armbuild.artifact import symbols, wheelfile
from armbuild.errors import BuildError, UsageError
from armbuild.host import cache
from armbuild.target import arm64_headers, arm64_root, qemu
from armbuild.toolchain import kit
from armbuild.wheel import backend, hints, source
from armbuild.wheel.lanes import LANES, container
from armbuild.wheel.lanes.setup import backend_family

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from armbuild.host import isolation
    from armbuild.host.pythons import HostPython
    from armbuild.wheel.lanes.setup import Setup
    from armbuild.wheel.plan import Plan


@dataclass(frozen=True, kw_only=True)
class BuiltWheel:
    """A wheel as the back end made it, in the work folder."""

    plan: Plan
    python: HostPython
    path: Path
    compiler: str
    headers: str
    """Whose headers of Python were used."""
    libraries: tuple[Path, ...] = ()
    """Folders with the target's libraries, which the repair may bundle."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """The packages of the build environment, with their versions."""
    static: tuple[tuple[str, str], ...] = ()
    """Runtime libraries that the compiler links statically, each with what it is."""
    cached: Mapping[str, int] | None = None
    """Hits and misses of the compile cache, where there is one."""


def build(
    plan: Plan,
    python: HostPython,
    work: Path,
    *,
    mirror: str | None = None,
    on_wait: Callable[[], None] | None = None,
    step: Callable[[str, str], AbstractContextManager[None]] = lambda _name, _detail: nullcontext(),
) -> BuiltWheel:
    """Build the wheel of ``plan`` for ``python`` into ``work``.

    What was compiled stays in the cache, keyed by project and plan, for the next build; two builds of one
    plan take turns, after ``on_wait`` was called. Raises BuildError with the back end's first error, and
    when the wheel holds code of another machine.
    """
    folder = cache.root() / "builds" / f"{plan.project.name}-{plan.key(python)}"
    log = work / f"build-{python.version}.log"
    if plan.lane == "container":
        return _build_in_container(plan, python, work, log=log, step=step)
    with cache.lock(folder, on_wait=on_wait):
        setup = LANES[plan.lane].prepare(plan, python, folder, mirror=mirror)
        _forget_other_world(folder, setup)
        sources = source.mirror(
            plan.project.folder, folder, leave_out=plan.out, complete=plan.project.origin is not None
        )
        if backend_family(plan.project.backend) == "other":  # compiles inside its own tree
            shutil.rmtree(sources / "build/lib", ignore_errors=True)
        out = work / f"built-{python.version}"
        out.mkdir()
        if setup.runtime and source.has_cxx(sources):
            with step("runtime", f"{setup.compiler}'s own C++ library, once on this machine"):
                setup.runtime(log)

        objects, cached = plan.compile_cache, {}
        if objects:
            counts = work / f"ccache-{python.version}.txt"
            cached = objects.environment(counts, cross=plan.lane == "cross", environ=os.environ)

        def run(chosen: Setup) -> tuple[Path, isolation.BuildEnvironment]:
            hooks = {"SOURCE_DATE_EPOCH": str(plan.epoch), "GIT_OPTIONAL_LOCKS": "0"}
            hooks |= {**chosen.environment, **cached}
            return backend.build_wheel(
                plan, python, sources, out, settings=chosen.settings, hooks=hooks, log=log
            )

        with (
            step("build", f"Python {python.version}, {plan.lane} lane, {setup.compiler}"),
            objects.count(counts, cached) if objects else nullcontext() as figures,
        ):
            try:
                path, environment = run(setup)
            except BuildError as error:
                said = log.read_text(errors="replace")
                if plan.lane != "cross":
                    raise
                if kit.emulator().exists() or not hints.NO_EMULATOR.search(said):
                    raise _with_hint(error, said, log) from error
                setup = _with_emulator(plan, python, folder, mirror)
                path, environment = run(setup)
    check(path, log)
    return BuiltWheel(
        plan=plan,
        python=python,
        path=path,
        compiler=setup.compiler,
        headers=setup.headers,
        libraries=setup.libraries,
        tools=environment.installed(),
        static=setup.static if source.has_cxx(sources) else (),
        cached=figures,
    )


def _build_in_container(
    plan: Plan,
    python: HostPython,
    work: Path,
    *,
    log: Path,
    step: Callable[[str, str], AbstractContextManager[None]],
) -> BuiltWheel:
    """Build a fresh copy of the project: what an earlier build compiled stayed in its container."""
    chosen = plan.container
    with step("build", f"Python {python.version}, {chosen.engine if chosen else ''}, cibuildwheel"):
        sources = source.mirror(
            plan.project.folder,
            work / f"project-{python.version}",
            leave_out=plan.out,
            complete=plan.project.origin is not None,
        )
        made = container.build(plan, python, sources, work / f"built-{python.version}", log=log)
    check(made.path, log)
    return BuiltWheel(
        plan=plan,
        python=python,
        path=made.path,
        compiler=made.compiler,
        headers=arm64_headers.described(python),
        libraries=made.libraries,
        tools=made.tools,
        cached=made.cached,
    )


def _with_hint(error: BuildError, said: str, log: Path) -> BuildError:
    """Add what to do: about the error itself, else about what the log says, where checks may fail in vain."""
    cause = str(error).splitlines()[0]
    hint = hints.explain(cause) or hints.explain(said)
    return BuildError(f"{cause}\n  {hint} (log: {log})") if hint else error


def _with_emulator(plan: Plan, python: HostPython, folder: Path, mirror: str | None) -> Setup:
    """Fetch QEMU for a build whose checks run on the target, and tell the back end of it."""
    qemu.find(("max",), mirror=mirror)
    if arm64_root.cached(mirror) is None:
        arm64_root.make(max(arm64_root.SUITES, key=Version), mirror=mirror)
    setup = LANES[plan.lane].prepare(plan, python, folder, mirror=mirror)
    _forget_other_world(folder, setup)
    return setup


def _forget_other_world(folder: Path, setup: Setup) -> None:
    """Drop what was compiled with another tool kit: CMake and meson keep the compiler they first saw."""
    world = cache.digest({"environment": setup.world or dict(setup.environment), "settings": setup.settings})
    stamp = folder / "world"
    if not stamp.is_file() or stamp.read_text() != world:
        for build in (folder / "build", folder / "source/build"):
            shutil.rmtree(build, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        stamp.write_text(world)


def check(path: Path, log: Path) -> None:
    """Raise BuildError for a wheel of another machine, with a wrong name or a function that is nowhere."""
    try:
        wheel = wheelfile.read(path)
    except UsageError as error:
        raise BuildError(f"the project's build left no wheel: {error}\n  log: {log}") from error
    wrong = wheelfile.mismatches(wheel) or symbols.unresolved(path)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise BuildError(f"{path.name} is not an AArch64 wheel: {wrong[0]}{more}\n  log: {log}")
