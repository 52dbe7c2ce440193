"""The tables in ``armisa/data``, read once: cores, products, features, extensions, architecture levels."""

from __future__ import annotations

import difflib
import functools
import re
import sys
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from armisa.errors import IsaError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable


@functools.cache
def load(name: str, package: str = "armisa") -> dict[str, Any]:
    """Return the parsed table ``<package>/data/<name>.toml``."""
    text = (resources.files(package) / "data" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_toml(text)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document; raises ValueError."""
    table: dict[str, Any] = tomllib.loads(text)
    return table


@dataclass(frozen=True, kw_only=True)
class CoreType:
    """A CPU core as its Technical Reference Manual describes it; lengths in bits, None without the unit."""

    name: str
    aliases: tuple[str, ...]
    implementer: int
    parts: tuple[int, ...]
    features: frozenset[str]
    sve: int | None
    sme: int | None
    little: bool
    gcc: str | None


@dataclass(frozen=True, kw_only=True)
class Product:
    """A chip or machine on the market; ``cores``: core name -> count (0: sold in several sizes)."""

    name: str
    aliases: tuple[str, ...]
    cores: dict[str, int]
    features_with: frozenset[str]
    features_without: frozenset[str]
    dmi: str | None
    model: str | None


@dataclass(frozen=True, kw_only=True)
class Extension:
    """An extension under the name that compilers use; ``linux`` names prove it together."""

    name: str
    linux: frozenset[str]
    implies: tuple[str, ...]
    gcc: str | None
    clang: str | None
    llvm: str | None
    aliases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture level with all that the levels below it bring."""

    name: str
    aliases: tuple[str, ...]
    linux: frozenset[str]
    extensions: frozenset[str]


def key(name: str) -> str:
    """Return ``name`` as names are compared: case, spaces, dashes and underscores don't matter."""
    return re.sub(r"[\s_\-.]+", "", name.lower())


@functools.cache
def core_types() -> tuple[CoreType, ...]:
    """Return every core of cores.toml."""
    table = load("cores")
    return tuple(
        CoreType(
            name=core["name"],
            aliases=tuple(core.get("aliases", ())),
            implementer=core["implementer"],
            parts=tuple(core["part"]) if isinstance(core["part"], list) else (core["part"],),
            features=_expand(core["features"]),
            sve=core.get("sve"),
            sme=core.get("sme"),
            little=core.get("little", False),
            gcc=core.get("gcc"),
        )
        for core in table["core"]
    )


@functools.cache
def products() -> tuple[Product, ...]:
    """Return every product of cores.toml."""
    return tuple(
        Product(
            name=product["name"],
            aliases=tuple(product.get("aliases", ())),
            cores=dict(product["cores"]),
            features_with=_expand(product.get("with", ())),
            features_without=_expand(product.get("without", ())),
            dmi=product.get("dmi"),
            model=product.get("model"),
        )
        for product in load("cores")["product"]
    )


@functools.cache
def extensions() -> dict[str, Extension]:
    """Return every extension of features.toml by its name."""
    return {
        name: Extension(
            name=name,
            linux=frozenset(entry["linux"]),
            implies=tuple(entry.get("implies", ())),
            gcc=entry.get("gcc"),
            clang=entry.get("clang"),
            llvm=entry.get("llvm"),
            aliases=tuple(entry.get("aliases", ())),
        )
        for name, entry in load("features")["extension"].items()
    }


@functools.cache
def architectures() -> dict[str, Architecture]:
    """Return every architecture level of features.toml by its name, lowest first."""
    levels: dict[str, Architecture] = {}
    for name, entry in load("features")["architecture"].items():
        below = [levels[other] for other in entry.get("extends", ())]
        levels[name] = Architecture(
            name=name,
            aliases=tuple(entry.get("aliases", ())),
            linux=frozenset(entry["linux"]).union(*(level.linux for level in below)),
            extensions=implied(entry["extensions"]).union(*(level.extensions for level in below)),
        )
    return levels


@functools.cache
def hwcap_bits() -> dict[str, dict[int, str]]:
    """Return for each word of the auxiliary vector its bits' names: ``{"hwcap": {0: "fp", ...}, ...}``."""
    table = load("features")
    return {
        word: {bit: name for name, (bit, _) in table[word].items()} for word in ("hwcap", "hwcap2", "hwcap3")
    }


@functools.cache
def what_it_buys() -> dict[str, str]:
    """Return for each /proc/cpuinfo name a short text that says what the feature is good for."""
    table = load("features")
    return {name: text for word in hwcap_bits() for name, (_, text) in table[word].items()}


def implied(names: Iterable[str]) -> frozenset[str]:
    """Return the extensions ``names`` with everything that they imply."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo.extend(extensions()[name].implies)
    return frozenset(found)


def extension_name(name: str) -> str:
    """Return the name of the extension that people call ``name``; raise IsaError when there is none."""
    wanted = key(name)
    for extension in extensions().values():
        if wanted in map(key, (extension.name, *extension.aliases)):
            return extension.name
    known = [spelling for item in extensions().values() for spelling in (item.name, *item.aliases)]
    raise IsaError(f"unknown extension {name!r}{suggestion(name, known)}")


def extensions_of(features: Iterable[str]) -> frozenset[str]:
    """Return the extensions that a CPU with the /proc/cpuinfo ``features`` has."""
    present = frozenset(features)
    return frozenset(
        extension.name
        for extension in extensions().values()
        if extension.linux and extension.linux <= present
    )


def architecture_of(features: Iterable[str]) -> str | None:
    """Return the highest level whose visible features are all in ``features``; None below Armv8.0."""
    present = frozenset(features)
    fitting = [level.name for level in architectures().values() if level.linux <= present]
    return fitting[-1] if fitting else None


def find_core(implementer: int, part: int) -> CoreType | None:
    """Return the core with these MIDR_EL1 numbers, or None."""
    for core in core_types():
        if core.implementer == implementer and part in core.parts:
            return core
    return None


def find_target(name: str) -> CoreType | Product:
    """Return the core or product called ``name``; raise IsaError with suggestions when there is none."""
    wanted = key(name)
    entries: tuple[CoreType | Product, ...] = (*products(), *core_types())
    for entry in entries:
        if wanted in map(key, (entry.name, *entry.aliases)):
            return entry
    known = [
        spelling for entry in entries for spelling in (entry.name.lower().replace(" ", "-"), *entry.aliases)
    ]
    raise IsaError(f"unknown target {name!r}{suggestion(name, known)}; `armbuild detect --list` shows all")


def target_names() -> tuple[str, ...]:
    """Return the names that ``Isa.from_target`` takes, cores first, in the spelling of the command line."""
    entries: tuple[CoreType | Product, ...] = (*core_types(), *products())
    return tuple(dict.fromkeys(entry.name.lower().replace(" ", "-") for entry in entries))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``", did you mean ..."`` with the closest of ``known``, or nothing."""
    spellings = {key(spelling): spelling for spelling in known}
    close = difflib.get_close_matches(key(name), spellings, n=3, cutoff=0.6)
    return f", did you mean {' or '.join(spellings[match] for match in close)}?" if close else ""


def _expand(names: Iterable[str]) -> frozenset[str]:
    sets = load("cores")["sets"]
    found: set[str] = set()
    for name in names:
        found |= _expand(sets[name]) if name in sets else {name}
    return frozenset(found)
