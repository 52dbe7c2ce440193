from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armbuild.cli.options import (
    AsJson,
    Mirror,
    Options,
    PlanOnly,
    Verbose,
    build_option,
    target_option,
    with_settings,
)
from armbuild.wheel.settings import KERNELS
from armcli.groups import output_option

if TYPE_CHECKING:
    from armbuild.cli.progress import Progress
    from armbuild.image.build import Built
    from armbuild.image.plan import ImagePlan


def register(app: typer.Typer) -> None:
    """Add ``armbuild docker`` to the command line."""
    app.command("docker")(docker_command)


@with_settings("baseline", *KERNELS, "cpu", "require_proof")
def docker_command(
    project: Annotated[
        Path, typer.Argument(metavar="PROJECT", help="The engine's source folder, if there is no --wheel.")
    ] = Path(),
    *,
    platform: Annotated[
        str,
        target_option(
            "--platform",
            metavar="OS/ARCH,...",
            help="The platforms of the image: linux/arm64, linux/amd64, or both.",
        ),
    ] = "linux/arm64",
    wheel: Annotated[
        list[Path] | None,
        build_option(
            "--wheel", metavar="FILE", help="A wheel of armllm instead of the sources; one for each platform."
        ),
    ] = None,
    python: Annotated[
        str | None,
        target_option(
            "--python", metavar="X.Y", help="The image's Python: one of a Debian release, or that of --base."
        ),
    ] = None,
    torch: Annotated[
        str | None,
        build_option(
            "--torch", metavar="VERSION", help="The version of torch; default: what the wheel requires."
        ),
    ] = None,
    torch_index: Annotated[
        str | None,
        build_option(
            "--torch-index",
            metavar="URL|DIR",
            help="A further package index, or a folder, with CPU builds of torch.",
        ),
    ] = None,
    with_model: Annotated[
        Path | None, build_option("--with-model", metavar="DIR", help="A checkpoint to put into the image.")
    ] = None,
    with_openvino: Annotated[
        bool, build_option("--with-openvino", help="Add OpenVINO, for `--backend openvino`.")
    ] = False,
    base: Annotated[
        str | None,
        build_option(
            "--base",
            metavar="IMAGE",
            help="The image to build on: an archive, an OCI layout or an image of a registry.",
        ),
    ] = None,
    options: Options,
    tag: Annotated[
        str | None, output_option("--tag", "-t", metavar="NAME", help="The name of the image.")
    ] = None,
    label: Annotated[
        list[str] | None,
        output_option("--label", metavar="KEY=VALUE", help="A label of the image. May be repeated."),
    ] = None,
    builder: Annotated[
        str,
        build_option(
            "--builder",
            metavar="oci|docker|podman|buildah",
            help="What builds the image; oci needs no container engine.",
        ),
    ] = "oci",
    output: Annotated[
        Path | None, output_option("--output", "-o", metavar="FILE.tar", help="The OCI archive to write.")
    ] = None,
    push: Annotated[bool, output_option("--push", help="Push the image to the registry in --tag.")] = False,
    mirror: Mirror = None,
    plan_only: PlanOnly = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> int:
    """Build a container image of the engine, without emulation, daemon or root rights."""
    from armbuild.cli.progress import Progress, logs  # noqa: PLC0415
    from armbuild.host import cache  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild.image import engines  # noqa: PLC0415
    from armbuild.image import plan as planning  # noqa: PLC0415

    if mirror and builder != "oci":
        raise typer.BadParameter(
            f"--mirror goes with --builder oci; {builder} uses its build image's archive"
        )
    settings = planning.ImageSettings(
        platform=platform,
        wheels=wheel or (),
        python=python,
        torch=torch,
        index=torch_index,
        with_model=with_model,
        with_openvino=with_openvino,
        base=base,
        wheel_settings={
            name: value
            for name, value in options.items()
            if value is not None and name not in ("cpu", "require_proof")
        },
        cpus=options["cpu"] or (),
        require_proof=options["require_proof"],
        tag=tag,
        labels=label or (),
        builder=builder,
        output=output,
        push=push,
    )
    image = planning.plan_image(project, settings)
    if plan_only:
        print(json.dumps(image.as_dict(), indent=2) if as_json else _plan_text(image))
        return 0
    engines.check(image)
    progress = Progress()
    with cache.work_folder("image") as work, logs(work, shown=verbose):
        result = _build(image, work, progress, mirror)
        if push:
            with progress.step("push", image.tag):
                engines.push(image, work)
    cache.remove_unused()
    if as_json:
        print(json.dumps({**result, "pushed": push, "seconds": progress.seconds}, indent=2))
    return 0


def _build(image: ImagePlan, work: Path, progress: Progress, mirror: str | None) -> dict[str, Any]:
    """Build the image, serve from it where the plan says so, and return what was built as a JSON value."""
    from armbuild.host import outputs  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild.image import engines, smoke  # noqa: PLC0415
    from armbuild.image.build import build_image  # noqa: PLC0415
    from armbuild.wheel import provenance  # noqa: PLC0415

    draft = replace(image, output=work / "unproven" / image.output.name) if image.cpus else image
    files = [draft.output]
    built = None
    if image.builder == "oci":
        built = build_image(draft, work, mirror=mirror, step=progress.step, note=progress.note)
        files.append(draft.output.with_name(f"{draft.output.name}{provenance.SUFFIX}"))
    else:
        with progress.step(image.builder, "docker/Dockerfile"):
            result = engines.build(draft, work)
    runs = None
    if image.cpus:
        with progress.step("smoke", ", ".join(image.cpus)):
            report = smoke.prove(draft.output, image.cpus, work, mirror=mirror, on_step=progress.note)
        outputs.move_all_into(files, image.output.parent)
        runs = report.as_dict()["results"]
    result = _report(built, image) if built else {**result, "path": str(image.output)}
    return {**result, "smoke": runs}


def _report(built: Built, plan: ImagePlan) -> dict[str, Any]:
    """Say on stderr what was built, and return it as a JSON value."""
    from armbuild.cli.progress import Progress  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild.wheel import provenance  # noqa: PLC0415

    lines = [str(plan.output)]
    platforms = {}
    for name, platform in built.platforms.items():
        facts = platform.facts
        size = built.compressed[name]
        layers = f"{len(platform.image.layers)} layers"
        lines += [
            f"  linux/{name}: {size / 1e6:.1f} MB compressed, {layers}, torch {facts['torch']}",
            f"    kernels: {', '.join(facts['kernels'])}; lowest core: {facts['floor']['lowest_core']}",
        ]
        platforms[f"linux/{name}"] = {
            "digest": built.archive.manifests[name],
            "compressed": size,
            "layers": [
                {
                    "comment": layer.comment,
                    "digest": layer.digest,
                    "size": layer.size,
                    "unpacked": layer.unpacked,
                }
                for layer in platform.image.layers
            ],
            "packages": len(platform.content.components),
            **{key: value for key, value in facts.items() if key != "schema"},
            "labels": dict(platform.image.annotations),
        }
    lines.append(f"  proven on {', '.join(plan.cpus)}" if plan.cpus else "  audited, not proven: not run")
    lines.append(f"  {plan.tag}; load it with: docker load -i FILE, podman load -i FILE")
    if not Progress.quiet:
        print("\n".join(lines), file=sys.stderr)
    return {
        "schema": 1,
        "ok": True,
        "builder": plan.builder,
        "path": str(plan.output),
        "provenance": f"{plan.output}{provenance.SUFFIX}",
        "size": built.archive.size,
        "tag": plan.tag,
        "digest": built.archive.digest,
        "platforms": platforms,
    }


def _plan_text(plan: ImagePlan) -> str:
    facts = plan.as_dict()
    source = (
        f"{plan.project.project.name} {plan.version} in {plan.project.project.folder}"
        if plan.project
        else "given"
    )
    rows = [
        ("platforms", ", ".join(facts["platforms"])),
        ("builder", plan.builder),
        ("wheel", ", ".join(path.name for path in plan.wheels.values()) or f"built from {source}"),
        *(
            (("kernels", ", ".join(facts["kernels"])), ("baseline", facts["baseline"] or "armv8-a"))
            if plan.project
            else ()
        ),
        ("base", facts["base"]),
        ("Python", plan.python),
        ("torch", plan.torch or "as the wheel asks"),
        *((("index", plan.index),) if plan.index else ()),
        *((("model", facts["model"]),) if plan.model else ()),
        *((("OpenVINO", "for --backend openvino"),) if plan.with_openvino else ()),
        ("layers", " -> ".join(facts["layers"])),
        ("tag", plan.tag),
        *((("smoke", ", ".join(plan.cpus)),) if plan.cpus else ()),
        ("output", facts["output"] + (", then pushed" if plan.push else "")),
    ]
    return "\n".join(f"{name:<12}{value}" for name, value in rows)
