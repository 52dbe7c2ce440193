"""The protocol of a lane, and the wheel that it builds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from armbuild.host.pythons import HostPython
    from armbuild.wheel.crates import Crate
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
    folders: Mapping[str, str] = field(default_factory=dict)
    """Folders of this machine, each with what stands for it in the wheel."""
    crates: tuple[Crate, ...] = ()
    """The crates of Rust that were compiled."""
    cached: Mapping[str, int] | None = None
    """Hits and misses of the compile cache, where there is one."""


class Watcher(Protocol):
    """The observer of the progress of a build."""

    def step(self, name: str, detail: str) -> AbstractContextManager[None]:
        """Surround a step."""

    def note(self, text: str) -> None:
        """Take a line that belongs to no step."""


class Lane(Protocol):
    """What the module of a lane defines."""

    def plan(self, draft: Plan, find: Callable[[str], HostPython]) -> Plan:
        """Check what is asked of this lane and complete the draft: Pythons, compiler, flags.

        ``find`` returns an interpreter of this machine. Raises UsageError for a setting that this lane does
        not honor, with what to do instead.
        """

    def build(
        self, plan: Plan, python: HostPython, work: Path, *, mirror: str | None, watcher: Watcher
    ) -> BuiltWheel:
        """Build the wheel for ``python`` into ``work``; raises BuildError with the first error."""
