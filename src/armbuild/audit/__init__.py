"""What a wheel holds and needs: packaging, symbol versions, and instructions against a CPU floor."""

from __future__ import annotations

from armbuild.audit.auditor import audit_path
from armbuild.audit.floor import Guard, make_guard, parse_floor, parse_guard
from armbuild.audit.report import AuditReport, CoreVerdict, ElfReport, Offence

__all__ = [
    "AuditReport",
    "CoreVerdict",
    "ElfReport",
    "Guard",
    "Offence",
    "audit_path",
    "make_guard",
    "parse_floor",
    "parse_guard",
]
