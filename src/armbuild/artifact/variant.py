"""Wheel variants (PEP 825 with PEP 850's providers, both drafts): a raised baseline, for installers.

The properties are those of the provider package ``provider-variant-aarch64`` 0.0.1: ``version``, and Linux's
names of single features.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from armbuild.errors import UsageError
from armisa import Isa
from armisa.errors import IsaError
from armisa.tables import architectures, extensions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Properties = Mapping[str, Mapping[str, list[str]]]
    """Namespace -> feature -> the values of which a machine must have one."""

NAMESPACE = "aarch64"
MEMBER = "variant.json"
"""Its name in ``.dist-info``."""
SCHEMA = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json"
PROVIDER = {
    "requires": ["provider-variant-aarch64>=0.0.1,<1"],
    "plugin-api": "provider_variant_aarch64.plugin:AArch64Plugin",
}
LEVELS = {
    "armv8-a": "8a",
    "armv8.1-a": "8.1a",
    "armv8.2-a": "8.2a",
    "armv8.3-a": "8.3a",
    "armv8.4-a": "8.4a",
    "armv8.5-a": "8.5a",
    "armv9-a": "9.0a",
}
"""The architecture levels that the provider knows, lowest first, in its spelling."""
FEATURES = frozenset((
    "aes", "asimd", "asimddp", "asimdfhm", "asimdhp", "bf16", "crc32", "dit", "fcma", "flagm", "flagm2", "fp",
    "fphp", "frint", "i8mm", "ilrcpc", "jscvt", "lrcpc", "pmull", "sb", "sha1", "sha2", "sha3", "sha512",
    "sve", "sve2", "svebf16", "svei8mm", "uscat",
))  # fmt: skip
"""Of the features that the provider knows, those that compiled code makes use of."""
_LABEL = re.compile(r"[0-9a-z_.]{1,16}")
_NAME = re.compile(r"([^-]+-[^-]+(?:-\d[^-]*)?-[a-z][^-]*-[^-]+-[^-]+)-([^-]+)\.whl")
_WORD, _VALUE = re.compile(r"[a-z0-9_]+"), re.compile(r"[a-z0-9_.]+")


def split(name: str) -> tuple[str, str | None]:
    """Return a wheel's file name without its variant label, and the label (None: it has none)."""
    match = _NAME.fullmatch(name)
    return (f"{match[1]}.whl", match[2]) if match else (name, None)


def label(baseline: str, properties: Properties) -> str:
    """Return the label of a baseline: its name, or a digest where that is too long for the draft."""
    name = re.sub(r"[^a-z0-9]+", "_", baseline.lower()).strip("_")
    if _LABEL.fullmatch(name):
        return name
    return hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()[:8]


def narrow(core: Isa) -> Isa:
    """Return ``core`` with those features alone that its variant's properties can name."""
    level = architectures()[_level(core)]
    return replace(core, features=level.linux | (core.features & FEATURES))


def properties(core: Isa) -> Properties:
    """Return what a machine must have to run what is compiled for ``narrow(core)``."""
    level = _level(core)
    beyond = (core.features & FEATURES) - architectures()[level].linux
    return {NAMESPACE: {"version": [LEVELS[level]], **{name: ["on"] for name in sorted(beyond)}}}


def floor(document: Mapping[str, Any], name: str) -> str | None:
    """Return the CPU floor that the variant ``name`` promises, as ``armbuild audit --floor`` takes it.

    None for a variant that says nothing about AArch64.
    """
    named: Mapping[str, list[str]] | None = document["variants"][name].get(NAMESPACE)
    if named is None:
        return None
    levels = {value: level for level, value in LEVELS.items()}
    stated = [architectures()[levels[value]] for value in named.get("version", []) if value in levels]
    # one of the versions is enough to be taken: the lowest of them counts
    level = min(stated, key=lambda item: len(item.linux)) if stated else architectures()["armv8-a"]
    features = level.linux | {feature for feature, values in named.items() if "on" in values}
    return "+".join((level.name, *sorted(extensions_of(features) - level.extensions)))


def document(name: str, stated: Properties) -> dict[str, Any]:
    """Return the content of ``variant.json``."""
    return {
        "$schema": SCHEMA,
        "default-priorities": {"namespace": [NAMESPACE]},
        "providers": {NAMESPACE: PROVIDER},
        "variants": {name: stated},
    }


def dump(content: Mapping[str, Any]) -> bytes:
    """Return a document as the bytes of its file."""
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def parse(content: bytes | str, name: str) -> dict[str, Any]:
    """Return the metadata of the variant ``name``; raises UsageError for what breaks the drafts' rules."""
    if not _LABEL.fullmatch(name):
        raise UsageError(f"the variant label {name} is not 1 to 16 of 0-9, a-z, _ and .")
    try:
        parsed: dict[str, Any] = json.loads(content)
        wrong = "" if isinstance(parsed["$schema"], str) else "its $schema is no address"
        wrong = wrong or _problem(parsed["variants"], parsed["default-priorities"]["namespace"], name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{MEMBER} is not what the drafts describe: {error!r}") from error
    if wrong:
        raise UsageError(f"{MEMBER}: {wrong}")
    return parsed


def stated(content: bytes | str | None, name: str | None) -> dict[str, Any] | None:
    """Return what a wheel's ``variant.json`` says, None for a wheel that is no variant.

    ``name`` is the label in the file's name, ``content`` the file's. Raises UsageError where there is one of
    them only, or the content breaks the drafts' rules.
    """
    if content is None and name is None:
        return None
    if content is None:
        raise UsageError(f"the name ends in the variant label {name}, but there is no {MEMBER}")
    if name is None:
        raise UsageError(f"{MEMBER} in a wheel whose name has no variant label")
    return parse(content, name)


def _problem(variants: Mapping[str, Properties], namespaces: list[str], name: str) -> str:
    """Return what is wrong with the variants of one wheel, nothing when nothing is."""
    if set(variants) != {name}:
        return f"it describes {', '.join(variants) or 'no variant'}, the file name says {name}"
    for namespace, features in variants[name].items():
        if namespace not in namespaces or not _WORD.fullmatch(namespace):
            return f"no priority for the namespace {namespace}"
        for feature, values in features.items():
            if not _WORD.fullmatch(feature) or not values or not all(map(_VALUE.fullmatch, values)):
                return f"{namespace} :: {feature} :: {values} is no property"
    if (name == "null") != (not variants[name]):
        return "the label null stands for a variant without properties, and for no other"
    return _unlike_core(name, variants[name].get(NAMESPACE))


def combine(file: str, documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``file``, the index's ``{name}-{version}-variants.json``, for the variants of one version.

    Raises UsageError where two of them contradict each other.
    """
    whole: dict[str, Any] = {}
    for other in documents:
        if not whole:
            whole = json.loads(json.dumps(other))
            continue
        for name, properties_of in other["variants"].items():
            if whole["variants"].setdefault(name, properties_of) != properties_of:
                raise UsageError(f"{file}: the variant {name} has other properties in another wheel")
        if any(whole.get(key) != other.get(key) for key in (whole.keys() | other.keys()) - {"variants"}):
            raise UsageError(f"{file}: two variants differ in their priorities or providers")
    return whole


def _level(core: Isa) -> str:
    fitting = [name for name in LEVELS if architectures()[name].linux <= core.features]
    return fitting[-1] if fitting else "armv8-a"


def _unlike_core(name: str, stated: Mapping[str, list[str]] | None) -> str:
    """Compare the properties of a variant that is labeled as a core with that core's."""
    try:
        core = properties(Isa.from_target(name))[NAMESPACE]
    except IsaError:
        return ""
    if stated is None or stated == core:
        return ""
    wrong = sorted(key for key in stated.keys() | core.keys() if stated.get(key) != core.get(key))
    return f"the label is {name}, but these properties are not that core's: {', '.join(wrong)}"
