"""The parts of a wheel, as a CycloneDX document inside it (PEP 770)."""

from __future__ import annotations

import json
import re
import uuid
import warnings
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from armbuild.errors import UsageError, packages_of
from armbuild.wheel import provenance

with packages_of("build"):
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentScope, ComponentType
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

if TYPE_CHECKING:
    from armbuild.wheel.crates import Crate
    from armbuild.wheel.inputs import Input
    from armbuild.wheel.lanes.lane import BuiltWheel

FOLDER = "sboms"
NAME = "armbuild.cdx.json"
COMPILED_IN = frozenset({"pybind11", "nanobind", "numpy", "cython", "cffi"})
"""Build requirements whose headers, or the code that they generate, end up in the machine code."""


def document(built: BuiltWheel, name: str, version: str) -> bytes:
    """Return the CycloneDX 1.6 JSON of a wheel ``name`` ``version``: the same bytes for equal parts."""
    whole = python_package(name, version)
    parts = [python_package(canonicalize_name(tool), release) for tool, release in built.tools.items()]
    for part in parts:
        part.scope = ComponentScope.REQUIRED if part.name in COMPILED_IN else ComponentScope.EXCLUDED
    parts += [
        Component(
            name=part,
            version=built.compiler,
            bom_ref=f"static:{part}",
            description=f"{what}, statically linked",
            scope=ComponentScope.REQUIRED,
        )
        for part, what in built.static
    ]
    parts += [fetched(found) for found in built.plan.sources]
    parts += [crate(found) for found in built.crates]
    bom = Bom(components=parts, metadata=BomMetaData(component=whole, tools=tool(built.compiler)))
    bom.register_dependency(whole, [part for part in parts if part.scope is ComponentScope.REQUIRED])
    return (json.dumps(reproducible(bom, created=None), indent=1, sort_keys=True) + "\n").encode()


def python_package(name: str, version: str) -> Component:
    """Return a Python distribution as a component; raises UsageError for a name that none can have."""
    return package(PackageURL("pypi", name=name, version=version), name, version)


def crate(found: Crate) -> Component:
    """Return a crate of Rust; one that only ran while the wheel was built is excluded from its scope."""
    registry = found.source.startswith("registry+")
    qualifiers = None if registry or not found.source else {"vcs_url": found.source}
    part = package(
        PackageURL("cargo", name=found.name, version=found.version, qualifiers=qualifiers),
        found.name,
        found.version,
    )
    part.scope = ComponentScope.REQUIRED if found.linked else ComponentScope.EXCLUDED
    if re.fullmatch("[0-9a-f]{64}", found.sha256):
        part.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=found.sha256))
    return part


def fetched(found: Input) -> Component:
    """Return sources that the build took in place of a download; of a folder CycloneDX knows no hash."""
    part = Component(
        name=found.name,
        bom_ref=f"source:{found.name}",
        description=f"built from {found.path.name}",
        scope=ComponentScope.REQUIRED,
    )
    if content := found.digest.get("sha256"):
        part.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=content))
    return part


def package(address: PackageURL, name: str, version: str) -> Component:
    """Return the component that a package URL identifies; raises UsageError where it has no name."""
    if not address.name:  # of blanks and slashes alone none is left
        raise UsageError(f"{name!r} is no package's name")
    return Component(name=name, version=version, purl=address, bom_ref=str(address))


def tool(name: str) -> ToolRepository:
    """Return the program that made something, as the document's metadata name it."""
    return ToolRepository(components=[Component(name=name, type=ComponentType.APPLICATION)])


def reproducible(bom: Bom, *, created: int | None) -> dict[str, Any]:
    """Return the CycloneDX 1.6 JSON of ``bom``, whose serial number stands for all that it says.

    ``created`` is in seconds since 1970; None: the document states no time.
    """
    bom.metadata.timestamp = datetime.fromtimestamp(created or 0, timezone.utc)
    bom.serial_number = uuid.UUID(int=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a whole that depends on no part
        body: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    if created is None:
        del body["metadata"]["timestamp"]
    body["serialNumber"] = provenance.serial_number(body)
    return body
