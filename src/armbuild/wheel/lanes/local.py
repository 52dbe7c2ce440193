"""The back end run on this machine, as the cross and the native lane do it."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from armbuild.errors import UsageError
from armbuild.host import cache, process
from armbuild.toolchain import compilers, rust
from armbuild.wheel import backend, crates, inputs, sandbox, source
from armbuild.wheel.lanes.lane import BuiltWheel
from armbuild.wheel.lanes.setup import backend_family, prefix_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from armbuild.host import isolation
    from armbuild.host.pythons import HostPython
    from armbuild.wheel.lanes.lane import Watcher
    from armbuild.wheel.lanes.setup import Setup
    from armbuild.wheel.plan import Plan
    from armbuild.wheel.sandbox import Sandbox
    from armbuild.wheel.settings import Settings

    Prepare = Callable[[Path], Setup]
    """From the build folder to the settings for the back end."""
    Hooks = Callable[[Setup], tuple[Path, isolation.BuildEnvironment]]
    """Run the back end's hooks; returns the wheel and the environment that made it."""
    Attempt = Callable[[Hooks, Setup, Path, Path], tuple[Path, isolation.BuildEnvironment]]
    """How a lane runs the hooks: with the setup, the build folder and the log."""


FLAGS = frozenset(
    {"ARCHFLAGS", "CFLAGS", "CMAKE_ARGS", "CMAKE_GENERATOR", "CPPFLAGS", "CXXFLAGS", "FFLAGS", "LDFLAGS"}
)
"""Variables of the caller's that CMake and meson read once, and keep."""
ZIG_CACHE = "zig"
"""Where zig keeps its C++ runtime in a build's own folder, in a sandbox."""
ZIG_OBJECTS = "zig-objects"
"""Where zig keeps what it compiles, in a build's own folder, until the build's end: it removes nothing."""


def cargo_home(plan: Plan, folder: Path) -> Path:
    """Return where cargo keeps crates: in a sandbox, in the build's own folder."""
    return folder / "build/cargo-home" if plan.settings.sandbox else rust.home()


def build_folder(plan: Plan, python: HostPython) -> Path:
    """Return the folder in the cache in which a plan is compiled."""
    return cache.root() / "builds" / f"{plan.project.name}-{plan.key(python)}"


def refuse_container_settings(settings: Settings, lane: str) -> None:
    """Raise UsageError for a setting of the container lane in another."""
    for name in ("engine", "image"):
        if getattr(settings, name):
            raise UsageError(f"--{name} is for the container lane, and this is {lane}: use --lane container")


def build(
    plan: Plan,
    python: HostPython,
    work: Path,
    *,
    mirror: str | None,
    watcher: Watcher,
    prepare: Prepare,
    attempt: Attempt = lambda hooks, setup, _folder, _log: hooks(setup),
) -> BuiltWheel:
    """Build the wheel for ``python`` with the project's own back end, in a folder that stays in the cache.

    Two builds of one plan take turns. Raises BuildError with the back end's first error.
    """
    folder = build_folder(plan, python)
    log = work / f"build-{python.version}.log"
    with _in_turn(folder, watcher):
        process.end_leftovers(folder)
        setup = prepare(folder)
        forget_other_tools(folder, setup)
        sources = _sources(plan, folder)
        added = inputs.environment(plan, setup.environment, folder)
        (out := work / f"built-{python.version}").mkdir()
        if setup.runtime and source.has_cxx(sources):
            with watcher.step("runtime", f"{setup.compiler}'s own C++ library, once on this machine"):
                setup.runtime(log)
        objects, cached = plan.compile_cache, dict[str, str]()
        counts = work / f"ccache-{python.version}.txt"
        if objects:
            cached = objects.environment(counts, cross=plan.lane == "cross", environ=os.environ)

        def hooks(current: Setup) -> tuple[Path, isolation.BuildEnvironment]:
            nonlocal setup  # the last one made the wheel
            setup = current
            variables = {**added, **current.environment, **cached}
            box = _sandbox(plan, python, folder, out, current, mirror=mirror)
            return backend.build_wheel(
                plan, python, sources, out, settings=current.settings, hooks=variables, log=log, box=box
            )

        with (
            watcher.step("build", f"Python {python.version}, {plan.lane} lane, {setup.compiler}"),
            objects.count(counts, cached) if objects else nullcontext() as figures,
        ):
            path, environment = attempt(hooks, setup, folder, log)
    return BuiltWheel(
        plan=plan,
        python=python,
        path=path,
        compiler=setup.compiler,
        headers=setup.headers,
        libraries=(*setup.libraries, *inputs.libraries(folder)),
        tools=environment.installed(),
        static=setup.static if setup.rust or source.has_cxx(sources) else (),
        folders=prefix_map(plan, folder),
        crates=crates.read(sources, folder / "build" / rust.CRATES) if setup.rust else (),
        cached=figures,
    )


@contextmanager
def _in_turn(folder: Path, watcher: Watcher) -> Iterator[None]:
    """Hold a build's folder alone, and leave nothing there that only grows."""
    text = "another build of this project is running: waiting for it"
    with cache.lock(folder, on_wait=lambda: watcher.note(text)), cache.removed(folder / ZIG_OBJECTS):
        yield


def _sources(plan: Plan, folder: Path) -> Path:
    """Return a copy of the project, without what its back end would take from an older build."""
    forget_other_sources(folder, plan.sources)
    complete = plan.project.origin is not None
    sources = source.mirror(plan.project.folder, folder, leave_out=plan.settings.output, complete=complete)
    if backend_family(plan.project.backend) == "other" and not (sources / "build").is_symlink():
        shutil.rmtree(sources / "build/lib", ignore_errors=True)
    return sources


def _sandbox(
    plan: Plan, python: HostPython, folder: Path, out: Path, setup: Setup, *, mirror: str | None
) -> Sandbox | None:
    """Return the sandbox of a build, None without --sandbox.

    The build writes its copy of the sources, its objects and its wheel. No other user reaches these: a
    program with the set-user-id bit, which it may leave there, would run as the caller.
    """
    if not plan.settings.sandbox:
        return None
    folder.chmod(0o700)
    readable = [*sandbox.interpreters(python.executable), *sandbox.running()]
    readable += sandbox.repository(plan.project.folder)
    if setup.rust:
        readable.append(setup.rust.folder)
    if plan.toolchain == "zig":
        readable.append(compilers.zig().parent)
    if python.include:
        readable.append(python.include)
    names = ("source", inputs.COPIES, "build", ZIG_CACHE, ZIG_OBJECTS)
    writable = [*(folder / name for name in names), out]
    return sandbox.make(out.parent, readable=readable, writable=writable, mirror=mirror)


def forget_other_tools(folder: Path, setup: Setup) -> None:
    """Drop what was compiled with other tools: CMake and meson keep the compiler they first saw."""
    callers = {name: os.environ[name] for name in os.environ if name in FLAGS or name.startswith("SKBUILD_")}
    own = setup.tools_key or dict(setup.environment)
    current = {"environment": own, "settings": setup.settings, "callers": callers}
    _drop_unless(folder / "tools", current, "build", "source/build")


def forget_other_sources(folder: Path, found: Sequence[inputs.Input]) -> None:
    """Drop copies of other added sources, and what the build made of them; CMake keeps what it found there.

    A compile cache still has what is compiled of equal files.
    """
    current = {item.name.upper(): dict(item.digest) for item in found}
    _drop_unless(folder / "added", current, "build", "source", inputs.COPIES)


def _drop_unless(stamp: Path, current: object, *names: str) -> None:
    """Drop the folders ``names`` beside the file ``stamp`` unless it says that they are of ``current``."""
    key = cache.digest(current)
    if not stamp.is_file() or stamp.read_text() != key:
        for name in names:
            shutil.rmtree(stamp.parent / name, ignore_errors=True)
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(key)
