"""The statements of an image about itself, compared with its content."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from armbuild.artifact.archives import BROKEN
from armbuild.audit.floor import built_in_guards, parse_floor
from armbuild.audit.verdict import judge
from armbuild.errors import CheckFailed, UsageError, one_line
from armbuild.image import config, reader
from armbuild.image.content import Content
from armbuild.image.entrypoint import FACTS, SBOM
from armbuild.image.reference import MACHINES
from armbuild.target import deb_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from armbuild.audit import AuditReport

STATUS = ("var/lib/dpkg/status", "var/lib/dpkg/status.d")
"""A file of the system's packages, and a folder with a file for each."""
BUILD_INFO = "/armllm/build_info.json"
DEBIAN, PYTHON = "pkg:deb/", "pkg:pypi/"
SHOWN = {DEBIAN: "of Debian", PYTHON: "of Python"}


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Name, labels, annotations and bill of materials of an image."""

    name: str | None
    digest: str
    architecture: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    sbom: Mapping[str, Any] | None
    """The CycloneDX document in the image; None where there is none."""
    errors: tuple[str, ...] = ()
    """Claims that are not true."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, in docs/schema/audit.json; the errors are the report's."""
        return {
            "name": self.name,
            "digest": self.digest,
            "architecture": self.architecture,
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "sbom": None
            if self.sbom is None
            else {
                "path": f"/{SBOM}",
                "format": f"{self.sbom.get('bomFormat')} {self.sbom.get('specVersion')}",
                "components": _components(self.sbom),
            },
        }

    def lines(self) -> Iterator[str]:
        """Yield the same for people."""
        yield from map(one_line, self._lines())

    def _lines(self) -> Iterator[str]:
        name = self.name or "without a name"
        yield f"  image:      {name}, linux/{self.architecture}, {self.digest}"
        for name, value in sorted(self.labels.items()):
            yield f"  label:      {name}={value}"
        if self.sbom is not None:
            kinds = Counter(part["purl"].partition("/")[0] + "/" for part in _components(self.sbom))
            counts = [f"{kinds[kind]} {name}" for kind, name in SHOWN.items()]
            yield f"  packages:   {', '.join(counts)}, in {SBOM}"


def keep(name: str) -> bool:
    """Return whether ``read`` wants this file's content in the report."""
    folder, _, base = name.rpartition("/")
    return (
        name in (SBOM, FACTS, STATUS[0])
        or (folder == STATUS[1] and not base.endswith(".md5sums"))
        or (base == "METADATA" and folder.endswith(".dist-info"))
        or name.endswith(BUILD_INFO)
        or re.search(r"(^|/)armllm-[^/]*\.dist-info/WHEEL$", name) is not None
    )


def read(report: AuditReport) -> Claims:
    """Return what an image says, compared with the audit ``report`` of it, made with ``keep``."""
    try:
        with reader.open_image(report.path) as image:
            manifest = image.manifests()[report.image]
    except CheckFailed:  # which the report has among its errors
        return Claims(name=None, digest="", architecture="", labels={}, annotations={}, sbom=None)
    claims = Claims(
        name=manifest.name,
        digest=manifest.digest,
        architecture=manifest.architecture,
        labels=manifest.config.get("config", {}).get("Labels") or {},
        annotations=manifest.annotations,
        sbom=None,
    )
    if not report.images:  # a damaged one, of which nothing was read
        return claims
    try:
        sbom, present = _packages(report.texts)
    except BROKEN as error:
        return replace(claims, errors=(one_line(f"{SBOM} cannot be read: {error}"),))
    found = _found(claims, report, present)
    errors = [*_labels(claims, found), *_facts(report.texts, found), *_bill(sbom, present)]
    return replace(claims, sbom=sbom, errors=tuple(map(one_line, errors)))


def _found(claims: Claims, report: AuditReport, present: set[str]) -> dict[str, set[str]]:
    """Return what the labels (``armllm.`` is left out) may say, by what the audit found in the image."""
    code = Content(needs=report.needs_everywhere | _by_baseline(report))
    tags = re.findall(
        rb"^Tag: cp(\d)(\d+)-\w+-(\S+)$",
        b"\n".join(text for name, text in report.texts.items() if name.endswith("/WHEEL")),
        re.MULTILINE,
    )
    versions = {
        name: {item.partition("@")[2] for item in present if item.startswith(f"{PYTHON}{name}@")}
        for name in ("torch", "openvino")
    }
    return {
        "kernels": {_joined(report.kernel_targets)},
        "floor": {_joined(code.floor)},
        "lowest-core": {config.lowest(code, MACHINES.get(claims.architecture, ""))},
        "dispatched": {_joined((report.needs_dispatched | report.needs_guarded) - code.needs)},
        **versions,
        "python": {f"{major.decode()}.{minor.decode()}" for major, minor, _ in tags},
        "manylinux": {platform.decode() for *_, platform in tags},
    }


def _by_baseline(report: AuditReport) -> frozenset[str]:
    """Return what the engine needs for certain by the baseline that its own file states."""
    needs: frozenset[str] = frozenset()
    for name, text in report.texts.items():
        if name.endswith(BUILD_INFO):
            files = [
                file for file in report.files if file.name.startswith(name.removesuffix("build_info.json"))
            ]
            with suppress(UsageError, *BROKEN):  # the wheel's own audit reports nonsense
                baseline = parse_floor(json.loads(text)["baseline"])
                needs |= judge(files, None, built_in_guards(), baseline)[0].everywhere
    return needs


def _joined(names: Iterable[str]) -> str:
    return ",".join(sorted(names))


def _labels(claims: Claims, found: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield what the labels say that is not so."""
    for name, values in found.items():
        value = claims.labels.get(f"armllm.{name}")
        if value is not None and value not in values:
            yield f"label armllm.{name}={value}: what is inside says {_or_nothing(values)}"
    for name, value in claims.annotations.items():
        if claims.labels.get(name, value) != value:
            yield f"label {name}={claims.labels[name]}: the annotation says {value}"


def _facts(texts: Mapping[str, bytes], found: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield wrong facts of ``image.json``, by which the entry point refuses a core."""
    if FACTS not in texts:
        return
    try:
        document = json.loads(texts[FACTS])
        facts = {
            "floor": _joined(document["floor"]["features"]),
            "lowest-core": str(document["floor"]["lowest_core"]),
            "kernels": _joined(document["kernels"]),
            "dispatched": _joined(document["dispatched"]),
            "torch": str(document["torch"]),
            "python": str(document["python"]),
            **({"openvino": str(document["openvino"])} if "openvino" in document else {}),
        }
    except BROKEN as error:
        yield f"{FACTS} cannot be read: {error}"
        return
    for name, value in facts.items():
        if value not in found[name]:
            yield f"{FACTS}: {name} {value or 'nothing'}: what is inside says {_or_nothing(found[name])}"


def _or_nothing(values: set[str]) -> str:
    return " or ".join(sorted(values)) or "nothing"


def _packages(texts: Mapping[str, bytes]) -> tuple[Mapping[str, Any] | None, set[str]]:
    """Return the bill of materials, and the packages that are there as (kind + name)@version."""
    sbom: Mapping[str, Any] | None = None
    present = set()
    for path, content in texts.items():
        if path == SBOM:
            sbom = json.loads(content)
            _components(sbom)  # or it is none
        elif path.startswith(STATUS):
            for fields in deb_files.installed(content.decode(errors="replace")):
                present.add(f"{DEBIAN}{fields['Package']}@{fields['Version']}")
        elif path.endswith("/METADATA"):
            distribution = path.split("/")[-2].removesuffix(".dist-info")
            project, _, version = distribution.rpartition("-")
            present.add(f"{PYTHON}{canonicalize_name(project)}@{version}")
    return sbom, present


def _bill(sbom: Mapping[str, Any] | None, present: set[str]) -> Iterator[str]:
    """Yield how the bill of materials differs from the packages that are there."""
    if sbom is None:
        return
    kinds = {item.partition("/")[0] for item in present}
    listed = set()
    for part in _components(sbom):
        kind = next((kind for kind in SHOWN if part["purl"].startswith(kind)), None)
        if kind and kind.rstrip("/") in kinds:
            name = canonicalize_name(part["name"]) if kind == PYTHON else part["name"]
            listed.add(f"{kind}{name}@{part['version']}")
    yield from _differences("lists, and the image has not", listed - present)
    yield from _differences("leaves out, and the image has", present - listed)


def _differences(how: str, names: Iterable[str]) -> Iterator[str]:
    if shown := sorted(names):
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        yield f"{SBOM} {how}: {', '.join(shown[:3])}{more}"


def _components(sbom: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a bill: name, version and purl as texts, and the licenses' names."""
    return [
        {
            **{key: str(part.get(key, "")) for key in ("name", "version", "purl")},
            "licenses": [
                str(item.get("expression") or item["license"].get("id") or item["license"].get("name"))
                for item in part.get("licenses", ())
            ],
        }
        for part in sbom.get("components", ())
    ]
