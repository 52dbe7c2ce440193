"""What is truly inside an image: machine code by what it needs, packages by name and licence."""

from __future__ import annotations

import email.parser
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from armbuild import audit
from armbuild.isa.tables import extensions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from armbuild.image.root import Package


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
    report = audit.audit(tree)
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


def debian_components(packages: Iterable[Package]) -> list[dict[str, Any]]:
    """Return Debian packages as components; their licences lie beside them, in prose."""
    return [
        {
            "type": "library",
            "name": package.name,
            "version": package.version,
            # package-url specification, types/deb
            "purl": f"pkg:deb/debian/{package.name}@{quote(package.version, safe='.:~-')}"
            f"?arch={package.architecture}&distro={package.suite}",
            "bom-ref": f"deb:{package.name}",
            "licenses": [{"license": {"name": f"/usr/share/doc/{package.name}/copyright"}}],
            "properties": [{"name": "debian:source", "value": package.source}],
        }
        for package in packages
    ]


def python_components(site: Path) -> list[dict[str, Any]]:
    """Return the Python distributions in ``site`` as components, with the licences that they declare."""
    components = []
    for path in sorted(site.glob("*.dist-info/METADATA")):
        fields = email.parser.HeaderParser().parsestr(path.read_text(encoding="utf-8", errors="replace"))
        name, version = fields.get("Name", ""), fields.get("Version", "")
        component: dict[str, Any] = {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{quote(name.lower().replace('_', '-'))}@{quote(version, safe='.')}",
            "bom-ref": f"pypi:{name}",
        }
        expression, prose = fields.get("License-Expression"), fields.get("License", "")
        classifiers = [
            line.rpartition(":: ")[2]
            for line in fields.get_all("Classifier", [])
            if line.startswith("License ::")
        ]
        if expression:
            component["licenses"] = [{"expression": expression}]
        elif classifiers or prose:
            first = prose.strip().partition("\n")[0][:80]
            component["licenses"] = [{"license": {"name": name}} for name in classifiers or [first]]
        components.append(component)
    return components


def bill_of_materials(
    content: Content, *, name: str, version: str, created: str, properties: Mapping[str, str]
) -> dict[str, Any]:
    """Return the CycloneDX 1.6 document of an image; equal content gives equal bytes."""
    components = sorted(content.components, key=lambda component: str(component["bom-ref"]))
    identity = "\n".join([name, version, *(str(component["purl"]) for component in components)])
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "tools": {"components": [{"type": "application", "name": "armbuild"}]},
            "component": {"type": "container", "name": name, "version": version, "bom-ref": "image"},
            "properties": [{"name": key, "value": value} for key, value in sorted(properties.items())],
        },
        "components": components,
    }
