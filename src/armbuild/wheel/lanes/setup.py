"""What a back end gets in every lane: environment variables and configuration settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from armbuild.host import cache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from armbuild.toolchain.rust import Rust
    from armbuild.wheel.plan import Plan

Settings = dict[str, "str | list[str]"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The environment of the back end's hooks."""

    environment: Mapping[str, str]
    settings: Settings = field(default_factory=dict)
    """PEP 517 ``config_settings``."""
    compiler: str
    """Name and version, for the report."""
    headers: str
    """Whose headers of Python are used, for the report."""
    tools_key: str = ""
    """The tools that compiled code depends on; empty: the whole environment."""
    libraries: tuple[Path, ...] = ()
    """Folders with libraries of the target that a wheel may have to bundle."""
    static: tuple[tuple[str, str], ...] = ()
    """Runtime libraries that the compiler puts into C++ code, each with what it is."""
    rust: Rust | None = None
    """The Rust that the back end finds."""
    runtime: Callable[[Path], None] | None = None
    """Builds the compiler's own C++ runtime, with a log; None where that is there already."""


def backend_family(backend: str) -> str:
    """Return "scikit-build-core", "meson" or "other", from the build-backend's module."""
    module = backend.partition(":")[0]
    if module.startswith("scikit_build_core"):
        return "scikit-build-core"
    return "meson" if module == "mesonpy" else "other"


def settings(plan: Plan, folder: Path, *, meson_arguments: Sequence[str] = ()) -> Settings:
    """Return the back end's settings: where it compiles, and what the plan says about the project.

    What the user asks for comes last: one value takes the place of ours, a list's is added to it, and a name
    that stands twice becomes a list.
    """
    merged = _own_settings(plan, folder, meson_arguments)
    asked: dict[str, list[str]] = {}
    for name, value in plan.config_settings:
        asked.setdefault(name, []).append(value)
    for name, values in asked.items():
        own = merged.get(name)
        if isinstance(own, list):
            merged[name] = [*own, *values]
        else:
            merged[name] = values if len(values) > 1 else values[0]
    return merged


def _own_settings(plan: Plan, folder: Path, meson_arguments: Sequence[str]) -> Settings:
    match backend_family(plan.project.backend):
        case "scikit-build-core":
            defines = {f"cmake.define.{name}": value for name, value in plan.defines().items()}
            return {"build-dir": str(folder / "build"), **defines}
        case "meson":
            return {"builddir": str(folder / "build"), "setup-args": list(meson_arguments)}
        case _:
            return {}


def prefix_map(plan: Plan, folder: Path) -> dict[str, str]:
    """Return the folders that must not show in the wheel, so that its bytes don't depend on them."""
    names = {cache.root(): "/cache", folder: "/build", plan.project.folder: "/build/source"}
    return {str(place): name for path, name in names.items() for place in (path, path.resolve())}
