"""Build one wheel of a plan in its lane, and check that what comes out is AArch64."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from armbuild.artifact import symbols, wheelfile
from armbuild.errors import BuildError, UsageError
from armbuild.host import failure
from armbuild.wheel import hints
from armbuild.wheel.lanes import LANES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from armbuild.host.pythons import HostPython
    from armbuild.wheel.lanes.lane import BuiltWheel, Watcher
    from armbuild.wheel.plan import Plan


class Steps:
    """A watcher that passes steps on to ``step`` and drops notes."""

    def __init__(
        self, step: Callable[[str, str], AbstractContextManager[None]] = lambda _name, _detail: nullcontext()
    ) -> None:
        self.step = step

    def note(self, text: str) -> None:
        """Drop a line that belongs to no step."""


def build_wheel(
    plan: Plan, python: HostPython, work: Path, *, mirror: str | None = None, watcher: Watcher | None = None
) -> BuiltWheel:
    """Build the wheel of ``plan`` for ``python`` into ``work``.

    What was compiled stays in the cache, keyed by project and plan, for the next build. Raises BuildError
    with the back end's first error, and when the wheel holds code of another machine.
    """
    built = LANES[plan.lane].build(plan, python, work, mirror=mirror, watcher=watcher or Steps())
    check(built.path, work / f"build-{python.version}.log")
    return built


def check(path: Path, log: Path) -> None:
    """Raise BuildError for a wheel of another machine, with a wrong name or a function that is nowhere."""
    try:
        wheel = wheelfile.read(path)
    except UsageError as error:
        raise BuildError(f"the project's build left no wheel: {error}\n  log: {log}") from error
    wrong = wheelfile.mismatches(wheel) or symbols.unresolved(path)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        hint = hints.absent(failure.read_log(log)) if log.is_file() else ""
        place = f"{hint} (log: {log})" if hint else f"log: {log}"
        raise BuildError(f"{path.name} is not an AArch64 wheel: {wrong[0]}{more}\n  {place}")
