from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

from armbuild.cli.options import AsJson, Mirror, PlanOnly, Verbose, build_option, target_option
from armcli.groups import output_option

if TYPE_CHECKING:
    import typer

    from armbuild.image.archive import Written
    from armbuild.image.manylinux import BuildImage


def register(app: typer.Typer) -> None:
    """Add ``armbuild manylinux-image`` to the command line."""
    app.command("manylinux-image")(manylinux_image_command)


def manylinux_image_command(
    *,
    python: Annotated[
        list[str] | None,
        target_option(metavar="X.Y", help="A Python of the image; default: all. May be repeated."),
    ] = None,
    suite: Annotated[
        str | None,
        target_option(metavar="NAME", help="The Debian release of compiler and glibc; default: bullseye."),
    ] = None,
    packages: Annotated[
        list[str] | None,
        build_option("--with", metavar="DEB[,DEB]", help="Further Debian packages, such as zlib1g-dev."),
    ] = None,
    tag: Annotated[
        str | None, output_option("--tag", "-t", metavar="NAME", help="The name of the image.")
    ] = None,
    output: Annotated[
        Path | None, output_option("--output", "-o", metavar="FILE.tar", help="The OCI archive to write.")
    ] = None,
    load: Annotated[
        str | None,
        output_option(metavar="docker|podman", help="Load the image into this container engine."),
    ] = None,
    mirror: Mirror = None,
    plan_only: PlanOnly = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> int:
    """Make a build image for `armbuild wheel --lane container` from Debian packages, without a registry."""
    from armbuild.cli.progress import Progress, logs  # noqa: PLC0415
    from armbuild.host import cache  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild.image import manylinux  # noqa: PLC0415

    if load:
        manylinux.check_engine(load)
    image = manylinux.plan(
        suite=suite, python_versions=python or (), packages=packages or (), tag=tag, output=output
    )
    if plan_only:
        print(json.dumps(image.as_dict(), indent=2) if as_json else _plan_text(image))
        return 0
    progress = Progress()
    with cache.work_folder("manylinux") as work, logs(work, shown=verbose):
        written = manylinux.build(image, work, mirror=mirror, step=progress.step)
        if load:
            with progress.step("load", load):
                manylinux.load(image, load, work)
    if not Progress.quiet:
        print(_written_text(image, written), file=sys.stderr)
    if as_json:
        result = {**image.as_dict(), "ok": True, "size": written.size, "digest": written.digest}
        print(json.dumps({**result, "loaded": load, "seconds": progress.seconds}, indent=2))
    return 0


def _written_text(image: BuildImage, written: Written) -> str:
    return (
        f"{written.path}\n  {image.tag}, {written.size / 1e6:.1f} MB, glibc of {image.suite}: wheels are "
        f"{image.policy} or older\n  armbuild wheel --lane container --image {image.tag}"
    )


def _plan_text(image: BuildImage) -> str:
    facts = image.as_dict()
    rows = [
        ("platform", facts["platform"]),
        ("system", f"Debian {image.suite}, glibc {facts['glibc']}: {facts['policy']}"),
        ("packages", ", ".join(facts["packages"])),
        *((f"Python {version}", folder) for version, folder in facts["pythons"].items()),
        ("tag", image.tag),
        ("output", facts["output"]),
    ]
    return "\n".join(f"{name:<12}{value}" for name, value in rows)
