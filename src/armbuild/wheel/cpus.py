"""The CPUs that a wheel is tested on: this machine, or a core that QEMU has a model of."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

import armisa
from armbuild.errors import UsageError
from armbuild.target import qemu

if TYPE_CHECKING:
    from collections.abc import Sequence

NATIVE = "native"
"""The CPU name that stands for this machine itself."""
EMULATED = ("neoverse-n1", "neoverse-v1", "max")
"""An old and a new server core, and all that QEMU can do."""


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """A CPU to run on."""

    name: str
    model: str | None
    """QEMU's name for it; None: this machine."""
    isa: armisa.Isa


def check_names(names: Sequence[str]) -> tuple[Cpu, ...]:
    """Return the CPUs named; raises UsageError for a name that nobody knows or that QEMU has no model of."""
    found = []
    for name in dict.fromkeys(names):
        if name == NATIVE:
            if platform.machine() != "aarch64":
                raise UsageError(
                    f"--cpu native: this is {platform.machine()}; name a core, such as neoverse-n1"
                )
            found.append(Cpu(name=name, model=None, isa=armisa.detect()))
            continue
        core = armisa.Isa.from_target(name)
        model = (core.cores[0].name or name).lower().removeprefix("qemu ").replace(" ", "-")
        if model not in qemu.MODELS:
            listed = ", ".join(sorted(qemu.MODELS))
            raise UsageError(f"--cpu {name}: QEMU has no model of {model}; it has {listed}")
        found.append(Cpu(name=name, model=model, isa=core))
    return tuple(found)


def default_cpus() -> tuple[str, ...]:
    """Return this machine on AArch64; elsewhere EMULATED."""
    return (NATIVE,) if platform.machine() == "aarch64" else EMULATED
