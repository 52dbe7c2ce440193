"""The project's own PEP 517 hooks, in an isolated environment; only they see the target's world."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild import hints, isolation, process
from armbuild.errors import ArmbuildError, BuildError, MissingError, UsageError
from armbuild.toolchain import torch_stub

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from build import ProjectBuilder

    from armbuild.lanes.setup import Settings
    from armbuild.plan import Plan
    from armbuild.pythons import HostPython


def build_wheel(
    plan: Plan,
    python: HostPython,
    sources: Path,
    out: Path,
    *,
    settings: Settings,
    hooks: Mapping[str, str],
    log: Path,
) -> tuple[Path, isolation.BuildEnvironment]:
    """Return the wheel that the back end makes of ``sources`` in ``out``, and the environment it ran in.

    ``hooks`` are the variables that its hooks see. Raises BuildError with its first error, MissingError for
    build requirements that cannot be had, UsageError for a project without a usable back end.
    """
    try:
        from build import BuildBackendException, BuildException  # noqa: PLC0415 - the extra `build`
    except ImportError as error:
        raise MissingError("build is not installed: pip install 'armllm[build]'") from error

    def run_hook(
        cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        env = {**isolation.clean(), **(extra_environ or {}), **hooks}
        process.run(cmd, log=log, what="the project's build", cwd=Path(cwd) if cwd else None, env=env)

    try:
        with warnings.catch_warnings(record=True) as said:  # the back end's, not ours
            warnings.simplefilter("always")
            environment, builder = _environment(
                plan, python, sources, settings=settings, runner=run_hook, log=log
            )
            made = Path(builder.build("wheel", out, settings))
        with log.open("a") as sink:
            sink.writelines(f"{warning.message}\n" for warning in said)
    except BuildBackendException as error:
        if isinstance(error.exception, ArmbuildError):
            raise error.exception from None
        raise BuildError(f"the project's build failed: {error}\n  log: {log}") from error
    except BuildException as error:
        raise UsageError(f"{plan.project.folder}: {error}") from error
    return made, environment


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

    cross = plan.lane == "cross"
    if not plan.isolation:
        environment = isolation.existing(python)
        builder = ProjectBuilder(sources, python_executable=str(python.executable), runner=runner)
        _check_installed(plan, python, builder, settings)
        return environment, builder
    requires = set(torch_stub.split(plan.project.requires)[0] if cross else plan.project.requires)
    locked = plan.lock if plan.lock and plan.lock.is_file() else None
    environment = isolation.environment(python, requires, log=log, lock=locked)
    builder = ProjectBuilder.from_isolated_env(environment, sources, runner=runner)
    extra = builder.get_requires_for_build("wheel", settings)
    if cross:
        hints.check_languages(plan.project.name, extra)
        extra = set(torch_stub.split(extra)[0])
    if plan.lock and not locked:
        isolation.write_lock(plan.lock, python, requires | extra, log=log)
        environment = isolation.environment(python, requires | extra, log=log, lock=plan.lock)
        builder = ProjectBuilder.from_isolated_env(environment, sources, runner=runner)
    elif locked:
        isolation.check_locked(locked, environment, requires | extra)
    elif not extra <= requires:
        environment = isolation.environment(python, requires | extra, log=log)
        builder = ProjectBuilder.from_isolated_env(environment, sources, runner=runner)
    return environment, builder


def _check_installed(plan: Plan, python: HostPython, builder: ProjectBuilder, settings: Settings) -> None:
    wanted = torch_stub.split(plan.project.requires)[0]
    missing = isolation.unsatisfied(isolation.existing(python), wanted)
    if not missing:
        missing = isolation.unsatisfied(
            isolation.existing(python),
            torch_stub.split(builder.get_requires_for_build("wheel", settings))[0],
        )
    if missing:
        raise MissingError(
            f"--no-isolation: {python.executable} lacks {', '.join(missing)}: install it there first"
        )
