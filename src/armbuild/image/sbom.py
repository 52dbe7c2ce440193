"""The packages of an image as a CycloneDX document: of Debian and of Python, by name and license."""

from __future__ import annotations

import email.parser
import json
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from armbuild.artifact import archives
from armbuild.errors import packages_of
from armbuild.wheel import sbom

with packages_of("build"):
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
    from cyclonedx.schema.schema import SchemaVersion1Dot6
    from packageurl import PackageURL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from armbuild.image.content import Content
    from armbuild.image.root import Package


def debian_components(packages: Iterable[Package], tree: Path) -> Iterator[Component]:
    """Yield packages of Debian and its kin, with the licenses that ``tree`` states."""
    for package in packages:
        where = {"arch": package.architecture, "distro": package.suite}
        address = PackageURL("deb", package.vendor, package.name, package.version, where)
        component = sbom.package(address, package.name, package.version)
        component.licenses = [DisjunctiveLicense(name=name) for name in _licenses(package.name, tree)]
        component.properties = [Property(name="debian:source", value=package.source)]
        yield component


def _licenses(package: str, tree: Path) -> list[str]:
    """Return the names that a package's copyright file gives its licenses; its path where that is prose.

    Machine-readable debian/copyright file, version 1.0.
    """
    place = f"usr/share/doc/{package}/copyright"
    path = archives.inside(tree, PurePosixPath(place))
    text = archives.file_text(path) if path.is_file() else ""
    if "copyright-format/1.0" not in text.partition("\n\n")[0]:
        return [f"/{place}"]
    # debian.copyright finds the same names in 525 of 529 files, but takes 4 s for them instead of 0.1 s.
    names = {name.rstrip() for name in re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE)}
    return sorted(names) or [f"/{place}"]


def python_components(tree: Path) -> Iterator[Component]:
    """Yield the Python distributions in ``tree``, with the licenses that they declare."""
    for path in sorted(tree.rglob("*.dist-info/METADATA")):
        if path.is_symlink() or path.parent.is_symlink():  # it may lead to a file of this machine
            continue
        fields = email.parser.HeaderParser().parsestr(archives.file_text(path))
        folder, _, version = path.parent.stem.rpartition("-")  # which a broken file leaves to say
        component = sbom.python_package(fields.get("Name") or folder, fields.get("Version") or version)
        expression, prose = fields.get("License-Expression"), fields.get("License", "").strip()
        stated = [line for line in fields.get_all("Classifier", []) if line.startswith("License ::")]
        names = [line.rpartition(":: ")[2] for line in stated] or [prose.partition("\n")[0][:80]]
        if expression:
            component.licenses = [LicenseExpression(expression)]
        else:
            component.licenses = [DisjunctiveLicense(name=name) for name in names if name]
        yield component


def as_json(component: Component) -> dict[str, Any]:
    """Return a component as a JSON value."""
    value: dict[str, Any] = json.loads(component.as_json(view_=SchemaVersion1Dot6))  # type: ignore[attr-defined]
    return value


def document(
    content: Content, *, name: str, version: str, created: int, properties: Mapping[str, str]
) -> dict[str, Any]:
    """Return the CycloneDX 1.6 document of an image; equal content gives equal bytes."""
    found = {str(component["bom-ref"]): component for component in content.components}
    whole = Component(type=ComponentType.CONTAINER, name=name, version=version, bom_ref="image")
    metadata = BomMetaData(
        component=whole,
        tools=sbom.tool("armbuild"),
        properties=[Property(name=key, value=value) for key, value in properties.items()],
    )
    components = map(Component.from_json, found.values())  # type: ignore[attr-defined]
    bom = Bom(components=components, metadata=metadata)
    bom.register_dependency(whole, bom.components)
    return sbom.reproducible(bom, created=created)
