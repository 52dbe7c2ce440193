"""Ways to compile for AArch64: one module each, behind the ``Lane`` protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armbuild.wheel.lanes import container, cross, native

if TYPE_CHECKING:
    from armbuild.wheel.lanes.lane import Lane

LANES: dict[str, Lane] = {"cross": cross, "native": native, "container": container}
