"""The settings of a wheel build. Each is described once, as a field of ``Settings``.

Command-line options, ``ARMBUILD_*`` variables, ``[tool.armbuild]``, its JSON schema and the reference are
derived from the fields.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from armbuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX = "ARMBUILD_"
OTHER_VARIABLES = frozenset(
    {
        "ARMBUILD_CACHE_DIR",
        "ARMBUILD_ENGINE_OPTIONS",
        "ARMBUILD_LAUNCHER",
        "ARMBUILD_MIRROR",
        "ARMBUILD_OPTIONS",
        "ARMBUILD_SOURCES",
        "ARMBUILD_TARGET_SITE",
    }
)
"""Variables that are no settings of a build."""
YES, NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
GROUPS = ("Build", "Target", "Proof", "Output")


@dataclass(frozen=True, kw_only=True)
class About:
    """What there is to know about a setting beside its name, type and default."""

    group: str
    help: str
    """One sentence, in Markdown, for `--help`, the schema and the reference."""
    example: str = ""
    """A value, for the reference; a list is written with commas."""
    metavar: str = ""
    """What stands for the value in `--help`; default: the values, or TEXT."""
    values: tuple[str, ...] = ()
    """The only values, where there are few."""
    key: str = ""
    """The name outside of Python, where the field's would be a keyword or unclear."""
    short: str = ""
    """A short option, such as ``-o``."""
    kernel: bool = False
    """Whether it switches the kernel target of its name on or off."""


def _setting(default: Any, group: str, text: str, **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"about": About(group=group, help=text, **more)})


def _kernel(text: str) -> Any:
    return _setting(None, "Target", text, example="false", kernel=True)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a build is asked to do. None stands for a default that the plan finds."""

    lane: str | None = _setting(
        None,
        "Build",
        "How to compile; default: `native` on AArch64, `cross` elsewhere.",
        values=("cross", "native", "container"),
        example="cross",
    )
    toolchain: str | None = _setting(
        None,
        "Build",
        "The compiler of the cross lane; default: `zig`. In the container lane only `clang`.",
        values=("zig", "gcc", "clang"),
        example="gcc",
    )
    engine: str | None = _setting(
        None,
        "Build",
        "The container engine of the container lane; default: the project's, else the one that runs.",
        metavar="docker|podman",
        example="podman",
    )
    image: str | None = _setting(
        None,
        "Build",
        "The image of the container lane, from a registry or local.",
        metavar="NAME",
        example="manylinux_2_28",
    )
    compile_cache: str | None = _setting(
        None,
        "Build",
        "The compile cache; default: ccache if it is on PATH, else sccache.",
        metavar="ccache|sccache|none",
        example="ccache",
    )
    config_settings: tuple[str, ...] = _setting(
        (),
        "Build",
        "A setting of the project's build back end (PEP 517).",
        metavar="KEY=VALUE",
        short="-C",
        example="cmake.build-type=Debug",
    )
    packages: tuple[str, ...] = _setting(
        (), "Build", "A Debian arm64 package to build with.", key="with", metavar="DEB", example="zlib1g-dev"
    )
    env: tuple[str, ...] = _setting(
        (),
        "Build",
        "A variable for the build back end; `{NAME}` in it is the folder of `--source NAME`.",
        metavar="NAME=VALUE",
        example="WITH_FAST_MATH=0",
    )
    build_requires: tuple[str, ...] = _setting(
        (),
        "Build",
        "A build requirement that the project does not list.",
        metavar="REQUIREMENT",
        example="torch==2.10.0",
    )
    patch: tuple[str, ...] = _setting(
        (),
        "Build",
        "A patch for a copy of the sources (`git diff`, `diff -ru`); it applies whole or not at all.",
        metavar="FILE",
        example="fix.patch",
    )
    source: tuple[str, ...] = _setting(
        (),
        "Build",
        "Sources that CMake's FetchContent uses instead of a download.",
        metavar="NAME=DIR|ARCHIVE",
        example="oneDNN=onednn.tar.xz",
    )
    isolation: bool = _setting(
        True, "Build", "Install build requirements into a separate environment; on by default."
    )
    sandbox: bool = _setting(
        False, "Build", "Run the project's code in a sandbox of bubblewrap, without a network."
    )
    lock: Path | None = _setting(  # noqa: RUF009 - a field
        None,
        "Build",
        "The file with versions and hashes of the build requirements; written if it is missing.",
        metavar="FILE",
        example="build.lock",
    )
    python: tuple[str, ...] = _setting(
        (),
        "Target",
        "A Python to build for, or `all`; default: the running one.",
        metavar="X.Y",
        example="3.13",
    )
    platform: str = _setting(
        "manylinux",
        "Target",
        "The C library: GNU's (`manylinux`, the default), or musl as in Alpine Linux.",
        values=("manylinux", "musllinux"),
        example="musllinux",
    )
    glibc: str | None = _setting(
        None,
        "Target",
        "Refuse a wheel that needs a newer glibc; default: no limit.",
        metavar="2.N",
        example="2.28",
    )
    baseline: str | None = _setting(
        None,
        "Target",
        "Compile everything for this core and newer.",
        metavar="TARGET",
        example="neoverse-v1",
    )
    variant: bool = _setting(
        False,
        "Target",
        "Experimental: state the baseline in a wheel variant (PEP 825, a draft), not in the version.",
    )
    bf16: bool | None = _kernel("Kernels for BF16 instructions; by default all kernels are built.")
    dotprod: bool | None = _kernel("Kernels for DotProd instructions.")
    fhm: bool | None = _kernel("Kernels for FP16 multiply-add to FP32.")
    i8mm: bool | None = _kernel("Kernels for int8 matrix products.")
    sve: bool | None = _kernel("Kernels for SVE.")
    sve512: bool | None = _kernel("Kernels for SVE with vectors of 512 bits or more.")
    cpu: tuple[str, ...] = _setting(
        (),
        "Proof",
        "Smoke-test on this core; default: `native` on AArch64, neoverse-n1, neoverse-v1 and max elsewhere.",
        metavar="CPU",
        example="neoverse-n1",
    )
    imports: tuple[str, ...] = _setting(
        (),
        "Proof",
        "Test the wheel by importing this module.",
        key="import",
        metavar="NAME",
        example="lz4.frame",
    )
    command: str = _setting(
        "",
        "Proof",
        "Test the wheel by this command; `{project}` is the folder of the sources.",
        metavar="TEXT",
        example="pytest {project}/tests",
    )
    requires: tuple[str, ...] = _setting(
        (), "Proof", "A package that the test needs.", metavar="REQUIREMENT", example="pytest"
    )
    smoke: bool = _setting(True, "Proof", "Run the wheel on each CPU; on by default.")
    require_proof: bool | None = _setting(
        None,
        "Proof",
        "Fail unless the wheel or the image ran; default: only if the variable `CI` is set.",
        example="true",
    )
    check_reproducible: bool = _setting(False, "Proof", "Build twice, in two folders, and compare the bytes.")
    output: Path = _setting(  # noqa: RUF009 - a field
        Path("dist"),
        "Output",
        "The folder for finished wheels; default: `dist`.",
        metavar="DIR",
        short="-o",
        example="dist",
    )
    provenance: bool = _setting(True, "Output", "Write a provenance file beside each wheel; on by default.")

    @property
    def kernels(self) -> dict[str, bool]:
        """Return the kernel targets that are switched on or off by name."""
        values = {name: getattr(self, name) for name in KERNELS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def proof_required(self) -> bool:
        """Return whether a wheel that is not run is an error."""
        return proof_required(self.require_proof)

    def check(self) -> None:
        """Raise UsageError for a value that is none of the few that a setting has."""
        for setting in ALL:
            value, values = getattr(self, setting.name), setting.about.values
            if values and value is not None and value not in values:
                listed = f"{', '.join(values[:-1])} and {values[-1]}"
                raise UsageError(f"--{setting.key} {value}: there are {listed}{_hint(value, values)}")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of Settings, as everything outside of Python sees it."""

    name: str
    """The field's."""
    type: type
    """bool, str, Path, or tuple for a list of strings."""
    default: Any
    about: About

    @property
    def key(self) -> str:
        """Return the key in TOML, which is the option without its dashes."""
        return self.about.key or self.name.replace("_", "-")

    @property
    def option(self) -> str:
        """Return the option as the reference shows it."""
        if self.type is bool:
            return f"--no-{self.key}" if self.default else f"--{self.key}"
        return f"{self.about.short}, --{self.key}" if self.about.short else f"--{self.key}"

    @property
    def metavar(self) -> str | None:
        """Return what stands for the value in `--help`."""
        return None if self.type is bool else self.about.metavar or "|".join(self.about.values) or "TEXT"

    def from_toml(self, key: str, value: Any, where: Path | str) -> Any:
        """Return the value of a TOML key; raises UsageError for one of the wrong type."""
        if self.type is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        if self.type is not tuple and isinstance(value, bool if self.type is bool else str):
            return self.type(value)
        wanted: dict[type, str] = {bool: "true or false", tuple: "a list of strings"}
        raise UsageError(
            f"{where}: [tool.armbuild] {key} = {value!r}: it must be {wanted.get(self.type, 'a string')}"
        )

    def from_text(self, variable: str, text: str) -> Any:
        """Return the value of an environment variable; raises UsageError for what is neither yes nor no."""
        if self.type is tuple:
            separator = "\n" if "\n" in text else ","
            return tuple(part.strip() for part in text.split(separator) if part.strip())
        if self.type is bool:
            if text.lower() in YES | NO:
                return text.lower() in YES
            raise UsageError(f"{variable}={text}: it must be 1 or 0")
        return self.type(text)

    def json_type(self) -> dict[str, Any]:
        """Return the type as a JSON schema."""
        if self.type is tuple:
            return {"type": "array", "items": {"type": "string"}}
        if self.type is bool:
            return {"type": "boolean"}
        return {"type": "string", **({"enum": list(self.about.values)} if self.about.values else {})}


def describe(settings: type = Settings) -> tuple[Setting, ...]:
    """Return the settings of a dataclass whose fields are described like those of ``Settings``."""
    hints = get_type_hints(settings)
    return tuple(
        Setting(
            name=field.name,
            type=_plain_type(hints[field.name]),
            default=field.default,
            about=field.metadata["about"],
        )
        for field in dataclasses.fields(settings)
    )


def _plain_type(hint: Any) -> type:
    for plain in (bool, tuple, Path):
        if plain in (hint, getattr(hint, "__origin__", None), *get_args(hint)):
            return plain
    return str


ALL = describe()
KERNELS = tuple(setting.name for setting in ALL if setting.about.kernel)
"""The kernel targets that have an option; those without one (scalar, neon) are always in."""


def proof_required(asked: bool | None) -> bool:
    """Return whether what is built must be run: as asked, else where the variable ``CI`` is set."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false") if asked is None else asked


def variable(key: str) -> str:
    """Return the environment variable of a key."""
    return PREFIX + key.replace("-", "_").upper()


def load(
    options: Mapping[str, Any], table: Mapping[str, Any], environ: Mapping[str, str], *, where: Path | str
) -> Settings:
    """Return the settings: ``options`` first, then variables, then the ``[tool.armbuild]`` table.

    ``options`` maps field names to values, None for an option that is not there; ``where`` is the table's
    file. Raises UsageError for a key that is not there, with the nearest one, and for a value of the wrong
    type.
    """
    values: dict[str, Any] = {}
    if not isinstance(table, dict):
        raise UsageError(f"{where}: [tool.armbuild] must be a table")
    known = {setting.key: setting for setting in ALL}
    for key, value in table.items():
        if key not in known:
            listed = tuple(setting.key for setting in ALL)
            hint = _hint(key, listed) or f": there are {', '.join(listed)}"
            raise UsageError(f"{where}: [tool.armbuild] {key}: no such setting{hint}")
        values[known[key].name] = known[key].from_toml(key, value, where)
    variables = {variable(key): setting for key, setting in known.items()}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES or not text:
            continue
        if name in variables:
            values[variables[name].name] = variables[name].from_text(name, text)
        elif near := _near(
            name.removeprefix(PREFIX), [item.removeprefix(PREFIX) for item in variables], 0.75
        ):
            # what resembles none may be another program's
            raise UsageError(f"{name}: no such setting; did you mean {PREFIX}{near}?")
    values |= {name: value for name, value in options.items() if value is not None}
    return Settings(**values)


def _near(text: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    return next(iter(difflib.get_close_matches(text, list(known), 1, cutoff)), "")


def _hint(text: str, known: Iterable[str]) -> str:
    near = _near(text, known)
    return f"; did you mean {near}?" if near else ""
