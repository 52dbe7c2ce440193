"""Run the project's own back end for each Python of a plan, and check that what comes out is AArch64."""

from __future__ import annotations

import shutil
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild import cache, isolation, process, source, symbols, wheelfile
from armbuild.errors import ArmbuildError, BuildError, MissingError, UsageError
from armbuild.lanes import LANES
from armbuild.lanes.setup import backend_family

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from armbuild.lanes.setup import Settings, Setup
    from armbuild.plan import Plan
    from armbuild.pythons import HostPython


@dataclass(frozen=True, kw_only=True)
class BuiltWheel:
    """A wheel as the back end made it, in the work folder."""

    plan: Plan
    python: HostPython
    path: Path
    compiler: str


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
    with cache.lock(folder, on_wait=on_wait):
        setup = LANES[plan.lane].prepare(plan, python, folder, mirror=mirror)
        _forget_other_world(folder, setup)
        sources = source.mirror(
            plan.project.folder, folder, leave_out=plan.out, complete=plan.project.origin is not None
        )
        hooks = {**setup.environment, "SOURCE_DATE_EPOCH": str(plan.epoch), "GIT_OPTIONAL_LOCKS": "0"}
        if backend_family(plan.project.backend) == "other":  # compiles inside its own tree
            shutil.rmtree(sources / "build/lib", ignore_errors=True)
        out = work / f"built-{python.version}"
        out.mkdir()
        if setup.runtime and source.has_cxx(sources):
            with step("runtime", f"{setup.compiler}'s own C++ library, once on this machine"):
                setup.runtime(log)
        with step("build", f"Python {python.version}, {plan.lane} lane, {setup.compiler}"):
            path = _run_back_end(plan, python, sources, out, settings=setup.settings, hooks=hooks, log=log)
    check(path, log)
    return BuiltWheel(plan=plan, python=python, path=path, compiler=setup.compiler)


def _forget_other_world(folder: Path, setup: Setup) -> None:
    """Drop what was compiled with another tool kit: CMake and meson keep the compiler they first saw."""
    world = cache.digest({"environment": dict(setup.environment), "settings": setup.settings})
    stamp = folder / "world"
    if not stamp.is_file() or stamp.read_text() != world:
        for build in (folder / "build", folder / "source/build"):
            shutil.rmtree(build, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        stamp.write_text(world)


def check(path: Path, log: Path) -> None:
    """Raise BuildError for a wheel of another machine, with a wrong name or a function that is nowhere."""
    wheel = wheelfile.read(path)
    wrong = wheelfile.mismatches(wheel) or symbols.unresolved(path)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise BuildError(f"{path.name} is not an AArch64 wheel: {wrong[0]}{more}\n  log: {log}")


def _run_back_end(
    plan: Plan,
    python: HostPython,
    sources: Path,
    out: Path,
    *,
    settings: Settings,
    hooks: Mapping[str, str],
    log: Path,
) -> Path:
    """Call the PEP 517 hooks in an isolated environment; only they see the target's world."""
    try:
        from build import BuildBackendException, BuildException, ProjectBuilder  # noqa: PLC0415 - the extra `build`
    except ImportError as error:
        raise MissingError("build is not installed: pip install 'armllm[build]'") from error

    def run_hook(
        cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        env = {**isolation.clean(), **(extra_environ or {}), **hooks}
        process.run(cmd, log=log, what="the project's build", cwd=Path(cwd) if cwd else None, env=env)

    requires = set(plan.project.requires)
    try:
        environment = isolation.environment(python, requires, log=log)
        builder = ProjectBuilder.from_isolated_env(environment, sources, runner=run_hook)
        extra = builder.get_requires_for_build("wheel", settings)
        if not extra <= requires:
            environment = isolation.environment(python, requires | extra, log=log)
            builder = ProjectBuilder.from_isolated_env(environment, sources, runner=run_hook)
        with warnings.catch_warnings(record=True) as said:  # the back end's, not ours
            warnings.simplefilter("always")
            made = Path(builder.build("wheel", out, settings))
        with log.open("a") as sink:
            sink.writelines(f"{warning.message}\n" for warning in said)
    except BuildBackendException as error:
        if isinstance(error.exception, ArmbuildError):
            raise error.exception from None
        raise BuildError(f"the project's build failed: {error}\n  log: {log}") from error
    except BuildException as error:
        raise UsageError(f"{plan.project.folder}: {error}") from error
    return made
