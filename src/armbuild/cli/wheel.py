from __future__ import annotations

import functools
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from armbuild.cli.options import (
    AsJson,
    Mirror,
    Options,
    PlanOnly,
    Verbose,
    build_option,
    colored,
    with_settings,
)
from armbuild.cli.progress import Progress, logs

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from armbuild.host.pythons import HostPython
    from armbuild.wheel.lanes.cibuildwheel import Container
    from armbuild.wheel.pipeline import Finished, Result
    from armbuild.wheel.plan import Plan
    from armbuild.wheel.verdict import CpuResult


def register(app: typer.Typer) -> None:
    """Add ``armbuild wheel`` to the command line."""
    app.command("wheel")(wheel_command)


@with_settings()
def wheel_command(
    project: Annotated[
        str,
        typer.Argument(
            metavar="PROJECT",
            help="A project's folder, an sdist file, or a requirement such as 'lz4>=4.4'.",
        ),
    ] = ".",
    *,
    options: Options,
    hashes: Annotated[
        list[str] | None,
        build_option(
            "--hash", metavar="sha256:HEX", help="A hash that the sdist must have. May be repeated."
        ),
    ] = None,
    mirror: Mirror = None,
    plan_only: PlanOnly = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> int:
    """Build an AArch64 wheel, repair and audit it, and test it with real inference."""
    if options["smoke"] is False and (options["cpu"] or options["imports"] or options["command"]):
        raise typer.BadParameter("--cpu, --import and --command say how to smoke-test, --no-smoke not to")
    plan = _plan(project, options, hashes or (), None if plan_only else mirror, obtain=not plan_only)
    if options["cpu"] and not plan.cpus:
        raise typer.BadParameter(
            f"--cpu: {plan.project.name} has no test: add --import NAME or --command TEXT"
        )
    if plan_only:
        print(json.dumps(plan.as_dict(), indent=2) if as_json else _plan_text(plan))
        return 0
    return build_and_report(plan, mirror=mirror, verbose=verbose, as_json=as_json)


def _plan(
    text: str,
    options: Options,
    hashes: tuple[str, ...] | list[str],
    mirror: str | None,
    *,
    obtain: bool,
) -> Plan:
    """Return the plan for the project that ``text`` names; ``obtain``: missing interpreters are fetched."""
    from armbuild.host import pythons  # noqa: PLC0415
    from armbuild.wheel import fetch, planning, project, settings  # noqa: PLC0415

    located = fetch.locate(text, python=_resolve_for(options["python"] or []), hashes=hashes)
    if located.origin and re.fullmatch(r"[\w.-]+", text) and not Path(text).exists() and not Progress.quiet:
        # who meant a folder sees it before a stranger's code runs
        name = located.origin.uri.rpartition("/")[2]
        print(f"{text}: no such folder or file here; the package index has {name}", file=sys.stderr)
    described = project.read(located.folder, located.origin)
    table = described.tool.get("armbuild", {})
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    asked = settings.load(values, table, os.environ, where=located.folder / "pyproject.toml")
    find = functools.partial(pythons.obtain, mirror=mirror) if obtain else pythons.find
    return planning.plan(asked, described, find=find)


def build_and_report(plan: Plan, *, mirror: str | None, verbose: bool, as_json: bool) -> int:
    """Build every wheel of the plan, say how far it is, and return the status of the first failure."""
    from armbuild.host import cache  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild.wheel import pipeline  # noqa: PLC0415

    console = Console(verbose=verbose)
    results: list[Result] = []
    for result in pipeline.run(plan, console, mirror=mirror):
        results.append(result)
        console.show(result)
    cache.remove_unused()
    status = next((result.status for result in results if not result.ok), 0)
    if as_json:
        wheels = [result.as_dict() for result in results]
        print(json.dumps({"schema": 1, "ok": not status, "wheels": wheels}, indent=2))
    return status


class Console(Progress):
    """What a person sees on stderr; an observer of the pipeline."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__()
        self.verbose = verbose

    def begin(self, plan: Plan, python: HostPython) -> None:
        """Print the heading of a wheel."""
        self.seconds = {}
        if not self.quiet:
            print(f"{plan.project.name} for AArch64, Python {python.version}", file=sys.stderr)

    def logs(self, work: Path) -> AbstractContextManager[None]:
        """Show the tools' logs in the end, where --verbose asks for them."""
        return logs(work, shown=self.verbose)

    def result(self, result: CpuResult) -> None:
        """Print what the smoke test found on one CPU."""
        speed = f", {result.tokens_per_second:.1f} tokens/s" if result.tokens_per_second else ""
        last = f": {result.said}" if result.said else ""
        verdict = "passed" if result.passed else "FAILED"
        self.note(f"{'':<19}{result.cpu}: {verdict}{speed}, {result.seconds:.1f} s{last}")

    def show(self, result: Result) -> None:
        """Print how a Python ended."""
        from armbuild.wheel import pipeline  # noqa: PLC0415

        match result:
            case pipeline.Finished() if not self.quiet:
                print(colored("\n".join(summary(result)), sys.stderr), file=sys.stderr)
            case pipeline.Shared():
                self.note(f"Python {result.python}: {result.path.name} serves it too")
            case pipeline.Failed():
                print(f"armbuild: error: Python {result.python}: {result.error}", file=sys.stderr)


def summary(result: Finished) -> list[str]:
    """Return the lines that sum up a finished wheel."""
    code = f"lowest core: {result.lowest_core}" if result.lowest_core else "no machine code"
    reason = result.not_proven_because
    lines = [f"{result.path}", f"  {result.size / 1e6:.2f} MB, {result.report.tag}, {code}"]
    if result.built.cached and any(result.built.cached.values()):
        counts = ", ".join(f"{count} {part}" for part, count in result.built.cached.items())
        lines.append(f"  compile cache: {counts}")
    where = f": {reason}" if reason else f" on {', '.join(result.built.plan.cpus)}"
    return [*lines, f"  {result.verdict}{where}"]


def _resolve_for(versions: list[str]) -> str | None:
    """Return the Python that a requirement is resolved for: the oldest of the settings."""
    exact = [version.removesuffix("t") for version in versions if re.fullmatch(r"3\.\d+t?", version)]
    return min(exact, key=lambda version: int(version[2:])) if exact else None


def _compiler_text(plan: Plan) -> str:
    if plan.toolchain == "zig":
        return f"zig cc for {plan.target}"
    return f"{plan.toolchain} for aarch64-linux-gnu, glibc and libstdc++ of an old Debian"


def _container_rows(plan: Plan, container: Container) -> list[tuple[str, str]]:
    facts = container.as_dict([python.version for python in plan.pythons])
    rows = [
        ("engine", container.engine),
        ("image", container.reference),
        ("command", " ".join(facts["command"])),
        ("variable", f"CIBW_BUILD={' or '.join(facts['build'])}"),
    ]
    rows += [("variable", f"{name}={value}") for name, value in container.variables.items()]
    rows += [("kept", f"[tool.cibuildwheel] {key}") for key in container.unchanged]
    rows += [
        ("overridden", f"[tool.cibuildwheel] {key}: {instead}")
        for key, instead in container.overridden.items()
    ]
    return rows


def _plan_text(plan: Plan) -> str:
    facts = plan.as_dict()
    rows = [
        ("project", f"{plan.project.name} {plan.project.version or ''} in {plan.project.folder}"),
        ("back end", plan.project.backend),
        (
            "lane",
            f"cross: {_compiler_text(plan)}" if plan.lane == "cross" else plan.lane,
        ),
        *(_container_rows(plan, plan.container) if plan.container else ()),
        *((("kernels", ", ".join(plan.targets)),) if plan.targets else ()),
        ("baseline", plan.baseline or "armv8-a"),
        *((("variant", f"{plan.variant} (experimental: PEP 825 is a draft)"),) if plan.variant else ()),
        *((("cached by", plan.compile_cache.name),) if plan.compile_cache else ()),
        *((("glibc", f"{plan.settings.glibc} or older"),) if plan.settings.glibc else ()),
        *(
            (("settings", " ".join(f"{name}={value}" for name, value in plan.config_settings)),)
            if plan.config_settings
            else ()
        ),
        *((("with", ", ".join(plan.packages)),) if plan.packages else ()),
        *(("variable", f"{name}={value}") for name, value in plan.variables),
        *(("requires", requirement) for requirement in plan.settings.build_requires),
        *(("patch", str(item.path)) for item in plan.patches),
        *(("source", f"{item.name}: {item.path}") for item in plan.sources),
        *((("flags", " ".join(plan.flags)),) if plan.flags else ()),
        ("steps", " -> ".join(facts["steps"])),
        *((("smoke", ", ".join(plan.cpus)),) if plan.cpus else ()),
    ]
    for wheel in facts["wheels"]:
        rows += [
            (f"Python {wheel['python']}", f"{wheel['executable']} (headers: {wheel['headers']})"),
            ("wheel", f"{wheel['file']}{' (or a lower glibc)' if plan.glibc else ''}"),
        ]
    rows += [(f"Python {version}", f"not available: {reason}") for version, reason in plan.missing]
    return "\n".join(f"{name:<12}{value}" for name, value in rows)
