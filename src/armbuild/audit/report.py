"""What an audit found: values with no behavior but their own summary and JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from armbuild.audit.code import Function
    from armbuild.audit.gpu import GpuCode
    from armbuild.audit.policy import Policy


@dataclass(frozen=True, kw_only=True)
class ElfReport:
    """One ELF file: what its headers say, and its functions that need more than Armv8.0-A."""

    name: str
    size: int
    machine: str
    type: str
    needed: tuple[str, ...]
    soname: str | None
    runpath: tuple[str, ...]
    alignment: int | None
    debug: bool
    kernel_targets: tuple[str, ...]
    functions: tuple[Function, ...]
    words: int
    known_functions: int
    self_checked: int
    gpu_code: tuple[GpuCode, ...]

    def as_dict(self, *, every_function: bool) -> dict[str, Any]:
        """Return the JSON form; ``every_function``: with those of the file that need extensions."""
        functions = [function_dict(function) for function in self.functions] if every_function else None
        return {
            "name": self.name,
            "size": self.size,
            "machine": self.machine,
            "type": self.type,
            "needed": list(self.needed),
            "soname": self.soname,
            "runpath": list(self.runpath),
            "segment_alignment": self.alignment,
            "debug_information": self.debug,
            "kernel_targets": list(self.kernel_targets),
            "instructions": self.words,
            "known_functions": self.known_functions,
            "self_checked": self.self_checked,
            "gpu_code": [asdict(item) for item in self.gpu_code],
            **({} if functions is None else {"functions": functions}),
        }


@dataclass(frozen=True, kw_only=True)
class Offence:
    """A function above the floor that no guard covers; ``missing`` are the extensions it may not use."""

    file: str
    function: Function
    missing: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class CoreVerdict:
    """Whether the code runs on a core: "yes", "no", or "only if dispatched", and what it would lack.

    ``certain`` is that part of ``missing`` for which the answer is "no".
    """

    core: str
    verdict: str
    missing: tuple[str, ...]
    certain: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """The result of ``audit_path()``.

    ``errors`` make the check fail, ``warnings`` don't; ``kernel_targets`` are armllm's compiled-in targets;
    ``tag`` is the wheel's tag as in its file name; sizes are in bytes; ``floor`` is the text that was asked
    for.
    """

    path: Path
    kind: str
    size: int
    tag: str | None = None
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    files: tuple[ElfReport, ...] = ()
    kernel_targets: tuple[str, ...] = ()
    policy: Policy | None = None
    floor: str | None = None
    guards: tuple[str, ...] = ()
    offences: tuple[Offence, ...] = ()
    doubts: tuple[Offence, ...] = ()
    needs_everywhere: frozenset[str] = frozenset()
    needs_dispatched: frozenset[str] = frozenset()
    needs_guarded: frozenset[str] = frozenset()
    cores: tuple[CoreVerdict, ...] = ()
    lowest_core: str = ""
    parts: dict[str, int] | None = None
    image: int = 0
    """Which one of the archive's ``images`` this is."""
    images: int = 0
    texts: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The files that ``audit_path()`` was asked to return."""

    @property
    def ok(self) -> bool:
        """Whether the audit passed."""
        return not self.errors

    def as_dict(self, *, every_function: bool = True) -> dict[str, Any]:
        """Return the document of ``armbuild audit --json`` (docs/schema/audit.json).

        ``every_function``: of each file those that need extensions, too.
        """
        return {
            "schema": 1,
            "path": str(self.path),
            "kind": self.kind,
            "ok": self.ok,
            "size": self.size,
            "tag": self.tag,
            "errors": list(self.errors),
            "warnings": list(self.warnings),
            "kernel_targets": list(self.kernel_targets),
            "floor": self.floor,
            "guards": list(self.guards),
            "lowest_core": self.lowest_core,
            "needs": {
                "everywhere": sorted(self.needs_everywhere),
                "if_dispatched": sorted(self.needs_dispatched),
                "guarded": sorted(self.needs_guarded),
            },
            "cores": [
                {
                    "core": item.core,
                    "verdict": item.verdict,
                    "missing": list(item.missing),
                    "certain": list(item.certain),
                }
                for item in self.cores
            ],
            "offences": [
                {"file": item.file, "missing": sorted(item.missing), **function_dict(item.function)}
                for item in self.offences
            ],
            "doubts": [
                {"file": item.file, "missing": sorted(item.missing), **function_dict(item.function)}
                for item in self.doubts
            ],
            "policy": None
            if self.policy is None
            else {
                "name": self.policy.name,
                "symbol_versions": {name: list(values) for name, values in self.policy.versions.items()},
                "outside_libraries": list(self.policy.outside),
            },
            "parts": dict(self.parts or {}),
            "files": [item.as_dict(every_function=every_function) for item in self.files],
        }


def function_dict(function: Function) -> dict[str, Any]:
    """Return the JSON form of a function and of its uses of extensions."""
    texts = [use.text for use in function.uses]
    return {
        "function": function.name,
        "section": function.section,
        "address": f"{function.address:#x}",
        "needs": sorted(function.needs),
        "doubt": function.doubt,
        "runs_at_load": bool(function.at_load),
        "unguarded": sorted(function.unguarded),
        "uses": [
            {
                "extensions": sorted(use.extensions),
                "count": use.count,
                "address": f"{use.address:#x}",
                "word": f"{use.word:08x}",
                "mnemonic": text.partition(" ")[0],
                "disassembly": text,
            }
            for use, text in zip(function.uses, texts, strict=True)
        ],
    }
