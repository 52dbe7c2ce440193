"""How each layer is made: its inputs, and the function that writes its files.

A recipe can be pickled, so that layers which do not depend on one another are made side by side.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armbuild.image import content, packages, root, sbom
from armbuild.image.entrypoint import FACTS, SBOM, SHARE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from armbuild.host.pythons import HostPython
    from armbuild.target import debian

PROGRAM = """#!{python}
import sys
from {package}.__main__ import run
sys.exit(run())
"""


@dataclass(frozen=True, kw_only=True)
class Target:
    """For what, and with what, the Python files of an image are made."""

    architecture: str
    python: str
    host: HostPython | None
    """An interpreter of this machine that compiles bytecode for the image's, if there is one."""
    compiler: str | None
    """What that one says it is: another compiler, another layer."""
    with_openvino: bool = False
    """Packages may need the newer C library that OpenVINO's do."""


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """What ``layer_cache.layer`` makes a layer of."""

    name: str
    target: Target
    log: Path

    @property
    @abstractmethod
    def inputs(self) -> Any:
        """Return all that decides what is in the layer, as a JSON value."""

    @property
    @abstractmethod
    def comment(self) -> str:
        """Return what the image's history says."""

    @property
    def owners(self) -> Mapping[str, int]:
        """Return what does not belong to root: path -> user and group id."""
        return {}

    @abstractmethod
    def fill(self, tree: Path) -> list[dict[str, Any]]:
        """Lay the files into the empty folder ``tree``; return components of the bill of materials."""

    def inspect(self, tree: Path, components: Iterable[Mapping[str, Any]]) -> content.Content:
        """Return what the layer truly holds."""
        return content.inspect(tree, components)


@dataclass(frozen=True, kw_only=True)
class DebianLayer(Recipe):
    """Debian packages: a root with Python, or what a base image lacks."""

    python: str | None
    """None: without an interpreter, as an addition to a base."""
    suite: str
    names: tuple[str, ...]
    source: debian.Archive
    state: str
    """The digest of the archive's package lists."""

    @property
    def inputs(self) -> Any:
        target = self.target
        archive = [vars(self.source), self.state]
        return [archive, self.python, self.suite, self.names, target.architecture, target.compiler]

    @property
    def comment(self) -> str:
        python = f"Python {self.python}, " if self.python else ""
        return f"Debian {self.suite}: {python}{', '.join(self.names)}"

    @property
    def owners(self) -> Mapping[str, int]:
        return root.OWNERS

    def fill(self, tree: Path) -> list[dict[str, Any]]:
        target = self.target
        found = root.make(
            tree,
            python=self.python,
            suite=self.suite,
            architecture=target.architecture,
            source=self.source,
            only=self.names,
            log=self.log,
        )
        if self.python and target.host:
            folder = tree / f"usr/lib/python{self.python}"
            packages.compile_bytecode(target.host, tree, folder, log=self.log)
        return [*map(sbom.as_json, sbom.debian_components(found, tree))]


@dataclass(frozen=True, kw_only=True)
class PythonLayer(Recipe):
    """Python packages of exact versions."""

    pinned: tuple[str, ...]
    index: str | None
    site: str
    """The image's folder for packages, without the leading slash."""

    @property
    def inputs(self) -> Any:
        target = self.target
        folder = Path(self.index) if self.index and "://" not in self.index else None
        wheels = [(path.name, path.stat()) for path in sorted(folder.glob("*.whl"))] if folder else []
        return [
            self.name,
            self.pinned,
            target.architecture,
            target.python,
            self.index,
            [(name, found.st_size, found.st_mtime_ns) for name, found in wheels],
            self.site,
            target.compiler,
            target.with_openvino,
        ]

    @property
    def comment(self) -> str:
        return f"{self.name}: {', '.join(map(packages.without_hashes, self.pinned))}"

    def fill(self, tree: Path) -> list[dict[str, Any]]:
        return _install(self.pinned, tree, self.site, self.target, index=self.index, log=self.log)


@dataclass(frozen=True, kw_only=True)
class EngineLayer(Recipe):
    """The engine's wheel, its programs, and what the image says about itself."""

    wheel: Path
    own: content.Content
    """What the wheel's own audit found, which says more than the tree's."""
    whole: content.Content
    """What is in all layers, this one's components apart."""
    facts: Mapping[str, Any]
    """What the entry point reads."""
    created: int
    """In seconds since 1970."""
    interpreter: str
    site: str

    @property
    def inputs(self) -> Any:
        return [
            sha256(self.wheel.read_bytes()).hexdigest(),
            PROGRAM,
            self.facts,
            self.whole.components,
            self.created,
            self.site,
            self.interpreter,
            self.target.compiler,
        ]

    @property
    def comment(self) -> str:
        return f"engine: {self.wheel.name}"

    def fill(self, tree: Path) -> list[dict[str, Any]]:
        own = _install([self.wheel], tree, self.site, self.target, index=None, log=self.log)
        (tree / SHARE).mkdir(parents=True)
        (tree / FACTS).write_text(json.dumps(self.facts, indent=1))
        document = sbom.document(
            replace(self.whole, components=(*self.whole.components, *own)),
            name="armllm",
            version=self.facts["version"],
            created=self.created,
            properties={"armllm:torch": self.facts["torch"]},
        )
        (tree / SBOM).write_text(json.dumps(document, indent=1))
        for program in ("armllm", "armbuild"):
            path = tree / "usr/local/bin" / program
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PROGRAM.format(python=self.interpreter, package=program))
            path.chmod(0o755)
        return own

    def inspect(self, _tree: Path, components: Iterable[Mapping[str, Any]]) -> content.Content:
        return replace(self.own, components=tuple(components))


def _install(
    wanted: Iterable[str | Path], tree: Path, site: str, target: Target, *, index: str | None, log: Path
) -> list[dict[str, Any]]:
    folder = tree / site
    folder.mkdir(parents=True)
    packages.install(
        wanted,
        folder,
        python=target.python,
        architecture=target.architecture,
        index=index,
        with_openvino=target.with_openvino,
        log=log,
    )
    if target.host:
        packages.compile_bytecode(target.host, tree, folder, log=log)
    return [*map(sbom.as_json, sbom.python_components(folder))]
