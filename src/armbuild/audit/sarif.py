"""Audit reports in SARIF 2.1.0 (OASIS), the format of code-scanning pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armbuild import __doc__ as _about
from armisa.tables import extensions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from armbuild.audit.report import AuditReport, Offence

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_document(reports: Iterable[AuditReport]) -> dict[str, Any]:
    """Return one SARIF log with a result per packaging error, warning, and function above the floor."""
    results = [result for report in reports for result in _results(report)]
    rules = sorted({result["ruleId"] for result in results})
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "armbuild audit",
                        "fullDescription": {"text": _about or ""},
                        "rules": [_rule(name) for name in rules],
                    }
                },
                "results": results,
            }
        ],
    }


def _rule(name: str) -> dict[str, Any]:
    text = {
        "packaging": "The wheel does not keep a promise that its name, metadata or tag makes",
        "packaging-warning": "The wheel works, and could be better",
    }.get(name, f"Code needs a CPU with the extension {name.removeprefix('needs-')}")
    return {"id": name, "shortDescription": {"text": text}}


def _results(report: AuditReport) -> Iterable[dict[str, Any]]:
    uri = report.path.as_posix()
    for rule, level, messages in (
        ("packaging", "error", report.errors),
        ("packaging-warning", "warning", report.warnings),
    ):
        for message in messages:
            yield _result(rule, level, message, uri, [])
    level = "error" if report.floor else "note"
    for offence in report.offences:
        yield from _offence(offence, level, uri)
    for offence in report.doubts:
        yield from _offence(offence, "note", uri)


def _offence(offence: Offence, level: str, uri: str) -> Iterable[dict[str, Any]]:
    function = offence.function
    for name in (name for name in extensions() if name in offence.missing):
        use = next((use for use in function.uses if name in use.extensions), function.uses[0])
        doubt = f" (doubtful: {function.doubt})" if function.doubt else ""
        message = f"{function.name} at {use.address:#x}: {use.word:08x} {use.text} needs {name}{doubt}"
        where = [
            {"fullyQualifiedName": function.name, "kind": "function"},
            {"name": offence.file, "kind": "module"},
        ]
        yield _result(f"needs-{name}", level, message, uri, where)


def _result(rule: str, level: str, message: str, uri: str, where: list[dict[str, str]]) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": uri}}}
    if where:
        location["logicalLocations"] = where
    return {"ruleId": rule, "level": level, "message": {"text": message}, "locations": [location]}
