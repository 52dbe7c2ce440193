"""The content of an image: the needs of its machine code, and its packages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from armbuild import audit
from armisa.tables import extensions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a layer, or all of them together, hold; extension names are the compilers'."""

    needs: frozenset[str] = frozenset()
    """Extensions that run for certain."""
    dispatched: frozenset[str] = frozenset()
    """Extensions behind a run-time choice."""
    kernels: frozenset[str] = frozenset()
    machines: frozenset[str] = frozenset()
    elf_files: int = 0
    components: tuple[Mapping[str, Any], ...] = ()
    """Of the bill of materials (CycloneDX)."""

    @property
    def floor(self) -> frozenset[str]:
        """Return the features (Linux names) without which the image's code dies."""
        known = extensions()
        return frozenset().union(*(known[name].linux for name in self.needs if name in known))

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON value that ``from_dict`` reads."""
        return {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Content:
        """Return what ``as_dict`` wrote."""
        sets = {name: frozenset(value[name]) for name in ("needs", "dispatched", "kernels", "machines")}
        return cls(**sets, elf_files=value["elf_files"], components=tuple(value["components"]))


def inspect(tree: Path, components: Iterable[Mapping[str, Any]]) -> Content:
    """Audit every ELF file below ``tree``."""
    report = audit.audit_path(tree)
    return Content(
        needs=report.needs_everywhere,
        dispatched=report.needs_dispatched,
        kernels=frozenset(report.kernel_targets),
        machines=frozenset(file.machine for file in report.files),
        elf_files=len(report.files),
        components=tuple(components),
    )


def together(parts: Iterable[Content]) -> Content:
    """Return what layers laid over one another hold."""
    parts = list(parts)
    needs = frozenset().union(*(part.needs for part in parts))
    return Content(
        needs=needs,
        dispatched=frozenset().union(*(part.dispatched for part in parts)) - needs,
        kernels=frozenset().union(*(part.kernels for part in parts)),
        machines=frozenset().union(*(part.machines for part in parts)),
        elf_files=sum(part.elf_files for part in parts),
        components=tuple(component for part in parts for component in part.components),
    )
