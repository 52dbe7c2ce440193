from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from armbuild.cli.options import AsJson, Baseline, Bf16, Dotprod, Fhm, I8mm, Mirror, PlanOnly, Sve, Verbose

if TYPE_CHECKING:
    from armbuild.wheel.container import Container
    from armbuild.wheel.plan import Plan


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
        typer.Option(
            "--toolchain",
            metavar="zig|gcc|clang",
            help="The cross lane's compiler, default: zig; clang in the container lane.",
        ),
    ] = None,
    compile_cache: Annotated[
        str | None,
        typer.Option(
            "--compile-cache",
            metavar="ccache|sccache|none",
            help="What keeps compiled objects; default: the first on PATH.",
        ),
    ] = None,
    glibc: Annotated[
        str | None,
        typer.Option(
            "--glibc", metavar="2.N", help="Refuse a wheel that needs a newer glibc; default: any is fine."
        ),
    ] = None,
    config_setting: Annotated[
        list[str] | None,
        typer.Option(
            "--config-settings", "-C", metavar="KEY=VALUE", help="Tell the build back end; may be repeated."
        ),
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
        str | None, typer.Option("--lane", metavar="cross|native|container", help="How to compile.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="docker|podman", help="What runs the container lane's container."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="NAME", help="The container lane's image; may be a local one."),
    ] = None,
    baseline: Baseline = None,
    variant: Annotated[
        bool,
        typer.Option(
            "--variant", help="Experimental: say --baseline in a wheel variant, not in the version."
        ),
    ] = False,
    bf16: Bf16 = None,
    dotprod: Dotprod = None,
    fhm: Fhm = None,
    i8mm: I8mm = None,
    sve: Sve = None,
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
    mirror: Mirror = None,
    plan_only: PlanOnly = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> int:
    """Build an AArch64 wheel, repair and audit it, and prove it with real inference."""
    from armbuild.host import process  # noqa: PLC0415

    process.interrupt_on_termination()
    from armbuild.cli.pipeline import Pipeline  # noqa: PLC0415
    from armbuild.host import pythons  # noqa: PLC0415
    from armbuild.target import debian  # noqa: PLC0415
    from armbuild.wheel import fetch, settings, smoke  # noqa: PLC0415
    from armbuild.wheel import plan as planning  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild.wheel.project import read as read_project  # noqa: PLC0415
    from armbuild.wheel.user_tests import UserTests  # noqa: PLC0415

    if no_smoke and (cpu or imports or command):
        raise typer.BadParameter("--cpu, --import and --command say how to smoke-test, --no-smoke not to")
    if mirror:
        debian.check_address(mirror)
    located = fetch.locate(project, python=_resolve_for(python or []), hashes=hashes or ())
    given = {
        "python": python,
        "lane": lane,
        "engine": engine,
        "image": image,
        "toolchain": toolchain,
        "compile_cache": compile_cache,
        "glibc": glibc,
        "config_settings": config_setting,
        "packages": packages,
        "baseline": baseline,
        "variant": variant or None,
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
        newest_glibc=told.glibc,
        config_settings=told.config_settings,
        packages=told.packages,
        isolation=told.isolation,
        lock=Path(told.lock) if told.lock else None,
        engine=told.engine,
        image=told.image,
        as_variant=told.variant,
        objects=told.compile_cache,
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
    run = Pipeline(
        chosen,
        mirror=mirror,
        verbose=verbose,
        provenance=told.provenance,
        check_reproducible=told.check_reproducible,
    )
    return run.all(as_json=as_json)


def _resolve_for(versions: list[str]) -> str | None:
    """Return the Python that a requirement is resolved for: the oldest of those asked for."""
    exact = [version.removesuffix("t") for version in versions if re.fullmatch(r"3\.\d+t?", version)]
    return min(exact, key=lambda version: int(version[2:])) if exact else None


def _compiler_text(plan: Plan) -> str:
    if plan.toolchain == "zig":
        return f"zig cc for aarch64-linux-gnu.{plan.glibc}"
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
    rows += [("kept", f"[tool.cibuildwheel] {key}") for key in container.kept]
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
        *((("glibc", f"{plan.newest_glibc} or older"),) if plan.newest_glibc else ()),
        *(
            (("settings", " ".join(f"{name}={value}" for name, value in plan.config_settings)),)
            if plan.config_settings
            else ()
        ),
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
