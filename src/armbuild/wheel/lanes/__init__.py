"""Ways to compile for AArch64.

``cross`` and ``native`` prepare the world of the project's back end; ``container`` leaves it to cibuildwheel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from armbuild.wheel.lanes import cross, native

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.host.pythons import HostPython
    from armbuild.wheel.lanes.setup import Setup
    from armbuild.wheel.plan import Plan


class Lane(Protocol):
    """What a lane's module offers."""

    def prepare(self, plan: Plan, python: HostPython, folder: Path, *, mirror: str | None) -> Setup:
        """Return what the back end must be told so that its wheel is the one that was planned."""


LANES: dict[str, Lane] = {"cross": cross, "native": native}
"""The lanes in which this process runs the back end; in ``container`` cibuildwheel does."""
