"""What a build can be told: options, ``ARMBUILD_*`` variables, ``[tool.armbuild]``, from one description."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from armbuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PREFIX = "ARMBUILD_"
OTHER_VARIABLES = frozenset(
    {
        "ARMBUILD_CACHE_DIR",
        "ARMBUILD_ENGINE_OPTIONS",
        "ARMBUILD_LAUNCHER",
        "ARMBUILD_MIRROR",
        "ARMBUILD_OPTIONS",
        "ARMBUILD_TARGET_SITE",
    }
)
"""Variables that are no settings of a build."""
YES, NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


def _setting(default: Any, text: str, *, key: str = "") -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "key": key})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One field per setting; its key in TOML is the option's name without dashes in front."""

    python: tuple[str, ...] = _setting((), "Pythons to build for, or `all`; default: the running one.")
    lane: str | None = _setting(
        None, "How to compile: `cross`, `native` or `container`; default: by this machine."
    )
    engine: str | None = _setting(None, "What runs the container lane: `docker` or `podman`.")
    image: str | None = _setting(None, "The container lane's image.")
    toolchain: str | None = _setting(
        None, "The cross lane's compiler: `zig`, `gcc` or `clang`; the container lane's: `clang`."
    )
    compile_cache: str | None = _setting(
        None, "What keeps compiled objects: `ccache`, `sccache` or `none`; default: the first on PATH."
    )
    glibc: str | None = _setting(None, "Refuse a wheel that needs a newer glibc than this, such as `2.28`.")
    config_settings: tuple[str, ...] = _setting(
        (), "What the build back end is told, each as `KEY=VALUE` (PEP 517)."
    )
    packages: tuple[str, ...] = _setting((), "Debian arm64 packages to build with.", key="with")
    baseline: str | None = _setting(None, "Compile everything for this core and newer.")
    variant: bool = _setting(
        False, "Experimental: say the baseline in a wheel variant (PEP 825, a draft), not in the version."
    )
    isolation: bool = _setting(True, "Install build requirements into an environment of their own.")
    lock: str | None = _setting(None, "The file that pins and hashes the build requirements.")
    imports: tuple[str, ...] = _setting((), "Modules whose import proves the wheel.", key="import")
    command: str = _setting("", "A command that proves the wheel; `{project}` is the sources' folder.")
    requires: tuple[str, ...] = _setting((), "What the command needs.")
    cpu: tuple[str, ...] = _setting((), "Cores to prove the wheel on.")
    smoke: bool = _setting(True, "Prove the wheel.")
    out: str = _setting("dist", "Where finished wheels go.")
    provenance: bool = _setting(True, "Write a provenance file beside each wheel.")
    check_reproducible: bool = _setting(False, "Build twice, in two folders, and compare the bytes.")


def keys() -> dict[str, str]:
    """Return each setting's key in TOML with the field's name."""
    return {
        field.metadata["key"] or field.name.replace("_", "-"): field.name
        for field in dataclasses.fields(Settings)
    }


def load(
    given: Mapping[str, Any], table: Mapping[str, Any], environ: Mapping[str, str], *, where: Path | str
) -> Settings:
    """Return the settings: ``given`` options first, then variables, then the ``[tool.armbuild]`` table.

    ``given`` maps field names to values, None for what was not said; ``where`` is the table's file. Raises
    UsageError for a key that is not there, with the nearest one, and for a value of the wrong type.
    """
    values: dict[str, Any] = {}
    if not isinstance(table, dict):
        raise UsageError(f"{where}: [tool.armbuild] must be a table")
    for key, value in table.items():
        name = _name(key, keys(), f"{where}: [tool.armbuild] {key}")
        values[name] = _from_toml(key, value, where)
    variables = {key.replace("-", "_").upper(): name for key, name in keys().items()}
    for variable, text in environ.items():
        word = variable.removeprefix(PREFIX)
        if word == variable or variable in OTHER_VARIABLES or not text:
            continue
        if word in variables:
            values[variables[word]] = _from_text(variable, variables[word], text)
        elif near := difflib.get_close_matches(word, variables, 1, 0.75):  # others may have variables too
            raise UsageError(f"{variable}: no such setting; did you mean {PREFIX}{near[0]}?")
    values |= {name: value for name, value in given.items() if value is not None}
    return Settings(**values)


def schema() -> dict[str, Any]:
    """Return the JSON schema of ``[tool.armbuild]``."""
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "[tool.armbuild]",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            key: {**_json_type(_kind(name)), "description": fields[name].metadata["help"]}
            for key, name in keys().items()
        },
    }


def reference() -> str:
    """Return the reference as a Markdown table."""
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    rows = ["| `[tool.armbuild]` | variable | type | meaning |", "| --- | --- | --- | --- |"]
    names: dict[type, str] = {bool: "true or false", tuple: "list", str: "text"}
    rows += [
        f"| `{key}` | `{PREFIX}{key.replace('-', '_').upper()}` | {names[_kind(name)]} "
        f"| {fields[name].metadata['help']} |"
        for key, name in keys().items()
    ]
    return "\n".join(rows) + "\n"


def _kind(name: str) -> type:
    hint = get_type_hints(Settings)[name]
    if hint is bool:
        return bool
    return tuple if getattr(hint, "__origin__", None) is tuple else str


def _json_type(kind: type) -> dict[str, Any]:
    if kind is tuple:
        return {"type": "array", "items": {"type": "string"}}
    return {"type": "boolean" if kind is bool else "string"}


def _name(asked: str, known: Mapping[str, str], what: str) -> str:
    if asked in known:
        return known[asked]
    near = difflib.get_close_matches(asked, known, 1)
    hint = f"; did you mean {near[0]}?" if near else f": there are {', '.join(known)}"
    raise UsageError(f"{what}: no such setting{hint}")


def _from_toml(key: str, value: Any, where: Path | str) -> Any:
    kind = _kind(keys()[key])
    if kind is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if kind is not tuple and isinstance(value, kind):
        return value
    wanted: dict[type, str] = {bool: "true or false", tuple: "a list of strings", str: "a string"}
    raise UsageError(f"{where}: [tool.armbuild] {key} = {value!r}: it must be {wanted[kind]}")


def _from_text(variable: str, name: str, text: str) -> Any:
    kind = _kind(name)
    if kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool:
        if text.lower() in YES | NO:
            return text.lower() in YES
        raise UsageError(f"{variable}={text}: it must be 1 or 0")
    return text
