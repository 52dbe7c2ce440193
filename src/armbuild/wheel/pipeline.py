"""The steps of ``armbuild wheel``: build, repair, audit, smoke test, and the move into the output folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from armbuild.artifact import wheelfile
from armbuild.audit import audit_path
from armbuild.errors import ArmbuildError, CheckFailed, MissingError
from armbuild.host import cache, outputs
from armbuild.wheel import provenance, reproduce, smoke
from armbuild.wheel.build import build_wheel
from armbuild.wheel.lanes.lane import Watcher
from armbuild.wheel.repair import repair_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from armbuild.audit import AuditReport
    from armbuild.host.pythons import HostPython
    from armbuild.wheel.lanes.lane import BuiltWheel
    from armbuild.wheel.plan import Plan
    from armbuild.wheel.repair import RepairedWheel
    from armbuild.wheel.smoke import SmokeReport
    from armbuild.wheel.verdict import CpuResult

NO_TEST = "no test named (--import NAME or --command TEXT)"


class Observer(Watcher, Protocol):
    """The observer of every step of every wheel."""

    seconds: dict[str, float]
    """How long each step of the wheel that was begun last took."""

    def begin(self, plan: Plan, python: HostPython) -> None:
        """Take notice of the next wheel."""

    def logs(self, work: Path) -> AbstractContextManager[None]:
        """Surround the steps that leave logs in ``work``."""

    def result(self, result: CpuResult) -> None:
        """Take what the smoke test found on one CPU."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A wheel in the output folder, with what was found on the way."""

    path: Path
    size: int
    built: BuiltWheel
    report: AuditReport
    proof: SmokeReport | None
    not_proven_because: str
    """Empty for a wheel that was tested."""
    seconds: Mapping[str, float]
    cpu_seconds: float | None
    """None in the container lane: an engine's containers are no children of ours."""
    ok: bool = True
    status: int = 0

    @property
    def verdict(self) -> str:
        """Return what the wheel went through."""
        return "proven" if self.proof else "audited, not proven"

    @property
    def lowest_core(self) -> str:
        """Return the lowest core that the wheel runs on; empty for a wheel without machine code."""
        return self.built.plan.baseline or self.report.lowest_core

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON value."""
        plan, settings = self.built.plan, self.built.plan.settings
        return {
            "ok": True,
            "path": str(self.path),
            "size": self.size,
            "tag": self.report.tag,
            "provenance": str(self.path) + provenance.SUFFIX if settings.provenance else None,
            "reproducible": True if settings.check_reproducible else None,
            "python": self.built.python.version,
            "headers": self.built.headers,
            "lane": plan.lane,
            "compiler": self.built.compiler,
            "compile_cache": self.built.cached,
            "kernels": list(self.report.kernel_targets),
            "baseline": plan.baseline,
            "lowest_core": self.lowest_core,
            "verdict": self.verdict,
            "not_proven_because": self.not_proven_because or None,
            "seconds": dict(self.seconds),
            "audit": self.report.as_dict() | {"path": str(self.path)},
            "smoke": self.proof.as_dict() if self.proof else None,
            "cpu_seconds": self.cpu_seconds,
        }


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A Python that the wheel of an earlier one serves too (abi3, ``py3-none``)."""

    python: str
    path: Path
    ok: bool = True
    status: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON value."""
        return {"ok": True, "python": self.python, "path": str(self.path), "shared": True}


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A Python without a wheel, and why."""

    python: str
    error: str
    status: int
    ok: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON value."""
        return {"ok": False, "python": self.python, "error": self.error, "status": self.status}


Result = Finished | Shared | Failed


def run(plan: Plan, observer: Observer, *, mirror: str | None) -> Iterator[Result]:
    """Build a wheel for each Python of ``plan``, but one that serves later Pythons too only once.

    A Python that fails does not keep the others from being built; that of a plan with no other raises its
    error.
    """
    done: wheelfile.WheelFile | None = None
    for python in plan.pythons:
        if done and done.serves(python.version):
            yield Shared(python=python.version, path=done.path)
            continue
        try:
            finished = build_one(plan, python, observer, mirror=mirror)
        except ArmbuildError as error:
            if len(plan.pythons) == 1 and not plan.missing:
                raise
            yield Failed(python=python.version, error=str(error), status=error.status)
            continue
        done = wheelfile.read(finished.path)
        yield finished
    for version, reason in plan.missing:
        yield Failed(python=version, error=reason, status=MissingError.status)


def build_one(plan: Plan, python: HostPython, observer: Observer, *, mirror: str | None) -> Finished:
    """Take one wheel through all steps; it reaches the output folder only when none failed.

    Raises BuildError, MissingError, and CheckFailed where the audit or the smoke test refuses the wheel.
    """
    before = _cpu_seconds()
    observer.begin(plan, python)
    with cache.work_folder(f"wheel-{plan.project.name}") as work:
        with observer.logs(work):
            built = build_wheel(plan, python, work, mirror=mirror, watcher=observer)
            with observer.step("repair", "auditwheel, RECORD, version"):
                repaired = repair_wheel(built, work)
            report = _audit(plan, repaired, observer)
            proof, reason = _prove(plan, repaired, work, observer, mirror)
        if plan.settings.check_reproducible:
            with observer.step("again", "the same from another folder"):
                reproduce.check(repaired, work, mirror=mirror)
        beside = [provenance.write(repaired, work)] if plan.settings.provenance else []
        *_, path = outputs.move_all_into([*beside, repaired.path], plan.settings.output)
    return Finished(
        path=path,
        size=path.stat().st_size,
        built=built,
        report=report,
        proof=proof,
        not_proven_because=reason,
        seconds=dict(observer.seconds),
        cpu_seconds=None if plan.lane == "container" else round(_cpu_seconds() - before, 1),
    )


def _audit(plan: Plan, repaired: RepairedWheel, observer: Observer) -> AuditReport:
    with observer.step("audit", "tag, ELF, symbols, instructions"):
        report = audit_path(
            repaired.path,
            floor=None if plan.variant else plan.baseline,  # a variant states its floor
            expect_targets=plan.targets if plan.project.is_armllm else None,
        )
    if not report.ok:
        raise CheckFailed(f"audit: {report.errors[0]}\n  the wheel stays in {repaired.path}")
    return report


def _prove(
    plan: Plan, repaired: RepairedWheel, work: Path, observer: Observer, mirror: str | None
) -> tuple[SmokeReport | None, str]:
    """Return the smoke test's report, or None and why the wheel could not be run here."""
    if not plan.project.is_armllm and not plan.tests:
        return None, NO_TEST
    if not plan.cpus:
        return None, "--no-smoke"
    try:
        with observer.step("smoke", ", ".join(plan.cpus)):
            report = smoke.smoke_test(
                repaired.path,
                plan.cpus,
                work,
                tests=plan.tests,
                mirror=mirror,
                on_step=lambda what: observer.note(f"{'':<19}{what}"),
                on_result=observer.result,
            )
    except MissingError as error:
        if not plan.settings.proof_required:
            return None, str(error)
        cause = str(error).splitlines()[0]
        raise MissingError(f"not proven: {cause} (--no-require-proof builds without a test)") from error
    if not report.ok:
        reason = smoke.explain_failure(report, repaired.path)
        raise CheckFailed(f"smoke: {reason}\n  the wheel stays in {repaired.path}")
    return report, ""


def _cpu_seconds() -> float:
    """Return the CPU time of this process and all its children so far."""
    return sum(os.times()[:4])
