"""Everything decided before an image is built: platforms, wheels, Python, base, names. Pure and fast."""

from __future__ import annotations

import calendar
import contextlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, Specifier

from armbuild.artifact import archives, wheelfile
from armbuild.errors import MissingError, UsageError
from armbuild.host import process, pythons
from armbuild.image import model, packages, reference, root
from armbuild.target import arm64_root
from armbuild.wheel import cpus, planning, provenance
from armbuild.wheel import project as wheel_project
from armbuild.wheel.settings import Settings, proof_required

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from armbuild.wheel.plan import Plan

BUILDERS = ("oci", "docker", "podman", "buildah")
ENTRY_POINT = "armbuild/image/entrypoint.py"


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """What `armbuild docker` is going to do; ``plan_image`` makes it, ``--plan`` prints it."""

    architectures: tuple[str, ...]
    wheels: Mapping[str, Path]
    """Architecture -> wheel; what is missing is built from ``project``."""
    project: Plan | None
    """How the wheel for arm64 is built; None where there is one."""
    version: str
    python: str
    torch: str | None
    index: str | None
    model: Path | None
    with_openvino: bool
    base: str | None
    tag: str
    labels: Mapping[str, str]
    builder: str
    output: Path
    push: bool
    cpus: tuple[str, ...]
    """What the image is served on before it reaches ``output``; empty: it is not run."""
    epoch: int
    revision: str | None
    """The source's commit, with ``-dirty`` behind it when files differ; None where nobody knows."""

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON value."""
        return {
            "schema": 1,
            "platforms": [f"linux/{name}" for name in self.architectures],
            "builder": self.builder,
            "wheels": {f"linux/{name}": str(path) for name, path in self.wheels.items()},
            "project": self.project.as_dict()["project"] if self.project else None,
            "kernels": list(self.project.targets) if self.project else None,
            "baseline": self.project.baseline if self.project else None,
            "version": self.version,
            "python": self.python,
            "torch": self.torch,
            "torch_index": self.index,
            "base": self.base or f"Debian {root.suite_of(self.python)} packages",
            "model": str(self.model) if self.model else None,
            "openvino": self.with_openvino,
            "tag": self.tag,
            "labels": dict(self.labels),
            "output": str(self.output),
            "push": self.push,
            "cpus": list(self.cpus),
            "source_date_epoch": self.epoch,
            "revision": self.revision,
            "layers": [
                "base" if self.base else "root",
                "torch",
                "dependencies",
                "engine",
                *(["model"] if self.model else []),
            ],
        }


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """What a user asks of `armbuild docker`; ``plan_image`` checks it."""

    platform: str = "linux/arm64"
    wheels: Sequence[Path] = ()
    python: str | None = None
    torch: str | None = None
    index: str | None = None
    """A further index of packages, or a folder of wheels."""
    with_model: Path | None = None
    with_openvino: bool = False
    base: str | None = None
    wheel_settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Settings, for the wheel that is built."""
    tag: str | None = None
    labels: Sequence[str] = ()
    builder: str = "oci"
    output: Path | None = None
    push: bool = False
    cpus: Sequence[str] = ()
    """What to serve from the image on; empty: this machine, or emulated cores."""
    require_proof: bool | None = None
    """Whether the image must be served from; None: where ``cpus`` has a name or CI is set."""


def plan_image(folder: Path, settings: ImageSettings) -> ImagePlan:
    """Check every setting and return what will be done; without wheels, one is built from ``folder``.

    Raises UsageError for a setting that is not supported, MissingError for what this machine lacks.
    """
    architectures = reference.check_platforms(settings.platform)
    wheels = _by_architecture(settings.wheels)
    _check_together(settings, architectures, wheels)
    cores = _cores(settings, architectures)
    version, python = _python(wheels, settings.python, settings.base)
    own: Plan | None = None
    if "arm64" in architectures and "arm64" not in wheels:
        own, version = _own_wheel(folder, python, settings.wheel_settings)
    elif settings.wheel_settings:
        name, value = next(iter(settings.wheel_settings.items()))
        option = f"--no-{name}" if value is False else f"--{name}"
        raise UsageError(f"{option} says how to build the wheel, and --wheel brings one that is built")
    name = "_".join(architectures)
    path = (settings.output or Path("dist") / f"armllm-{version}-{name}.tar").absolute()
    _check_output(path)
    tag = f"armllm:{version.replace('+', '-')}" if settings.tag is None else settings.tag
    return ImagePlan(
        architectures=architectures,
        wheels={architecture: wheel.path for architecture, wheel in wheels.items()},
        project=own,
        version=version,
        python=python,
        torch=_torch(settings.torch),
        index=_index(settings.index, python, architectures),
        model=model.check(settings.with_model) if settings.with_model else None,
        with_openvino=settings.with_openvino,
        base=None if settings.base is None else reference.check_base(settings.base),
        tag=reference.full_name(reference.check_tag(tag)),
        labels=reference.check_labels(list(settings.labels)),
        builder=settings.builder,
        output=path,
        push=settings.push,
        cpus=cores,
        epoch=own.epoch if own else _newest(wheel.path for wheel in wheels.values()),
        revision=_revision(own.project.folder) if own else _common_revision(wheels.values()),
    )


def _check_together(
    settings: ImageSettings, architectures: tuple[str, ...], wheels: Mapping[str, wheelfile.WheelFile]
) -> None:
    """Raise UsageError for settings that contradict one another."""
    if settings.builder not in BUILDERS:
        raise UsageError(f"--builder {settings.builder}: there are {', '.join(BUILDERS)}")
    if unused := sorted(wheels.keys() - set(architectures)):
        name = wheels[unused[0]].path.name
        raise UsageError(
            f"{name} is for linux/{unused[0]}, which --platform {settings.platform} does not name"
        )
    _check_builder(settings, architectures)
    if "amd64" in architectures and "amd64" not in wheels:
        raise UsageError(
            "--platform linux/amd64 needs a --wheel for x86-64: armbuild builds AArch64 wheels only"
        )
    if settings.push and settings.tag is None:
        raise UsageError("--push needs --tag, which says where to")


def _cores(settings: ImageSettings, architectures: tuple[str, ...]) -> tuple[str, ...]:
    """Return the CPUs that the image is tested on before it is finished; empty if it is not tested."""
    if settings.cpus and settings.require_proof is False:
        raise UsageError("--cpu says where to run the image, --no-require-proof that it is not run")
    if not settings.cpus and not proof_required(settings.require_proof):
        return ()
    if "arm64" not in architectures:
        raise UsageError(
            f"--platform {settings.platform}: only linux/arm64 can be tested; --no-require-proof builds it"
        )
    cores = tuple(dict.fromkeys(settings.cpus)) or cpus.default_cpus()
    cpus.check_names(cores)
    return cores


def _own_wheel(folder: Path, python: str, wheel_settings: Mapping[str, Any]) -> tuple[Plan, str]:
    """Return how the engine's wheel is built from ``folder``, and its version."""
    asked = Settings(python=(python,), output=Path(tempfile.gettempdir()), smoke=False, **wheel_settings)
    plan = planning.plan(asked, wheel_project.read(folder))
    if not plan.project.is_armllm:
        raise UsageError(f"{folder}: an image holds the engine, armllm; this is {plan.project.name}")
    version = plan.project.version or "0"
    return plan, f"{version}+{plan.label}" if plan.label else version


def _by_architecture(paths: Sequence[Path]) -> dict[str, wheelfile.WheelFile]:
    found: dict[str, wheelfile.WheelFile] = {}
    for path in paths:
        wheel = wheelfile.read(path)
        machines = {machine for _, machine in wheelfile.machine_code(path)}
        if wheel.name != "armllm" or wheel.variant:
            what = "a wheel variant: build it without --variant" if wheel.variant else wheel.name
            raise UsageError(f"{path.name}: an image holds the engine, armllm; this is {what}")
        architecture = next(
            (name for name, machine in reference.MACHINES.items() if machines == {machine}), None
        )
        if architecture is None:
            held = ", ".join(sorted(machines)) or "no machine"
            raise UsageError(f"{path.name}: it holds {held} code, not AArch64's or x86-64's")
        if architecture == "arm64" and (wrong := wheelfile.mismatches(wheel)):
            raise UsageError(f"{path.name} is for another machine or misnamed: {wrong[0]}")
        if architecture == "amd64" and not all(tag.endswith("_x86_64") for tag in wheel.platforms):
            raise UsageError(f"{path.name} is misnamed: its code is x86-64's")
        if architecture in found:
            raise UsageError(f"{path.name}: there is a second wheel for linux/{architecture}")
        if wheel.python is None:
            raise UsageError(f"{path.name}: not a wheel of one CPython version")
        with archives.open_zip(path) as archive:
            if ENTRY_POINT not in archive.namelist():
                raise UsageError(f"{path.name}: too old for an image: it has no {ENTRY_POINT}")
        found[architecture] = wheel
    if len({(wheel.version.partition("+")[0], wheel.python) for wheel in found.values()}) > 1:
        raise UsageError("the wheels of a multi-platform image must be of one version and one Python")
    return found


def _python(
    wheels: Mapping[str, wheelfile.WheelFile], asked: str | None, base: str | None
) -> tuple[str, str]:
    """Return the version of the wheels ("" without one) and the Python of the image."""
    wheel = next(iter(wheels.values()), None)
    if wheel is not None and wheel.python is not None:
        if asked not in (None, wheel.python):
            raise UsageError(f"--python {asked}: {wheel.path.name} is for Python {wheel.python}")
        python, version = wheel.python, wheel.version
    else:
        python, version = asked or _preferred(), ""
    if base is None:
        root.suite_of(python)
    return version, python


def _preferred() -> str:
    """Return a Python that Debian has and that can build here: the running one if it is such."""
    known = [version for version in arm64_root.SUITES if version in pythons.SUPPORTED]
    running = pythons.find().version
    if running in known:
        return running
    for version in reversed(known):
        with contextlib.suppress(MissingError):
            return pythons.find(version).version
    raise MissingError(
        f"the image's Python must be one that Debian has ({', '.join(known)}), and this machine has none of"
        f" them to build the wheel with: `uv python install {known[-1]}` brings one"
    )


def _check_builder(settings: ImageSettings, architectures: tuple[str, ...]) -> None:
    builder = settings.builder
    if builder == "oci":
        return
    only_oci = {
        "--base": settings.base,
        "--with-model": settings.with_model,
        "--torch-index DIR": settings.index is not None and "://" not in settings.index,
        "--wheel": settings.wheels,
    }
    for option, value in only_oci.items():
        if value:
            raise UsageError(
                f"{option} goes with --builder oci: {builder} builds docker/Dockerfile from the sources"
            )
    if len(architectures) > 1:
        raise UsageError(f"--builder {builder} builds one platform; --builder oci builds several")
    if shutil.which(builder) is None:
        raise MissingError(f"{builder} is not installed; --builder oci needs no container engine")


def _torch(version: str | None) -> str | None:
    if version is not None:
        try:
            Specifier(f"=={version}")
        except InvalidSpecifier as error:
            raise UsageError(f"--torch {version}: not a version, such as 2.10.0") from error
    return version


def _index(text: str | None, python: str, architectures: Sequence[str]) -> str | None:
    if text is None or re.match(r"https?://", text):
        return text
    folder = Path(text)
    if not (text and folder.is_dir()):
        raise UsageError(f"--torch-index {text}: neither an address (https://...) nor a folder")
    if not any(packages.in_folder(folder, python, name) for name in architectures):
        platforms = " or ".join(f"linux/{name}" for name in architectures)
        raise UsageError(
            f"--torch-index {text}: no wheel of torch for {platforms} and Python {python} is in this folder"
        )
    return str(folder.absolute())


def _check_output(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"--output {path}: a folder; name a file, such as armllm.tar")
    if path.exists() and not path.is_file():  # a rename would put the archive in a device's place
        raise UsageError(f"--output {path}: there is something that is no file: name another")
    planning.check_writable(path.parent, f"--output {path}")


def _newest(paths: Iterable[Path]) -> int:
    """Return SOURCE_DATE_EPOCH, else when the newest file inside the wheels was made."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch and not epoch.isdigit():
        raise UsageError(f"SOURCE_DATE_EPOCH={epoch}: not a number of seconds")
    if epoch:
        return int(epoch)
    times = []
    for path in paths:
        with archives.open_zip(path) as archive:
            times += [calendar.timegm((*item.date_time, 0, 0, 0)) for item in archive.infolist()]
    return max(times)


def _common_revision(wheels: Iterable[wheelfile.WheelFile]) -> str | None:
    """The commit that all ``wheels`` were made of, as far as their provenance files say one."""
    revisions = {found for wheel in wheels if (found := provenance.revision(wheel.path))}
    return revisions.pop() if len(revisions) == 1 else None


def _revision(folder: Path) -> str | None:
    commit = process.succeeds(["git", "-C", folder, "rev-parse", "HEAD"])
    if not commit:
        return None
    changed = process.succeeds(
        ["git", "-C", folder, "--no-optional-locks", "status", "--porcelain", "--untracked-files=no"]
    )
    return f"{commit}-dirty" if changed else commit
