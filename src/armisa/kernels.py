"""Which kernel target runs each op: the choice that csrc/dispatch.cpp makes, answered for any CPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from armisa.kernel_ops import target_ops
from armisa.tables import load

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


@dataclass(frozen=True, kw_only=True)
class KernelTarget:
    """One entry of kernels.toml: code compiled for ``features`` (Linux names) that implements ``ops``."""

    name: str
    machine: str
    features: frozenset[str]
    sve_bits: int
    """The shortest SVE vectors that it is for; 0: none."""
    ops: tuple[str, ...]

    def runs_on(self, features: Collection[str], machine: str, sve_bits: int | None) -> bool:
        """Return whether it is for a CPU of this machine type, with these features and SVE vectors."""
        fits = self.machine in ("any", machine) and self.features <= frozenset(features)
        return fits and self.takes_vectors(sve_bits or 0)

    def takes_vectors(self, sve_bits: int) -> bool:
        """Return whether SVE vectors of so many bits will do; compilers assume a power of two."""
        return self.sve_bits == 0 or (sve_bits >= self.sve_bits and sve_bits.bit_count() == 1)


@functools.cache
def kernel_targets() -> tuple[KernelTarget, ...]:
    """Return the targets of kernels.toml in order of preference, lowest first."""
    document = load("kernels")
    return tuple(
        KernelTarget(
            name=entry["name"],
            machine=entry["machine"],
            features=frozenset(entry["features"]),
            sve_bits=entry.get("sve_bits", 0),
            ops=tuple(target_ops(document, entry)),
        )
        for entry in document["target"]
    )


def select_kernels(
    features: Iterable[str],
    machine: str,
    available: Collection[str] | None = None,
    *,
    sve_bits: int | None = None,
) -> dict[str, str]:
    """Return for each op the target that a CPU with ``features`` runs it with.

    ``machine`` is "aarch64" or "x86_64"; ``available`` limits the choice to the targets that a wheel holds;
    ``sve_bits`` is the length of the SVE vectors, None when there are none or it isn't known.
    An op that no available target implements on this CPU is left out.
    """
    present = frozenset(features)
    selected: dict[str, str] = {}
    for target in kernel_targets():
        if (available is None or target.name in available) and target.runs_on(present, machine, sve_bits):
            selected.update(dict.fromkeys(target.ops, target.name))
    return dict(sorted(selected.items()))


def better_targets(
    op: str, selected: str, features: Collection[str], machine: str, sve_bits: int | None = None
) -> Iterator[str]:
    """Yield what each better target of ``op`` than the selected one would need."""
    names = [target.name for target in kernel_targets()]
    for target in kernel_targets()[names.index(selected) + 1 :]:
        if op in target.ops and target.machine in ("any", machine):
            needs = sorted(target.features - frozenset(features))
            if not target.takes_vectors(sve_bits or 0):
                needs.append(f"SVE vectors of {target.sve_bits} bits or more, a power of two")
            yield f"{target.name} needs {', '.join(needs)}"
