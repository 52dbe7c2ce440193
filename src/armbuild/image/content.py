"""What is truly inside an image: machine code by what it needs, packages by name and licence."""

from __future__ import annotations

import email.parser
import re
import uuid
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from armbuild import audit
from armbuild.image import unpack
from armisa.tables import extensions

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


def debian_components(packages: Iterable[Package], tree: Path) -> list[dict[str, Any]]:
    """Return packages of Debian and its kin as components, with the licences that ``tree`` states."""
    components = []
    for package in packages:
        # package-url specification, types/deb
        address = (
            f"pkg:deb/{package.vendor}/{quote(package.name, safe='.-')}@{quote(package.version, safe='.:~-')}"
            f"?arch={package.architecture}&distro={package.suite}"
        )
        components.append(
            {
                "type": "library",
                "name": package.name,
                "version": package.version,
                "purl": address,
                "bom-ref": address,
                "licenses": [{"license": {"name": name}} for name in _licenses(package.name, tree)],
                "properties": [{"name": "debian:source", "value": package.source}],
            }
        )
    return components


def _licenses(package: str, tree: Path) -> list[str]:
    """Return the names that a package's copyright file gives its licences; its path where that is prose.

    Machine-readable debian/copyright file, version 1.0.
    """
    place = f"usr/share/doc/{package}/copyright"
    path = unpack.inside(tree, PurePosixPath(place))
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if "copyright-format/1.0" not in text.partition("\n\n")[0]:
        return [f"/{place}"]
    return sorted(set(re.findall(r"^License:[ \t]*(\S.*?)[ \t]*$", text, re.MULTILINE))) or [f"/{place}"]


def python_components(tree: Path) -> list[dict[str, Any]]:
    """Return the Python distributions in ``tree`` as components, with the licences that they declare."""
    components = []
    for path in sorted(tree.rglob("*.dist-info/METADATA")):
        if path.is_symlink():
            continue
        fields = email.parser.HeaderParser().parsestr(path.read_text(encoding="utf-8", errors="replace"))
        name, version = fields.get("Name", ""), fields.get("Version", "")
        address = f"pkg:pypi/{quote(name.lower().replace('_', '-'))}@{quote(version, safe='.')}"
        component: dict[str, Any] = {
            "type": "library",
            "name": name,
            "version": version,
            "purl": address,
            "bom-ref": address,
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
    found = {str(component["bom-ref"]): component for component in content.components}
    components = [component for _, component in sorted(found.items())]
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
