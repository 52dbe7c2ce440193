from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from armbuild.audit import AuditReport
    from armbuild.cli.progress import Progress
    from armbuild.plan import Plan
    from armbuild.pythons import HostPython
    from armbuild.repair import RepairedWheel
    from armbuild.smoke import CpuResult, SmokeReport
    from armbuild.wheelfile import WheelFile


def register(app: typer.Typer) -> None:
    """Add ``armbuild wheel`` to the command line."""
    app.command("wheel")(wheel)


def wheel(
    project: Annotated[
        str, typer.Argument(help="A project's folder, an sdist file, or a requirement such as 'lz4>=4.4'.")
    ] = ".",
    *,
    hashes: Annotated[
        list[str] | None,
        typer.Option("--hash", metavar="sha256:HEX", help="The sdist must match it; may be repeated."),
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option("--python", metavar="X.Y", help="Build for this Python, or for `all`; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where finished wheels go; default: dist.")
    ] = None,
    toolchain: Annotated[
        str | None,
        typer.Option("--toolchain", metavar="zig|gcc|clang", help="The cross lane's compiler; default: zig."),
    ] = None,
    packages: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="DEB[,DEB]", help="Debian arm64 packages to build with (zlib1g-dev)."),
    ] = None,
    check_reproducible: Annotated[
        bool,
        typer.Option("--check-reproducible", help="Build twice, in two folders, and compare the bytes."),
    ] = False,
    no_provenance: Annotated[
        bool, typer.Option("--no-provenance", help="Write no provenance file beside the wheel.")
    ] = False,
    no_isolation: Annotated[
        bool, typer.Option("--no-isolation", help="Build with what is installed here already.")
    ] = False,
    lock: Annotated[
        Path | None,
        typer.Option("--lock", metavar="FILE", help="Pin and hash the build requirements in this file."),
    ] = None,
    lane: Annotated[
        str | None, typer.Option("--lane", metavar="cross|native", help="How to compile.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="TARGET", help="Compile everything for this core and newer."),
    ] = None,
    bf16: Annotated[
        bool | None, typer.Option("--bf16/--no-bf16", help="Kernels for BF16 instructions.")
    ] = None,
    dotprod: Annotated[bool | None, typer.Option("--dotprod/--no-dotprod", help="... for DotProd.")] = None,
    fhm: Annotated[
        bool | None, typer.Option("--fhm/--no-fhm", help="... for FP16 multiply-add to FP32.")
    ] = None,
    i8mm: Annotated[
        bool | None, typer.Option("--i8mm/--no-i8mm", help="... for int8 matrix products.")
    ] = None,
    sve: Annotated[bool | None, typer.Option("--sve/--no-sve", help="... for SVE.")] = None,
    cpu: Annotated[
        list[str] | None,
        typer.Option("--cpu", metavar="CPU", help="Smoke-test on this core; may be repeated."),
    ] = None,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="NAME", help="Prove the wheel by importing this; may be repeated."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar="TEXT",
            help="Prove it by running this; {project} is the sources' folder.",
        ),
    ] = None,
    requires: Annotated[
        list[str] | None,
        typer.Option("--requires", metavar="REQUIREMENT", help="What --command needs; may be repeated."),
    ] = None,
    no_smoke: Annotated[bool, typer.Option("--no-smoke", help="Do not run the wheel.")] = False,
    mirror: Annotated[str | None, typer.Option("--mirror", metavar="URL", help="A Debian archive.")] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print what would happen; build nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show what the tools say, and where errors arise.")
    ] = False,
) -> int:
    """Build an AArch64 wheel, repair and audit it, and prove it with real inference."""
    from armbuild import process  # noqa: PLC0415

    process.interrupt_on_termination()
    from armbuild import debian, fetch, pythons, settings, smoke  # noqa: PLC0415
    from armbuild import plan as planning  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild.project import read as read_project  # noqa: PLC0415
    from armbuild.user_tests import UserTests  # noqa: PLC0415

    if no_smoke and (cpu or imports or command):
        raise typer.BadParameter("--cpu, --import and --command say how to smoke-test, --no-smoke not to")
    if mirror:
        debian.check_address(mirror)
    located = fetch.locate(project, python=_resolve_for(python or []), hashes=hashes or ())
    given = {
        "python": python,
        "lane": lane,
        "toolchain": toolchain,
        "packages": packages,
        "baseline": baseline,
        "isolation": False if no_isolation else None,
        "lock": lock,
        "imports": imports,
        "command": command,
        "requires": requires,
        "cpu": cpu,
        "smoke": False if no_smoke else None,
        "out": out,
        "provenance": False if no_provenance else None,
        "check_reproducible": check_reproducible or None,
    }
    table = read_project(located.folder, located.origin).tool.get("armbuild", {})
    told = settings.load(given, table, os.environ, where=located.folder / "pyproject.toml")
    tests = UserTests(imports=tuple(told.imports), command=told.command, requires=tuple(told.requires))
    chosen = planning.plan(
        located.folder,
        origin=located.origin,
        python_versions=told.python,
        lane=told.lane,
        kernels={"bf16": bf16, "dotprod": dotprod, "fhm": fhm, "i8mm": i8mm, "sve": sve},
        baseline=told.baseline,
        out=Path(told.out),
        cpus=tuple(told.cpu or smoke.default_cpus()) if told.smoke else (),
        tests=tests,
        toolchain=told.toolchain,
        packages=told.packages,
        isolation=told.isolation,
        lock=Path(told.lock) if told.lock else None,
        find=pythons.find if plan_only else functools.partial(pythons.obtain, mirror=mirror),
    )
    chosen.tests.check()
    smoke.check_names(chosen.cpus)
    if cpu and not chosen.cpus:
        raise typer.BadParameter(
            f"--cpu: {chosen.project.name} carries no test of its own: say --import NAME or --command TEXT"
        )
    if plan_only:
        print(json.dumps(chosen.as_dict(), indent=2) if as_json else _plan_text(chosen))
        return 0
    run = _Run(
        chosen,
        mirror=mirror,
        verbose=verbose,
        provenance=told.provenance,
        check_reproducible=told.check_reproducible,
    )
    return run.all(as_json=as_json)


class _Run:
    """The steps of one command, told to a person as they happen."""

    def __init__(
        self,
        plan: Plan,
        *,
        mirror: str | None,
        verbose: bool,
        provenance: bool = True,
        check_reproducible: bool = False,
    ) -> None:
        from armbuild.cli.progress import Progress  # noqa: PLC0415

        self.plan, self.mirror, self.verbose = plan, mirror, verbose
        self.provenance, self.check_reproducible = provenance, check_reproducible
        self.progress: Progress = Progress()

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
        from armbuild import wheelfile  # noqa: PLC0415

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
        from armbuild import cache, provenance, reproduce  # noqa: PLC0415
        from armbuild.audit import audit  # noqa: PLC0415
        from armbuild.build import build  # noqa: PLC0415
        from armbuild.errors import CheckFailed  # noqa: PLC0415
        from armbuild.repair import repair  # noqa: PLC0415
        from armbuild.smoke import explain_failure  # noqa: PLC0415

        plan, progress = self.plan, self.progress
        print(f"{plan.project.name} for AArch64, Python {python.version}", file=sys.stderr)
        with cache.work_folder(f"wheel-{plan.project.name}") as work:
            with self._verbosely(work):
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
                        floor=plan.baseline,
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
        return self._finish(path, python, compiler=built.compiler, report=report, proof=proof, why=why)

    def _smoke(self, repaired: RepairedWheel, work: Path) -> tuple[SmokeReport | None, str]:
        """Return the report, or None and why the wheel could not be run here."""
        from armbuild import smoke  # noqa: PLC0415
        from armbuild.errors import MissingError  # noqa: PLC0415

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
        compiler: str,
        report: AuditReport,
        proof: SmokeReport | None,
        why: str,
    ) -> dict[str, Any]:
        from armbuild.provenance import SUFFIX  # noqa: PLC0415

        verdict = "proven" if proof else "audited, not proven"
        size = path.stat().st_size
        lowest = self.plan.baseline or report.lowest_core
        lines = [
            f"{path}",
            f"  {size / 1e6:.2f} MB, {report.tag}, lowest core: {lowest}",
            f"  {verdict}: {why}" if why else f"  {verdict} on {', '.join(self.plan.cpus)}",
        ]
        print("\n".join(lines), file=sys.stderr)
        return {
            "ok": True,
            "path": str(path),
            "size": size,
            "tag": report.tag,
            "provenance": str(path) + SUFFIX if self.provenance else None,
            "reproducible": True if self.check_reproducible else None,
            "python": python.version,
            "headers": str(python.include or f"Debian's libpython{python.version}-dev"),
            "lane": self.plan.lane,
            "compiler": compiler,
            "kernels": list(report.kernel_targets),
            "baseline": self.plan.baseline,
            "lowest_core": lowest,
            "verdict": verdict,
            "not_proven_because": why or None,
            "seconds": self.progress.seconds,
            "audit": report.as_dict() | {"path": str(path)},
            "smoke": proof.as_dict() if proof else None,
        }

    @contextlib.contextmanager
    def _verbosely(self, work: Path) -> Iterator[None]:
        try:
            yield
        finally:
            if self.verbose:
                for log in sorted(work.glob("*.log")):
                    print(f"--- {log.name}\n{log.read_text(errors='replace')}", file=sys.stderr)


def _result_line(result: CpuResult) -> str:
    speed = f", {result.tokens_per_second:.1f} tokens/s" if result.tokens_per_second else ""
    said = f": {result.said}" if result.said else ""
    return f"{result.cpu}: {'passed' if result.passed else 'FAILED'}{speed}, {result.seconds:.1f} s{said}"


def _resolve_for(versions: list[str]) -> str | None:
    """Return the Python that a requirement is resolved for: the oldest of those asked for."""
    exact = [version for version in versions if re.fullmatch(r"3\.\d+", version)]
    return min(exact, key=lambda version: int(version[2:])) if exact else None


def _compiler_text(plan: Plan) -> str:
    if plan.toolchain == "zig":
        return f"zig cc for aarch64-linux-gnu.{plan.glibc}"
    return f"{plan.toolchain} for aarch64-linux-gnu, glibc and libstdc++ of an old Debian"


def _plan_text(plan: Plan) -> str:
    facts = plan.as_dict()
    rows = [
        ("project", f"{plan.project.name} {plan.project.version or ''} in {plan.project.folder}"),
        ("back end", plan.project.backend),
        (
            "lane",
            f"cross: {_compiler_text(plan)}" if plan.lane == "cross" else plan.lane,
        ),
        *((("kernels", ", ".join(plan.targets)),) if plan.targets else ()),
        ("baseline", plan.baseline or "armv8-a"),
        *((("with", ", ".join(plan.packages)),) if plan.packages else ()),
        *((("flags", " ".join(plan.flags)),) if plan.flags else ()),
        ("steps", " -> ".join(facts["steps"])),
        *((("smoke", ", ".join(plan.cpus)),) if plan.cpus else ()),
    ]
    for wheel in facts["wheels"]:
        rows += [
            (f"Python {wheel['python']}", f"{wheel['executable']} (headers: {wheel['headers']})"),
            ("wheel", f"{wheel['file']}{' (or a lower glibc)' if plan.glibc else ''}"),
        ]
    rows += [(f"Python {version}", f"cannot be had: {reason}") for version, reason in plan.missing]
    return "\n".join(f"{name:<12}{value}" for name, value in rows)
