"""The parts of a wheel, as a CycloneDX document inside it (PEP 770)."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from armbuild.wheel.build import BuiltWheel

FOLDER = "sboms"
NAME = "armbuild.cdx.json"
COMPILED_IN = frozenset({"pybind11", "nanobind", "numpy", "cython", "cffi"})
"""Build requirements whose headers, or the code that they generate, end up in the machine code."""
ZIG_RUNTIME = (
    ("libc++", "LLVM's C++ library"),
    ("libc++abi", "LLVM's C++ runtime"),
    ("libunwind", "LLVM's unwinder"),
    ("compiler-rt", "the compiler's own functions, as zig brings them"),
)
"""What `zig c++` links statically into every shared object that needs it."""


def document(built: BuiltWheel, name: str, version: str) -> bytes:
    """Return the CycloneDX 1.6 JSON of a wheel ``name`` ``version``: the same bytes for equal parts."""
    component = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    parts = [_python_part(package, release) for package, release in sorted(built.tools.items())]
    parts += [_static_part(part, what, built.compiler) for part, what in built.static]
    body: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": component,
            "tools": {"components": [{"type": "application", "name": built.compiler}]},
        },
        "components": parts,
        "dependencies": [
            {
                "ref": component["bom-ref"],
                "dependsOn": [part["bom-ref"] for part in parts if part["scope"] == "required"],
            },
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    body["serialNumber"] = f"urn:uuid:{number}"
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()


def _python_part(package: str, release: str) -> dict[str, Any]:
    name = canonicalize_name(package)
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{release}",
        "name": name,
        "version": release,
        "purl": f"pkg:pypi/{name}@{release}",
        "scope": "required" if name in COMPILED_IN else "excluded",
    }


def _static_part(part: str, what: str, compiler: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": f"static:{part}",
        "name": part,
        "version": compiler,
        "description": f"{what}, statically linked",
        "scope": "required",
    }
