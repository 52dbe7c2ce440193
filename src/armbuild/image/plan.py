"""Everything decided before an image is built: platforms, wheels, Python, base, names. Pure and fast."""

from __future__ import annotations

import calendar
import contextlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, Specifier

from armbuild.artifact import archives, wheelfile
from armbuild.errors import MissingError, UsageError
from armbuild.host import process, pythons
from armbuild.image import model, packages, reference, root
from armbuild.target import arm64_root
from armbuild.wheel import planning, provenance
from armbuild.wheel import project as wheel_project
from armbuild.wheel.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from armbuild.wheel.plan import Plan

BUILDERS = ("oci", "docker", "podman", "buildah")
ENTRY_POINT = "armbuild/image/entrypoint.py"


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """What `armbuild docker` is going to do; made by ``plan``, printed by ``--plan``, taken by ``build``."""

    architectures: tuple[str, ...]
    wheels: Mapping[str, Path]
    """Architecture -> the wheel given; what is missing is built from ``project``."""
    project: Plan | None
    """How the wheel for arm64 is built; None where one is given."""
    version: str
    python: str
    torch: str | None
    index: str | None
    model: Path | None
    base: str | None
    tag: str
    labels: Mapping[str, str]
    builder: str
    output: Path
    push: bool
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
            "tag": self.tag,
            "labels": dict(self.labels),
            "output": str(self.output),
            "push": self.push,
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


def plan(
    folder: Path,
    *,
    platform: str = "linux/arm64",
    wheels: Sequence[Path] = (),
    python: str | None = None,
    torch: str | None = None,
    index: str | None = None,
    with_model: Path | None = None,
    base: str | None = None,
    wheel_settings: Mapping[str, Any] = MappingProxyType({}),
    tag: str | None = None,
    labels: Sequence[str] = (),
    builder: str = "oci",
    output: Path | None = None,
    push: bool = False,
) -> ImagePlan:
    """Check every choice and return what will be done.

    ``wheel_settings`` are fields of Settings, for the wheel that is built from ``folder``. Raises UsageError
    for a choice that cannot be honoured, MissingError for what this machine lacks.
    """
    architectures = reference.check_platforms(platform)
    if builder not in BUILDERS:
        raise UsageError(f"--builder {builder}: there are {', '.join(BUILDERS)}")
    chosen = _by_architecture(wheels)
    if unused := sorted(chosen.keys() - set(architectures)):
        name = chosen[unused[0]].path.name
        raise UsageError(f"{name} is for linux/{unused[0]}, which --platform {platform} does not name")
    _check_builder(
        builder,
        architectures,
        wheels=bool(wheels),
        only_oci={"--base": base, "--with-model": with_model, "--torch-index DIR": _is_folder(index)},
    )
    if "amd64" in architectures and "amd64" not in chosen:
        raise UsageError(
            "--platform linux/amd64 needs a --wheel for x86-64: armbuild builds AArch64 wheels only"
        )
    if push and tag is None:
        raise UsageError("--push needs --tag, which says where to")
    version, suggested = _python(chosen, python, base)
    own: Plan | None = None
    if "arm64" in architectures and "arm64" not in chosen:
        asked = Settings(
            python=(suggested,), output=Path(tempfile.gettempdir()), smoke=False, **wheel_settings
        )
        own = planning.plan(asked, wheel_project.read(folder))
        if not own.project.is_armllm:
            raise UsageError(f"{folder}: an image holds the engine, armllm; this is {own.project.name}")
        version = own.project.version or "0"
        if own.label:
            version += f"+{own.label}"
    elif wheel_settings:
        name, value = next(iter(wheel_settings.items()))
        option = f"--no-{name}" if value is False else f"--{name}"
        raise UsageError(f"{option} says how to build the wheel, and --wheel brings one that is built")
    name = "_".join(architectures)
    path = (output or Path("dist") / f"armllm-{version}-{name}.tar").absolute()
    _check_output(path)
    return ImagePlan(
        architectures=architectures,
        wheels={architecture: wheel.path for architecture, wheel in chosen.items()},
        project=own,
        version=version,
        python=suggested,
        torch=_torch(torch),
        index=_index(index, suggested, architectures),
        model=model.check(with_model) if with_model else None,
        base=None if base is None else reference.check_base(base),
        tag=reference.full_name(
            reference.check_tag(f"armllm:{version.replace('+', '-')}" if tag is None else tag)
        ),
        labels=reference.check_labels(list(labels)),
        builder=builder,
        output=path,
        push=push,
        epoch=own.epoch if own else _newest(wheel.path for wheel in chosen.values()),
        revision=_revision(own.project.folder) if own else _told_revision(chosen.values()),
    )


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
    chosen: Mapping[str, wheelfile.WheelFile], asked: str | None, base: str | None
) -> tuple[str, str]:
    """Return the version of the wheel given ("" without one) and the Python of the image."""
    wheel = next(iter(chosen.values()), None)
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


def _check_builder(
    builder: str, architectures: tuple[str, ...], *, wheels: bool, only_oci: Mapping[str, object]
) -> None:
    if builder == "oci":
        return
    for option, value in {**only_oci, "--wheel": wheels}.items():
        if value:
            raise UsageError(
                f"{option} goes with --builder oci: {builder} builds docker/Dockerfile from the sources"
            )
    if len(architectures) > 1:
        raise UsageError(f"--builder {builder} builds one platform; --builder oci builds several")
    if shutil.which(builder) is None:
        raise MissingError(f"{builder} is not installed; --builder oci needs no container engine")


def _is_folder(index: str | None) -> bool:
    return index is not None and "://" not in index


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
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given and not given.isdigit():
        raise UsageError(f"SOURCE_DATE_EPOCH={given}: not a number of seconds")
    if given:
        return int(given)
    times = []
    for path in paths:
        with archives.open_zip(path) as archive:
            times += [calendar.timegm((*item.date_time, 0, 0, 0)) for item in archive.infolist()]
    return max(times)


def _told_revision(wheels: Iterable[wheelfile.WheelFile]) -> str | None:
    """The commit that all ``wheels`` were made of, as far as their provenance files say one."""
    told = {found for wheel in wheels if (found := provenance.revision(wheel.path))}
    return told.pop() if len(told) == 1 else None


def _revision(folder: Path) -> str | None:
    commit = process.succeeds(["git", "-C", folder, "rev-parse", "HEAD"])
    if not commit:
        return None
    changed = process.succeeds(
        ["git", "-C", folder, "--no-optional-locks", "status", "--porcelain", "--untracked-files=no"]
    )
    return f"{commit}-dirty" if changed else commit
