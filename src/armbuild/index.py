"""A static package index: PEP 503 pages, PEP 691 JSON and PEP 658 metadata, for any web server."""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import os
import re
import shutil
import urllib.parse
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from armbuild.artifact import archives, variant, wheelfile
from armbuild.errors import UsageError
from armbuild.host import cache, outputs
from armbuild.wheel import provenance, smoke

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

STATE = "armbuild-index.json"
CHANNELS = ("latest", "nightly")
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="pypi:repository-version" content="1.1">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One wheel of the index."""

    filename: str
    name: str
    """Normalized."""
    version: str
    sha256: str
    size: int
    """Bytes."""
    requires_python: str
    metadata_sha256: str
    commit: str
    """The source commit, empty where nothing says it."""
    variant: str
    """The label of a raised baseline, such as "neoverse.v1"; empty: runs everywhere."""
    kernels: tuple[str, ...] = ()
    properties: dict[str, Any] | None = None
    """The ``variant.json`` of a wheel variant."""


@dataclass(frozen=True, kw_only=True)
class Added:
    """What ``add`` did."""

    folder: Path
    new: tuple[str, ...]
    known: tuple[str, ...]
    """Files that were there already, with the same bytes."""
    total: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return {
            "schema": 1,
            "ok": True,
            **asdict(self),
            "folder": str(self.folder),
            "simple": (self.folder / "simple").absolute().as_uri() + "/",
        }


def add(folder: Path, paths: Sequence[Path], *, commit: str = "", channels: Iterable[str] = ()) -> Added:
    """Take wheels into the index in ``folder`` and write its pages again; what was there stays.

    ``commit`` stands for wheels without a provenance file beside them; ``channels`` (CHANNELS) then point to
    the commit of the last wheel. Two writers take turns. Raises UsageError for what is no intact wheel, for
    a file name that is there with other bytes, and for a channel without a commit; then nothing has changed.
    """
    if commit and not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise UsageError(f"--commit {commit}: not a commit (7 to 64 hexadecimal digits)")
    entries = [_describe(path, commit) for path in paths]
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    with cache.lock(folder / "armbuild-index"):
        for left in folder.rglob(f"{outputs.SCRATCH}????????"):  # by a killed writer: the lock is ours
            left.unlink()
        state = _load(folder)
        known = {entry.filename: entry for entry in state.entries}
        for entry in entries:
            there = known.get(entry.filename)
            if there and there.sha256 != entry.sha256:
                raise UsageError(
                    f"{entry.filename}: the index has this file with other bytes; "
                    "installers keep what they have seen: give the wheel another version or build number"
                )
        for channel in channels:
            if not entries or not entries[-1].commit:
                raise UsageError(f"--channel {channel}: no wheel with a known commit: use --commit")
            state.channels[channel] = entries[-1].commit
        _variants([*state.entries, *entries])
        with contextlib.ExitStack() as undo:
            for path, entry in zip(paths, entries, strict=True):
                if entry.filename not in known:
                    _store(folder, path, entry, undo)
                    known[entry.filename] = entry
            undo.pop_all()  # all are there: pages may name them
        state.entries[:] = sorted(known.values(), key=lambda entry: (entry.name, entry.filename))
        _write_pages(folder, state)
        _write(folder / STATE, _dump(state))
    names = [entry.filename for entry in entries]
    return Added(
        folder=folder,
        new=tuple(name for name in names if name not in state.before),
        known=tuple(name for name in names if name in state.before),
        total=len(state.entries),
    )


@dataclass(kw_only=True)
class _State:
    entries: list[Entry]
    channels: dict[str, str]
    before: frozenset[str]
    """File names that were in the index when it was read."""


def _load(folder: Path) -> _State:
    path = folder / STATE
    if not path.exists():
        return _State(entries=[], channels={}, before=frozenset())
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        entries = [Entry(**{**item, "kernels": tuple(item["kernels"])}) for item in stored["files"]]
        channels = dict(stored["channels"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not the state of an index written by armbuild: {error}") from error
    return _State(entries=entries, channels=channels, before=frozenset(entry.filename for entry in entries))


def _dump(state: _State) -> str:
    document = {"schema": 1, "channels": state.channels, "files": [asdict(entry) for entry in state.entries]}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _describe(path: Path, commit: str) -> Entry:
    wheel = wheelfile.read(path)
    if not re.fullmatch(r"[A-Za-z0-9_.+!-]+", path.name):
        raise UsageError(f"{path.name!r}: a wheel's name has letters, digits and . _ + ! - only (PEP 427)")
    label = variant.split(path.name)[1] or Version(wheel.version).local or ""
    metadata = _metadata(path)
    found = re.search(r"(?m)^Requires-Python: *(\S.*)$", metadata.decode("utf-8", errors="replace"))
    return Entry(
        filename=path.name,
        name=canonicalize_name(wheel.name),
        version=wheel.version,
        sha256=cache.sha256(path),
        size=path.stat().st_size,
        requires_python=found[1].rstrip() if found else "",
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        commit=_commit_of(path) or commit,
        variant=label,
        kernels=tuple(sorted(smoke.kernel_targets(path) or ())),
        properties=wheel.variant,
    )


def _metadata(path: Path) -> bytes:
    with archives.open_zip(path) as archive:
        member = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        return archives.read_text(archive, member)


def _commit_of(path: Path) -> str:
    try:
        definition = provenance.read(provenance.beside(path))["predicate"]["buildDefinition"]
        commit: str = definition["resolvedDependencies"][0]["digest"]["gitCommit"]
    except archives.BROKEN:
        return ""
    return commit if isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{7,64}", commit) else ""


def _store(folder: Path, path: Path, entry: Entry, undo: contextlib.ExitStack) -> None:
    place = folder / "files" / entry.name
    place.mkdir(parents=True, exist_ok=True)
    metadata = place / f"{entry.filename}.metadata"
    undo.callback(metadata.unlink, missing_ok=True)
    _write(metadata, _metadata(path))
    for source in (provenance.beside(path), path):
        if source.is_file():
            undo.callback((place / source.name).unlink, missing_ok=True)
            _copy(source, place / source.name)


def _variants(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """Return PEP 825's index-level metadata: file name -> content; raises UsageError for contradictions."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.properties:
            found.setdefault(_variants_name(entry), []).append(entry)
    return {
        name: variant.combine(name, (entry.properties for entry in own if entry.properties))
        for name, own in found.items()
    }


def _variants_name(entry: Entry) -> str:
    return f"{entry.name.replace('-', '_')}-{entry.version}-variants.json"


def _write_pages(folder: Path, state: _State) -> None:
    """Write the whole index, one sub-index for each commit and variant, the channels, and the first page."""
    for name, document in _variants(state.entries).items():
        place = canonicalize_name(name.partition("-")[0])
        _write(folder / "files" / place / name, variant.dump(document))
    views = {"": state.entries}
    for entry in state.entries:
        if entry.commit:
            views.setdefault(f"commit/{entry.commit}", []).append(entry)
        if entry.variant:
            views.setdefault(f"variant/{entry.variant}", []).append(entry)
    for view, entries in views.items():
        _write_simple(folder / view, entries, "../" * (view.count("/") + 1 if view else 0))
    for channel, commit in state.channels.items():
        scratch = folder / f".{channel}-{os.getpid()}"
        scratch.symlink_to(f"commit/{commit}", target_is_directory=True)
        scratch.replace(folder / channel)
    _write(folder / "index.html", _first_page(state, sorted(view for view in views if view)))


def _write_simple(place: Path, entries: Sequence[Entry], up: str) -> None:
    names = sorted({entry.name for entry in entries})
    links = "\n".join(_anchor(f"{name}/", name) + "<br>" for name in names)
    _write(place / "simple/index.html", PAGE.format(title="Simple index", body=links))
    listed = {"meta": {"api-version": "1.1"}, "projects": [{"name": name} for name in names]}
    _write(place / "simple/index.json", json.dumps(listed, indent=1) + "\n")
    for name in names:
        own = [entry for entry in entries if entry.name == name]
        base = f"../../{up}files/{name}/"
        variants = sorted({_variants_name(entry) for entry in own if entry.properties})
        lines = [_link(entry, base) for entry in own]
        lines += [_anchor(base + _quoted(file), file) + "<br>" for file in variants]
        body = "\n".join(lines)
        page = PAGE.format(title=f"Links for {html.escape(name)}", body=body)
        _write(place / f"simple/{name}/index.html", page)
        _write(
            place / f"simple/{name}/index.json",
            json.dumps(_project(name, own, base, variants), indent=1) + "\n",
        )


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="/!")


def _anchor(address: str, text: str, attributes: str = "") -> str:
    """Return a link; ``attributes`` are markup."""
    return f'<a href="{html.escape(address)}"{attributes}>{html.escape(text)}</a>'


def _link(entry: Entry, base: str) -> str:
    address = f"{base}{_quoted(entry.filename)}#sha256={entry.sha256}"
    digest = f"sha256={entry.metadata_sha256}"
    attributes = f' data-core-metadata="{digest}" data-dist-info-metadata="{digest}"'
    if entry.requires_python:
        attributes += f' data-requires-python="{html.escape(entry.requires_python)}"'
    return _anchor(address, entry.filename, attributes) + "<br>"


def _project(name: str, entries: Sequence[Entry], base: str, variants: Sequence[str]) -> dict[str, Any]:
    # what lists the variants changes with every new one: no hash, as PEP 825 allows
    listed = [{"filename": file, "url": base + _quoted(file), "hashes": {}} for file in variants]
    return {
        "meta": {"api-version": "1.1"},
        "name": name,
        "versions": sorted({entry.version for entry in entries}, key=Version),
        "files": [
            {
                "filename": entry.filename,
                "url": base + _quoted(entry.filename),
                "hashes": {"sha256": entry.sha256},
                "size": entry.size,
                "core-metadata": {"sha256": entry.metadata_sha256},
                **({"requires-python": entry.requires_python} if entry.requires_python else {}),
            }
            for entry in entries
        ]
        + listed,
    }


def _first_page(state: _State, views: Sequence[str]) -> str:
    how = (
        "<p>Install with <code>pip install --index-url ADDRESS/simple/ NAME</code> or "
        "<code>uv pip install --index ADDRESS/simple/ NAME</code>, where ADDRESS is this page's folder "
        "or one of those below.</p>"
    )
    rows = [how, "<h2>Wheels</h2>", "<table><tr><th>file<th>MB<th>kernels<th>commit<th>sha256</tr>"]
    rows += [
        f"<tr><td>{_anchor(f'files/{entry.name}/{_quoted(entry.filename)}', entry.filename)}"
        f"<td>{entry.size / 1e6:.2f}<td>{html.escape(', '.join(entry.kernels)) or '-'}"
        f"<td>{html.escape(entry.commit[:12]) or '-'}<td><code>{html.escape(entry.sha256[:16])}</code></tr>"
        for entry in state.entries
    ]
    rows.append("</table>")
    if views:
        rows.append("<h2>Parts of it</h2><ul>")
        rows += [f"<li>{_anchor(f'{view}/simple/', view)}</li>" for view in views]
        rows += [
            f"<li>{_anchor(f'{channel}/simple/', channel)}: commit {html.escape(commit[:12])}</li>"
            for channel, commit in sorted(state.channels.items())
        ]
        rows.append("</ul>")
    return PAGE.format(title="Python packages", body="\n".join(rows))


def _write(path: Path, text: str | bytes) -> None:
    """Write a file in one rename, if it changes: readers see the old page or the new one."""
    content = text.encode() if isinstance(text, str) else text
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    outputs.replace_file(path, lambda sink: sink.write(content))


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as file:
        outputs.replace_file(target, lambda sink: shutil.copyfileobj(file, sink, 1 << 20))
