"""Building with docker, podman or buildah from docker/Dockerfile, and sending images to registries."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armbuild.errors import MissingError, UsageError
from armbuild.host import limits, process
from armbuild.image import config, reference, root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from armbuild.image.plan import ImagePlan

DOCKERFILE = "docker/Dockerfile"
# An OCI image has no place for a health check: podman and buildah leave it out without an option, and
# images are saved in docker's form too, as `save` does by default. buildah alone would make one layer of all.
BUILD_FORMATS = {
    "docker": (),
    "podman": ("--format", "docker"),
    "buildah": ("--format", "docker", "--layers", "--force-rm"),
}
FIRST_WITHOUT_BUILDKIT = 23
"""The docker client whose own builder is the old one again (docs.docker.com/engine/deprecated)."""


def check(plan: ImagePlan) -> None:
    """Raise MissingError when the engine does not run or what --push takes is not there."""
    if plan.builder == "oci":
        if plan.push and shutil.which("skopeo") is None:
            raise MissingError(
                "--push sends OCI archives with skopeo, which is not installed: apt-get install skopeo"
            )
        return
    if process.succeeds([plan.builder, "info"]) is None:
        raise MissingError(
            f"{plan.builder} is installed but does not answer (`{plan.builder} info`): start it,"
            " or use --builder oci"
        )
    if plan.builder == "docker" and not has_buildkit():
        raise MissingError(
            f"docker has no BuildKit here, without which it builds {DOCKERFILE} for no other machine: apt-get"
            " install docker-buildx (docker-buildx-plugin from Docker's own archive), or use --builder oci"
        )


def has_buildkit() -> bool:
    """Return whether `docker build` has it: inside before version 23, since then as a component."""
    if process.succeeds(["docker", "buildx", "version"]) is not None:
        return True
    found = re.search(r"version (\d+)\.", process.succeeds(["docker", "--version"]) or "")
    return found is not None and int(found[1]) < FIRST_WITHOUT_BUILDKIT


def build(plan: ImagePlan, work: Path) -> dict[str, Any]:
    """Build docker/Dockerfile for the plan's platform, and save the image; returns a JSON value."""
    project = plan.project
    if project is None:
        raise UsageError(f"--builder {plan.builder} builds from the sources")
    folder = project.project.folder
    if not (folder / DOCKERFILE).is_file():
        raise UsageError(f"{folder}: there is no {DOCKERFILE}")
    (architecture,) = plan.architectures
    labels = {**config.description(plan.version, config.stamp(plan.epoch), plan.revision), **plan.labels}
    command = [
        plan.builder, "build", *BUILD_FORMATS[plan.builder],
        "--file", str(folder / DOCKERFILE), "--tag", plan.tag,
        "--platform", f"linux/{architecture}",
        "--build-arg", f"PYTHON_VERSION={plan.python}",
        "--build-arg", f"BUILD_IMAGE=docker.io/library/python:{plan.python}-{root.suite_of(plan.python)}",
        "--build-arg", f"ARMBUILD_OPTIONS={' '.join(_options(plan))}",
        "--build-arg", f"SOURCE_DATE_EPOCH={plan.epoch}",
        # podman 4.3 doesn't set it by itself in a FROM line.
        "--build-arg", f"BUILDPLATFORM=linux/{reference.architecture_here()}",
        *(part for key, value in labels.items() for part in ("--label", f"{key}={value}")),
        *os.environ.get("ARMBUILD_ENGINE_OPTIONS", "").split(),
        str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    log = work / f"{plan.builder}.log"
    before = _working(plan.builder)
    try:
        process.run(command, log=log, what=f"{plan.builder} build", env=environment, limits=limits.ENGINE)
    except BaseException:
        if not _others_build():
            _remove(plan.builder, _working(plan.builder) - before)
        raise
    _save(plan, work, log)
    return {
        "schema": 1,
        "ok": True,
        "builder": plan.builder,
        "path": str(plan.output),
        "size": plan.output.stat().st_size,
        "tag": plan.tag,
    }


def _working(builder: str) -> set[str]:
    """Return the containers that podman's and buildah's builds work in, which an interrupt leaves there."""
    if builder == "docker":
        return set()
    if builder == "buildah":
        return set((process.succeeds(["buildah", "containers", "--quiet", "--notruncate"]) or "").split())
    listing = ["podman", "ps", "--all", "--quiet", "--no-trunc"]
    own = set((process.succeeds(listing) or "").split())
    return set((process.succeeds([*listing, "--external"]) or "").split()) - own


def _others_build() -> bool:
    """Return whether another podman or buildah uses the same store: its containers look like ours."""
    store = os.environ.get("CONTAINERS_STORAGE_CONF", "")
    deadline = time.monotonic() + 2
    while store in _stores_in_use():
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)  # ours, which were killed, are going
    return False


def _stores_in_use() -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name = (folder / "comm").read_text().strip()
            variables = (folder / "environ").read_text(errors="replace")  # which the dead have not
            if name in ("podman", "buildah") and variables:
                found = re.search(r"(?:^|\0)CONTAINERS_STORAGE_CONF=([^\0]*)", variables)
                yield found[1] if found else ""


def _remove(builder: str, containers: set[str]) -> None:
    if containers:
        force = ["--force"] if builder == "podman" else []
        process.succeeds([builder, "rm", *force, *sorted(containers)])


def _options(plan: ImagePlan) -> list[str]:
    """Return the options of `armbuild docker` that the Dockerfile's build stage passes on."""
    project = plan.project
    kernels = project.kernels if project else {}
    options = [f"--no-{name}" for name, on in kernels.items() if not on]
    if project and project.baseline:
        options += ["--baseline", project.baseline]
    for option, value in (("--torch", plan.torch), ("--torch-index", plan.index)):
        if value:
            options += [option, value]
    if plan.with_openvino:
        options.append("--with-openvino")
    return options


def _save(plan: ImagePlan, work: Path, log: Path) -> None:
    """Save the engine's image as the output archive, in one rename."""
    plan.output.parent.mkdir(parents=True, exist_ok=True)
    scratch = plan.output.with_name(f".{plan.output.name}-{work.name}")
    if plan.builder == "buildah":
        command = ["buildah", "push", plan.tag, f"docker-archive:{scratch}:{plan.tag}"]
    else:
        command = [plan.builder, "save", "--output", str(scratch), plan.tag]
    try:
        process.run(command, log=log, what=f"{plan.builder} save", limits=limits.ENGINE)
        scratch.replace(plan.output)
    finally:
        scratch.unlink(missing_ok=True)


def push(plan: ImagePlan, work: Path) -> None:
    """Send the image to the registry that its tag names; raises MissingError with the registry's reason."""
    log = work / "push.log"
    what = f"--push {plan.tag}"
    if plan.builder == "oci":
        archive = f"oci-archive:{plan.output}:{plan.tag}"
        copy("--all", archive, f"docker://{plan.tag}", log=log, what=what, most=limits.IMAGE)
    else:
        command = [plan.builder, "push", plan.tag]
        process.run(command, log=log, what=what, error=MissingError, limits=limits.ENGINE)


def copy(*arguments: str, log: Path, what: str, most: limits.Limits) -> None:
    """Run `skopeo copy` with ``arguments``; raises MissingError with its reason, in plain words."""
    try:  # --quiet: what it says last is then why it failed
        command = ["skopeo", "copy", "--quiet", *arguments]
        process.run(command, log=log, what=what, error=MissingError, limits=most)
    except MissingError as error:
        plain = re.sub(
            r'time="[^"]*" level=fatal msg="(.*?)"?$', r"\1", str(error), flags=re.MULTILINE
        ).replace('\\"', '"')
        raise MissingError(plain) from error
