"""The steps of ``armbuild wheel``, told to a person as they happen."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armbuild.cli.progress import Progress, logs

if TYPE_CHECKING:
    from armbuild.artifact.wheelfile import WheelFile
    from armbuild.audit import AuditReport
    from armbuild.host.pythons import HostPython
    from armbuild.wheel.build import BuiltWheel
    from armbuild.wheel.plan import Plan
    from armbuild.wheel.repair import RepairedWheel
    from armbuild.wheel.smoke import SmokeReport
    from armbuild.wheel.verdict import CpuResult


class Pipeline:
    """Build, repair, audit and smoke, for every Python of a plan."""

    def __init__(
        self,
        plan: Plan,
        *,
        mirror: str | None,
        verbose: bool,
        provenance: bool = True,
        check_reproducible: bool = False,
    ) -> None:
        self.plan, self.mirror, self.verbose = plan, mirror, verbose
        self.provenance, self.check_reproducible = provenance, check_reproducible
        self.progress = Progress()

    def all(self, *, as_json: bool) -> int:
        """Build every wheel of the plan; one that fails does not keep the others from being built.

        The exit status is that of the first failure.
        """
        results = self._build_all()
        status = next((result["status"] for result in results if not result["ok"]), 0)
        if as_json:
            print(json.dumps({"schema": 1, "ok": not status, "wheels": results}, indent=2))
        return status

    def _build_all(self) -> list[dict[str, Any]]:
        """Build for each Python, but a wheel that serves later ones too only once."""
        from armbuild.artifact import wheelfile  # noqa: PLC0415

        results: list[dict[str, Any]] = []
        done: WheelFile | None = None
        for python in self.plan.pythons:
            if done and done.serves(python.version):
                self.progress.note(f"Python {python.version}: {done.path.name} serves it too")
                results.append({"ok": True, "python": python.version, "path": str(done.path), "shared": True})
                continue
            result = self._attempt(python)
            results.append(result)
            if result.get("path"):
                done = wheelfile.read(Path(result["path"]))
        for version, reason in self.plan.missing:
            print(f"armbuild: error: Python {version}: {reason}", file=sys.stderr)
            results.append({"ok": False, "python": version, "error": reason, "status": 3})
        return results

    def _attempt(self, python: HostPython) -> dict[str, Any]:
        from armbuild.errors import ArmbuildError  # noqa: PLC0415

        try:
            return self.one(python)
        except ArmbuildError as error:
            if len(self.plan.pythons) == 1 and not self.plan.missing:
                raise
            print(f"armbuild: error: Python {python.version}: {error}", file=sys.stderr)
            return {"ok": False, "python": python.version, "error": str(error), "status": error.status}

    def one(self, python: HostPython) -> dict[str, Any]:
        """Take one wheel through all steps; it reaches the output folder only when none said no."""
        from armbuild.audit import audit  # noqa: PLC0415
        from armbuild.errors import CheckFailed  # noqa: PLC0415
        from armbuild.host import cache  # noqa: PLC0415
        from armbuild.wheel import provenance, reproduce  # noqa: PLC0415
        from armbuild.wheel.build import build  # noqa: PLC0415
        from armbuild.wheel.repair import repair  # noqa: PLC0415
        from armbuild.wheel.smoke import explain_failure  # noqa: PLC0415

        plan, progress = self.plan, self.progress
        before = _cpu_seconds()
        print(f"{plan.project.name} for AArch64, Python {python.version}", file=sys.stderr)
        with cache.work_folder(f"wheel-{plan.project.name}") as work:
            with logs(work, shown=self.verbose):
                waiting = "another build of this project is running: waiting for it"
                built = build(
                    plan,
                    python,
                    work,
                    mirror=self.mirror,
                    on_wait=lambda: progress.note(waiting),
                    step=progress.step,
                )
                with progress.step("repair", "auditwheel, RECORD, version"):
                    repaired = repair(built, work)
                with progress.step("audit", "tag, ELF, symbols, instructions"):
                    report = audit(
                        repaired.path,
                        floor=None if plan.variant else plan.baseline,  # a variant states its floor
                        expect_targets=plan.targets if plan.project.is_armllm else None,
                    )
                if not report.ok:
                    raise CheckFailed(f"audit: {report.errors[0]}\n  the wheel stays in {repaired.path}")
                proof, why = self._smoke(repaired, work)
                if proof is not None and not proof.ok:
                    raise CheckFailed(
                        f"smoke: {explain_failure(proof)}\n  the wheel stays in {repaired.path}"
                    )
            if self.check_reproducible:
                with progress.step("again", "the same from another folder"):
                    reproduce.check(repaired, work, mirror=self.mirror)
            if self.provenance:
                cache.move_into(provenance.write(repaired, work), plan.out)
            path = cache.move_into(repaired.path, plan.out)
        finished = self._finish(path, python, built=built, report=report, proof=proof, why=why)
        # an engine's containers are no children of ours
        used = None if plan.lane == "container" else round(_cpu_seconds() - before, 1)
        return finished | {"cpu_seconds": used}

    def _smoke(self, repaired: RepairedWheel, work: Path) -> tuple[SmokeReport | None, str]:
        """Return the report, or None and why the wheel could not be run here."""
        from armbuild.errors import MissingError  # noqa: PLC0415
        from armbuild.wheel import smoke  # noqa: PLC0415

        if not self.plan.project.is_armllm and not self.plan.tests:
            return None, "no test named (--import NAME or --command TEXT)"
        if not self.plan.cpus:
            return None, "--no-smoke"
        try:
            with self.progress.step("smoke", ", ".join(self.plan.cpus)):
                report = smoke.smoke(
                    repaired.path,
                    self.plan.cpus,
                    work,
                    tests=self.plan.tests,
                    mirror=self.mirror,
                    on_step=lambda what: self.progress.note(f"{'':<19}{what}"),
                    on_result=lambda result: self.progress.note(f"{'':<19}{_result_line(result)}"),
                )
        except MissingError as error:
            return None, str(error)
        return report, ""

    def _finish(
        self,
        path: Path,
        python: HostPython,
        *,
        built: BuiltWheel,
        report: AuditReport,
        proof: SmokeReport | None,
        why: str,
    ) -> dict[str, Any]:
        from armbuild.wheel.provenance import SUFFIX  # noqa: PLC0415

        verdict = "proven" if proof else "audited, not proven"
        size = path.stat().st_size
        lowest = self.plan.baseline or report.lowest_core
        code = f"lowest core: {lowest}" if lowest else "no machine code"
        lines = [
            f"{path}",
            f"  {size / 1e6:.2f} MB, {report.tag}, {code}",
            f"  {verdict}: {why}" if why else f"  {verdict} on {', '.join(self.plan.cpus)}",
        ]
        if built.cached and any(built.cached.values()):
            told = ", ".join(f"{count} {part}" for part, count in built.cached.items())
            lines.insert(2, f"  compile cache: {told}")
        print("\n".join(lines), file=sys.stderr)
        return {
            "ok": True,
            "path": str(path),
            "size": size,
            "tag": report.tag,
            "provenance": str(path) + SUFFIX if self.provenance else None,
            "reproducible": True if self.check_reproducible else None,
            "python": python.version,
            "headers": built.headers,
            "lane": self.plan.lane,
            "compiler": built.compiler,
            "compile_cache": built.cached,
            "kernels": list(report.kernel_targets),
            "baseline": self.plan.baseline,
            "lowest_core": lowest,
            "verdict": verdict,
            "not_proven_because": why or None,
            "seconds": self.progress.seconds,
            "audit": report.as_dict() | {"path": str(path)},
            "smoke": proof.as_dict() if proof else None,
        }


def _cpu_seconds() -> float:
    """Return the CPU time of this process and all its children so far."""
    return sum(os.times()[:4])


def _result_line(result: CpuResult) -> str:
    speed = f", {result.tokens_per_second:.1f} tokens/s" if result.tokens_per_second else ""
    said = f": {result.said}" if result.said else ""
    return f"{result.cpu}: {'passed' if result.passed else 'FAILED'}{speed}, {result.seconds:.1f} s{said}"
