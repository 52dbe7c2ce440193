"""The project's PEP 517 hooks, in an isolated environment; only they see the target."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from armbuild.errors import ArmbuildError, BuildError, MissingError, UsageError
from armbuild.host import isolation, process
from armbuild.target import target_packages
from armbuild.toolchain import torch_stub
from armbuild.wheel import sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from build import ProjectBuilder

    from armbuild.host.pythons import HostPython
    from armbuild.wheel.lanes.setup import Settings
    from armbuild.wheel.plan import Plan
    from armbuild.wheel.sandbox import Sandbox


def build_wheel(
    plan: Plan,
    python: HostPython,
    sources: Path,
    out: Path,
    *,
    settings: Settings,
    hooks: Mapping[str, str],
    log: Path,
    box: Sandbox | None = None,
) -> tuple[Path, isolation.BuildEnvironment]:
    """Return the wheel that the back end makes of ``sources`` in ``out``, and the environment it ran in.

    ``hooks`` are the variables that its hooks see (PATH: what they search first); in the sandbox ``box`` they
    see few others. Raises BuildError with its first error, MissingError for build requirements that cannot be
    had, UsageError for a project without a usable back end.
    """
    try:
        from build import BuildBackendException, BuildException  # noqa: PLC0415 - the extra `build`
    except ImportError as error:
        raise MissingError("build is not installed: pip install 'armllm[build]'") from error

    log.touch()

    def run_hook(
        cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        own = {**isolation.clean(), **(extra_environ or {})}
        env = {**own, **hooks}
        if "PATH" in hooks:
            env["PATH"] = os.pathsep.join((hooks["PATH"], own.get("PATH", os.defpath)))
        folder = Path(cwd) if cwd else sources
        answer = Path(cmd[-1])  # as the hook's script, known to pyproject_hooks alone
        if box:
            cmd = box.command(cmd, folder, Path(cmd[1]), writable=(answer,))
            env = box.environment(env, own={*(extra_environ or {}), *hooks})
        process.run(cmd, log=log, what="the project's build", cwd=folder, env=env)
        if box:
            sandbox.check_answer(answer)

    try:
        with warnings.catch_warnings(record=True) as heard:  # the back end's, not ours
            warnings.simplefilter("always")
            environment, builder = _environment(
                plan, python, sources, settings=settings, runner=run_hook, log=log
            )
            with _as_pep_517_says(log):
                wheel = sandbox.check_wheel(Path(builder.build("wheel", out, settings)), out)
        with log.open("a") as sink:
            sink.writelines(f"{warning.message}\n" for warning in heard)
    except BuildBackendException as error:
        if isinstance(error.exception, ArmbuildError):
            raise error.exception from None
        raise BuildError(f"the project's build failed: {error}\n  log: {log}") from error
    except BuildException as error:
        raise UsageError(f"{plan.project.folder}: {error}") from error
    return wheel, environment


def _environment(
    plan: Plan,
    python: HostPython,
    sources: Path,
    *,
    settings: Settings,
    runner: Callable[..., None],
    log: Path,
) -> tuple[isolation.BuildEnvironment, ProjectBuilder]:
    """Make the environment in two steps: the back end itself says what else it needs."""
    from build import ProjectBuilder  # noqa: PLC0415

    cross, wheels_only = plan.lane == "cross", plan.settings.sandbox
    if not plan.settings.isolation:
        environment = isolation.existing(python)
        with _as_pep_517_says(log):
            builder = ProjectBuilder(sources, python_executable=str(python.executable), runner=runner)
        _check_installed(plan, python, builder, settings, log)
        return environment, builder
    requires = set(torch_stub.split(plan.project.requires)[0] if cross else plan.project.requires)
    locked = plan.settings.lock if plan.settings.lock and plan.settings.lock.is_file() else None
    make = functools.partial(isolation.environment, python, log=log, wheels_only=wheels_only)
    if cross:
        platform = target_packages.MUSL if plan.musl else target_packages.PLATFORM
        adapt = functools.partial(target_packages.swap_libraries, python.version, platform, log)
        make = functools.partial(make, target=platform, adapt=adapt)
    environment = make(requires, lock=locked)
    with _as_pep_517_says(log):
        builder = ProjectBuilder.from_isolated_env(environment, sources, runner=runner)
    extra = _asked_for(builder, settings, log)
    if cross:
        extra = set(torch_stub.split(extra)[0])
    if plan.settings.lock and not locked:
        isolation.write_lock(plan.settings.lock, python, requires | extra, log=log, wheels_only=wheels_only)
        environment = make(requires | extra, lock=plan.settings.lock)
        builder = ProjectBuilder.from_isolated_env(environment, sources, runner=runner)
    elif locked:
        isolation.check_locked(locked, environment, requires | extra)
    elif not extra <= requires:
        environment = make(requires | extra)
        builder = ProjectBuilder.from_isolated_env(environment, sources, runner=runner)
    return environment, builder


def _asked_for(builder: ProjectBuilder, settings: Settings, log: Path) -> set[str]:
    """Return the requirements that the back end itself names."""
    with _as_pep_517_says(log):
        return {str(Requirement(line)) for line in builder.get_requires_for_build("wheel", settings)}


@contextlib.contextmanager
def _as_pep_517_says(log: Path) -> Iterator[None]:
    """Blame the back end for what its hooks must not return, and the project for a wrong backend-path."""
    try:
        yield
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(" ^~")
        raise BuildError(f"the project's build back end breaks PEP 517: {reason}\n  log: {log}") from error


def _check_installed(
    plan: Plan, python: HostPython, builder: ProjectBuilder, settings: Settings, log: Path
) -> None:
    wanted = torch_stub.split(plan.project.requires)[0]
    missing = isolation.unsatisfied(isolation.existing(python), wanted)
    if not missing:
        missing = isolation.unsatisfied(
            isolation.existing(python),
            torch_stub.split(_asked_for(builder, settings, log))[0],
        )
    if missing:
        raise MissingError(
            f"--no-isolation: {python.executable} lacks {', '.join(missing)}: install it there first"
        )
