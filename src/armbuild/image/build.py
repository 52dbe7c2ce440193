"""An image from a plan: cached layers, the audit of their content, one archive."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from packaging.version import Version

from armbuild import audit
from armbuild.artifact import archives, wheelfile
from armbuild.errors import CheckFailed, UsageError
from armbuild.host import outputs, process, pythons
from armbuild.image import (
    archive,
    base,
    config,
    content,
    layer_cache,
    layers,
    model,
    packages,
    provenance,
    recipes,
    root,
    side_by_side,
)
from armbuild.image.reference import MACHINES
from armbuild.target import debian
from armbuild.wheel import build as wheel_build
from armbuild.wheel import repair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from armbuild.audit import AuditReport
    from armbuild.image.plan import ImagePlan
    from armbuild.image.recipes import Recipe


class Step(Protocol):
    """Shows a step to a person while it runs."""

    def __call__(self, name: str, detail: str = "", /) -> AbstractContextManager[None]: ...


def _silent(_name: str, _detail: str = "", /) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What was built for one architecture."""

    image: archive.Image
    content: content.Content
    facts: Mapping[str, Any]
    pins: packages.Pins


@dataclass(frozen=True, kw_only=True)
class Built:
    """An image that was written."""

    archive: archive.Written
    platforms: Mapping[str, Platform]

    @property
    def compressed(self) -> dict[str, int]:
        """Return what a registry holds for each architecture, in bytes."""
        return {
            name: sum(layer.size for layer in platform.image.layers)
            for name, platform in self.platforms.items()
        }


def build_image(
    plan: ImagePlan,
    work: Path,
    *,
    mirror: str | None = None,
    step: Step = _silent,
    note: Callable[[str], None] = lambda _text: None,
) -> Built:
    """Build every platform of ``plan`` and write the archive; it appears whole or not at all.

    Raises CheckFailed when the wheel's audit fails, MissingError when packages are missing, UsageError
    for a base or a torch that does not fit.
    """
    platforms, wheels = {}, {}
    for architecture in plan.architectures:
        wheels[architecture] = wheel = plan.wheels.get(architecture) or _build_wheel(
            plan, work, mirror=mirror, step=step
        )
        maker = _Maker(plan, architecture, wheel, work, mirror=mirror, step=step, note=note)
        platforms[architecture] = maker.platform()
    with step("write", str(plan.output)):
        plan.output.parent.mkdir(parents=True, exist_ok=True)
        written = archive.write(
            [platforms[name].image for name in plan.architectures], plan.output, name=plan.tag
        )
        built = Built(archive=written, platforms=platforms)
        try:
            outputs.move_into(provenance.write(built, plan, wheels, work), plan.output.parent)
        except BaseException:
            plan.output.unlink()  # both or none
            raise
    return built


def _build_wheel(plan: ImagePlan, work: Path, *, mirror: str | None, step: Step) -> Path:
    if plan.project is None:
        raise UsageError("there is no wheel and no project to build one from")
    (python,) = plan.project.pythons
    built = wheel_build.build_wheel(
        plan.project, python, work, mirror=mirror, watcher=wheel_build.Steps(step)
    )
    with step("repair", "auditwheel, RECORD, version"):
        return repair.repair_wheel(built, work).path


class _Maker:
    """The layers of one architecture."""

    def __init__(
        self,
        plan: ImagePlan,
        architecture: str,
        wheel: Path,
        work: Path,
        *,
        mirror: str | None,
        step: Step,
        note: Callable[[str], None],
    ) -> None:
        self.plan, self.architecture, self.wheel, self.work = plan, architecture, wheel, work
        self.mirror, self.step, self.note = mirror, step, note
        self.log = work / f"image-{architecture}.log"
        host = pythons.find_or_none(plan.python)
        self.target = recipes.Target(
            architecture=architecture,
            python=plan.python,
            host=host,
            compiler=process.succeeds([host.executable, "-VV"]) if host else None,
            with_openvino=plan.with_openvino,
        )

    def platform(self) -> Platform:
        """Make or find every layer, and put configuration and labels on top."""
        plan, architecture = self.plan, self.architecture
        if self.target.host is None:
            self.note(
                f"no Python {plan.python} here: the image has no bytecode, and each start compiles again"
            )
        with self.step("audit", self.wheel.name):
            report = self._audit()
        with self.step("resolve", f"packages for linux/{architecture}, Python {plan.python}"):
            pins = packages.resolve(
                self.wheel,
                python=plan.python,
                architecture=architecture,
                torch=plan.torch,
                index=plan.index,
                with_openvino=plan.with_openvino,
                work=self.work,
                log=self.log,
            )
        foundation, below = self._foundation(pins)
        self._check_c_library(foundation.glibc)
        packed = [
            self._python_layer(name, pinned, foundation.site)
            for name, pinned in (("torch", (pins.torch,)), ("dependencies", pins.others))
        ]
        stack, parts = list(foundation.layers), [foundation.content]
        for layer, found in self._layers([*below, *packed]):
            stack.append(layer)
            parts.append(found)
        with self.step("engine", self.wheel.name):
            layer, found, facts = self._engine(report, pins, parts, foundation)
        stack.append(layer)
        if plan.model:
            with self.step("model", str(plan.model)):
                stack.append(self._model(plan.model))
        created = config.stamp(plan.epoch)
        labels = config.labels(
            facts,
            foundation,
            tag=report.tag.rpartition("-")[2] if report.tag else None,
            baseline=self._build_info().get("baseline"),
            created=created,
            revision=plan.revision,
            own=plan.labels,
        )
        document = config.document(
            stack,
            foundation,
            architecture=architecture,
            created=created,
            labels=labels,
            model=plan.model.name if plan.model else None,
        )
        image = archive.Image(config=document, layers=tuple(stack), annotations=labels)
        return Platform(image=image, content=found, facts=facts, pins=pins)

    def _audit(self) -> AuditReport:
        report = audit.audit_path(self.wheel, floor=self.plan.project.baseline if self.plan.project else None)
        if report.errors and self.architecture == "amd64":  # for development: built as the machine builds
            self.note(f"audit of {self.wheel.name}: {report.errors[0]}")
        elif report.errors:
            raise CheckFailed(f"audit of {self.wheel.name}: {report.errors[0]}")
        machines = {file.machine for file in report.files}
        if machines != {MACHINES[self.architecture]}:
            wanted = MACHINES[self.architecture]
            raise CheckFailed(f"{self.wheel.name} holds {', '.join(sorted(machines))} code, not {wanted}'s")
        return report

    def _check_c_library(self, glibc: str) -> None:
        """Raise UsageError when the wheel needs another C library than the image has (PEP 600, PEP 656)."""
        if "manylinux" not in self.wheel.name and "musllinux" in self.wheel.name:
            raise UsageError(f"{self.wheel.name} is for musl, and the image has the GNU C library")
        needed = wheelfile.needed_glibc(self.wheel.name)
        if glibc and needed and needed > Version(glibc):
            raise UsageError(
                f"{self.wheel.name} needs glibc {needed}, and the image has {glibc}: build it with"
                " `armbuild wheel --lane cross`, or take a newer --base"
            )
        if self.plan.with_openvino and glibc and Version(packages.OPENVINO_GLIBC) > Version(glibc):
            raise UsageError(
                f"--with-openvino needs glibc {packages.OPENVINO_GLIBC}, and the image has {glibc}:"
                " take a newer --base"
            )

    def _foundation(self, pins: packages.Pins) -> tuple[base.Foundation, list[Recipe]]:
        """Return what the engine's layers lie on, and how what is still to be made of it is made."""
        plan, architecture = self.plan, self.architecture
        if plan.base is None:
            suite = root.suite_of(plan.python)
            found = base.Foundation(
                layers=(), content=content.Content(), python=f"/usr/bin/python{plan.python}",
                site=f"usr/local/lib/python{plan.python}/dist-packages", environment={}, suite=suite,
                glibc=debian.GLIBC.get(suite, ""),
            )  # fmt: skip
            return found, [self._debian_layer(plan.python, suite, root.WITH_DEPENDENCIES)]
        with self.step("base", plan.base):
            path = base.fetch(plan.base, architecture, self.work, self.log)
            found = base.read(
                path, architecture, plan.python, name=plan.base, work=self.work, replaced=pins.names
            )
        lacking = [self._debian_layer(None, found.suite, found.lacking)] if found.lacking else []
        return found, lacking

    def _debian_layer(self, python: str | None, suite: str, names: tuple[str, ...]) -> Recipe:
        source = debian.archive(self.mirror)
        state = debian.state(suite=suite, architecture=self.architecture, source=source, log=self.log)
        return recipes.DebianLayer(
            name="root", target=self.target, log=self._log("root"), python=python, suite=suite, names=names,
            source=source, state=state,
        )  # fmt: skip

    def _python_layer(self, name: str, pinned: tuple[str, ...], site: str) -> Recipe:
        return recipes.PythonLayer(
            name=name,
            target=self.target,
            log=self._log(name),
            pinned=pinned,
            index=self.plan.index,
            site=site,
        )

    def _layers(self, wanted: Sequence[Recipe]) -> list[tuple[layers.Layer, content.Content]]:
        """Return the layers, those which do not lie in the cache made side by side."""
        missing = {
            recipe.name: partial(layer_cache.layer, recipe)
            for recipe in wanted
            if not layer_cache.there(recipe)
        }
        if len(missing) > 1:
            with self.step("layers", ", ".join(missing)):
                side_by_side.run(missing, log=self._log("layers"))
        built = []
        for recipe in wanted:
            what = recipe.comment.partition(": ")[2]
            count = what.count(", ") + 1
            with self.step(recipe.name, what if count < 5 else f"{count} packages"):
                built.append(layer_cache.layer(recipe))
        return built

    def _engine(
        self,
        report: AuditReport,
        pins: packages.Pins,
        parts: Iterable[content.Content],
        foundation: base.Foundation,
    ) -> tuple[layers.Layer, content.Content, dict[str, Any]]:
        """Return the engine's layer, what the whole image holds, and that as the entry point reads it."""
        own = content.Content(
            needs=report.needs_everywhere,
            dispatched=report.needs_dispatched | report.needs_guarded,
            kernels=frozenset(report.kernel_targets),
            machines=frozenset(file.machine for file in report.files),
            elf_files=len(report.files),
        )
        whole = content.together([*parts, own])
        facts = config.facts(
            whole,
            machine=MACHINES[self.architecture],
            version=self._build_info().get("version") or self.plan.version,
            python=self.plan.python,
            torch=pins.torch_version,
            openvino=pins.version(packages.OPENVINO) if self.plan.with_openvino else None,
        )
        recipe = recipes.EngineLayer(
            name="engine", target=self.target, log=self._log("engine"), wheel=self.wheel, own=own,
            whole=whole, facts=facts, created=self.plan.epoch,
            interpreter=foundation.python, site=foundation.site,
        )  # fmt: skip
        layer, found = layer_cache.layer(recipe)
        return layer, content.together([*parts, found]), facts

    def _model(self, folder: Path) -> layers.Layer:
        """Write the model's layer, not compressed: weights hardly shrink."""
        tree = self.work / "model"
        shutil.rmtree(tree, ignore_errors=True)
        for path in model.files(folder):
            target = tree / config.MODELS / folder.name / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.hardlink_to(path.resolve())
            except OSError:  # another file system
                shutil.copyfile(path, target)
        try:
            return layers.write(
                tree, self.work / "model.tar", comment=f"model: {folder.name}", compress=False
            )
        finally:
            shutil.rmtree(tree, ignore_errors=True)

    def _log(self, name: str) -> Path:
        """Return a separate log for what may run beside other work."""
        return self.work / f"image-{self.architecture}-{name}.log"

    def _build_info(self) -> dict[str, Any]:
        with archives.open_zip(self.wheel) as wheel:
            try:
                return dict(json.loads(archives.read_text(wheel, "armllm/build_info.json")))
            except (KeyError, RecursionError, TypeError, ValueError) as error:
                raise UsageError(
                    f"{self.wheel.name}: armllm/build_info.json is missing or damaged"
                ) from error
