"""What a wheel says about itself, and whether that is true: names, tags, RECORD, build_info.json."""

from __future__ import annotations

import base64
import contextlib
import csv
import functools
import hashlib
import io
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from armbuild.artifact import variant, wheelfile
from armbuild.artifact.limits import MAX_ENTRIES
from armbuild.audit import names
from armbuild.errors import UsageError
from armisa import Isa
from armisa.errors import IsaError
from armisa.tables import key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.tags import Tag

    from armbuild.artifact.wheelfile import FileName

# Of RECORD, in which a row has a path, a hash and a size.
_MAX_COLUMNS = 10
_MAX_LINE = 128 << 10
# What pip's and uv's RECORD readers accept (packaging.python.org, "Recording installed projects").
_HASHES = {"sha256", "sha384", "sha512"}
_EXTENSION = re.compile(
    r"\.(?:(?P<implementation>cpython|pypy|graalpy)-?(?P<python>\d+t?)[a-z0-9_]*|(?P<stable>abi3t?))"
    r"(?:-(?P<platform>[a-z0-9_]+(?:-[a-z0-9_]+)*))?\.so$"
)
_ABI3T = 15
"""The Python 3 that first imports files called ``.abi3t.so``, or stable ABIs with a platform (PEP 803)."""


@dataclass(kw_only=True)
class Contents:
    """What was gathered of the members: sizes, digests, and the few texts that are looked into."""

    digests: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)

    @functools.cached_property
    def algorithms(self) -> dict[str, str]:
        """The hash algorithm that RECORD uses for each file."""
        with contextlib.suppress(csv.Error):
            return {row[0]: row[1].partition("=")[0] for row in self.record() if len(row) > 1}
        return {}

    def record(self) -> Iterator[list[str]]:
        """Yield the rows of RECORD; csv.Error for what is not readable, or more than a wheel has files."""
        content = next((text for name, text in self.texts.items() if name.endswith(".dist-info/RECORD")), b"")
        lines = io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace", newline="")
        for number, row in enumerate(csv.reader(iter(lambda: lines.readline(_MAX_LINE), ""))):
            if number > MAX_ENTRIES or len(row) > _MAX_COLUMNS:
                raise csv.Error(f"row {number} is one too many, or has too many columns")
            yield row

    def hasher(self, name: str) -> Any:
        """Return a fresh hash object of the algorithm that RECORD names for this file, else SHA-256."""
        algorithm = self.algorithms.get(name, "")
        return hashlib.new(algorithm if algorithm in _HASHES else "sha256")

    def wants_text(self, name: str) -> bool:
        """Return whether the content of this member is needed as a whole."""
        return name == "armllm/build_info.json" or bool(
            re.fullmatch(r"[^/]+\.dist-info/(WHEEL|METADATA|RECORD|entry_points\.txt|variant\.json)", name)
        )

    def text(self, suffix: str) -> str | None:
        """Return the decoded text of the one gathered member that ends so, None when there isn't one."""
        for name, content in self.texts.items():
            if name.endswith(suffix):
                return content.decode("utf-8", "replace")
        return None


_CALLED = {"i686": "i386", "ppc64le": "powerpc64le", "armv7l": "arm"}
"""Machines that CPython's suffixes call otherwise."""


def extension_problem(name: str, machine: str, wheel: FileName | None) -> str | None:
    """Return what is wrong with an extension module's suffix here, None when nothing is."""
    match = _EXTENSION.search(name)
    if match is None or not (match["stable"] or match["platform"]):
        return None
    if match["platform"] and not match["platform"].startswith(_CALLED.get(machine, machine) + "-"):
        return f"the suffix {match[0]} belongs to another machine than the file's {machine}"
    return _of_stable_abi(match[0], wheel) if match["stable"] else _of_one_python(match, wheel)


def _of_one_python(match: re.Match[str], wheel: FileName | None) -> str | None:
    suffix = match[0]
    python = f"cp{match['python']}" if match["implementation"] == "cpython" else None
    if (
        wheel
        and python
        and wheelfile.other_libc(match["platform"], match["python"], (tag.platform for tag in wheel.tags))
    ):
        return f"the suffix {suffix} belongs to another C library than the wheel's tag"
    if wheel and python and not any(tag.interpreter in (python.rstrip("t"), "py3") for tag in wheel.tags):
        interpreters = ", ".join(sorted({tag.interpreter for tag in wheel.tags}))
        return f"the suffix {suffix} belongs to another Python than the wheel's tag {interpreters}"
    if wheel and python and python.endswith("t") != any(tag.abi.endswith("t") for tag in wheel.tags):
        return f"the suffix {suffix} and the wheel's tag disagree on free threading"
    return None


def _of_stable_abi(suffix: str, wheel: FileName | None) -> str | None:
    oldest = min((int(tag.interpreter[3:]) for tag in _cpythons(wheel)), default=_ABI3T)
    if suffix != ".abi3.so" and oldest < _ABI3T:
        return f"Python 3.{oldest} of the wheel's tag does not import {suffix}, 3.{_ABI3T} is the first"
    return None


def _cpythons(wheel: FileName | None) -> list[Tag]:
    """Return the tags that name a CPython 3."""
    return [tag for tag in (wheel.tags if wheel else ()) if re.fullmatch(r"cp3\d+", tag.interpreter)]


def unloadable(wheel: FileName, contents: Contents) -> list[str]:
    """Return the extensions that Pythons of the tag ``abi3t`` do not import."""
    if not any(tag.abi == "abi3t" for tag in wheel.tags):
        return []
    modules: dict[str, set[str]] = {}
    for name in contents.sizes:
        match = _EXTENSION.search(name)
        stem = name[: match.start()] if match else name.removesuffix(".so")
        modules.setdefault(stem, set()).add(match["stable"] if match and match["stable"] else "any")
    return [
        f"{stem}.abi3.so: the tag abi3t is for Pythons without the global lock, which import .abi3t.so"
        for stem, suffixes in sorted(modules.items())
        if suffixes == {"abi3"}
    ]


def check_metadata(wheel: FileName, contents: Contents) -> list[str]:
    """Return what METADATA and WHEEL contradict in the file's name: a renamed wheel is found here."""
    metadata, about = contents.text(".dist-info/METADATA"), contents.text(".dist-info/WHEEL")
    if metadata is None or about is None:
        return ["no .dist-info/METADATA and WHEEL in it: not a wheel"]
    errors = wheelfile.renamings(wheel, metadata, about)
    folders = {entry.partition("/")[0] for entry in contents.sizes if ".dist-info/" in entry}
    if len({folder for folder in folders if folder.endswith(".dist-info")}) > 1:
        errors.append(f"more than one .dist-info folder: {_list(folders)}")
    return errors


def variant_floor(wheel: FileName, contents: Contents) -> tuple[str | None, list[str]]:
    """Return the CPU floor that a wheel variant states (None: it is none) and what is wrong with that."""
    try:
        document = variant.stated(contents.text(f".dist-info/{variant.MEMBER}"), wheel.variant)
    except UsageError as error:
        return None, [str(error)]
    return (variant.floor(document, wheel.variant) if document and wheel.variant else None), []


def tells_baseline(wheel: FileName, baseline: str) -> bool:
    """Return whether the wheel's name states this baseline: by its variant, else by its local version."""
    if wheel.variant is None:
        return key(wheel.version.local or "armv8-a") == key(baseline)
    try:
        return wheel.variant == variant.label(baseline, variant.properties(Isa.from_target(baseline)))
    except IsaError:
        return False


def check_record(contents: Contents) -> list[str]:
    """Return where RECORD and the archive differ: files, hashes, sizes."""
    own = next((name for name in contents.texts if name.endswith(".dist-info/RECORD")), None)
    if own is None:
        return ["no RECORD in it: installers refuse it"]
    errors = []
    listed: set[str] = set()
    signatures = (f"{own}.jws", f"{own}.p7s")  # PEP 427
    try:
        rows = list(contents.record())
    except csv.Error as error:
        return [f"RECORD is not readable: {error}"]
    for row in rows:
        if not row:
            continue
        name, digest, size = (*row, "", "")[:3]
        if name in listed:
            errors.append(f"RECORD lists {name} twice")
        listed.add(name)
        if name not in contents.sizes:
            errors.append(f"RECORD lists {name}, which is not in the wheel")
        elif name != own and name not in signatures:
            errors.extend(_record_row(name, digest, size, contents))
    unlisted = [name for name in contents.sizes if name not in listed and name not in signatures]
    errors.extend(f"{name} is not listed in RECORD" for name in sorted(unlisted))
    return (
        errors
        if len(errors) <= 20
        else [*errors[:20], f"and {len(errors) - 20} more differences from RECORD"]
    )


def _record_row(name: str, digest: str, size: str, contents: Contents) -> list[str]:
    algorithm, _, value = digest.partition("=")
    if algorithm not in _HASHES:
        return [f"RECORD has no usable hash of {name}"]
    if contents.digests.get(name) != value.rstrip("="):
        return [f"{name}: its content does not match its hash in RECORD"]
    if size and size != str(contents.sizes[name]):
        return [f"{name}: RECORD says {size} bytes, it has {contents.sizes[name]}"]
    return []


def encoded(digest: bytes) -> str:
    """Return a digest in RECORD's spelling."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def check_scripts(contents: Contents) -> list[str]:
    """Return which program of entry_points.txt an installer may write outside of its folder of programs."""
    section = ""
    for line in (contents.text(".dist-info/entry_points.txt") or "").splitlines():
        name = line.partition("=")[0].strip()
        if name.startswith("["):
            section = name.strip("[] ").casefold()
        elif not name or name[0] in "#;" or section not in ("console_scripts", "gui_scripts"):
            continue
        elif "/" in name or names.refusal(name):
            return [f"entry_points.txt: {name!r:.200} is no name of a program"]
    return []


def build_info(contents: Contents) -> tuple[dict[str, Any] | None, list[str]]:
    """Return armllm's build_info.json (None: another project's wheel) and what is wrong with it."""
    text = contents.text("armllm/build_info.json")
    if text is None:
        return None, []
    try:
        info = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {}, [f"armllm/build_info.json is not JSON: {error}"]
    wanted = {
        "schema": int,
        "version": str,
        "machine": str,
        "targets": list,
        "baseline": str,
        "compiler": str,
    }
    if not isinstance(info, dict):
        return {}, ["armllm/build_info.json is not an object"]
    wrong = [name for name, kind in wanted.items() if not isinstance(info.get(name), kind)]
    if wrong:
        return info, [f"armllm/build_info.json lacks {_list(wrong)}"]
    return info, []


def _list(items: Any) -> str:
    return ", ".join(sorted(items))
