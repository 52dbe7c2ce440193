"""Where a wheel came from: an in-toto statement with a SLSA provenance predicate, beside the wheel.

Formats: in-toto Attestation Framework v1 and SLSA Provenance v1. ``signature`` signs it.
"""

from __future__ import annotations

import json
import platform
import re
import uuid
from typing import TYPE_CHECKING, Any

import armbuild
from armbuild.artifact import archives
from armbuild.host import cache, process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from armbuild.wheel.inputs import Input
    from armbuild.wheel.repair import RepairedWheel

SUFFIX = ".provenance.json"
MAX_DOCUMENT = 16 << 20
"""Bytes."""
STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"


def write(repaired: RepairedWheel, folder: Path) -> Path:
    """Write the statement of a finished wheel into ``folder`` and return its path."""
    path = folder / (repaired.path.name + SUFFIX)
    path.write_text(json.dumps(statement(repaired), indent=2, sort_keys=True) + "\n")
    return path


def beside(file: Path) -> Path:
    """Return where the statement of a wheel or an image lies."""
    return file.with_name(file.name + SUFFIX)


def content(file: Path) -> bytes:
    """Return the text of an untrusted document; raises ValueError for one that is too large."""
    with file.open("rb") as stream:
        found = stream.read(MAX_DOCUMENT + 1)
    if len(found) > MAX_DOCUMENT:
        raise ValueError(f"larger than {MAX_DOCUMENT >> 20} MiB")
    return found


def read(file: Path) -> Any:
    """Return an untrusted statement as a JSON value; raises one of ``archives.BROKEN`` if it is none.

    Names that stand twice are refused: other readers may take the other one.
    """
    return json.loads(content(file), object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def revision(wheel: Path) -> str | None:
    """Return the commit that ``wheel`` was made of, with "-dirty" after it for changed sources.

    None where no statement about these bytes lies beside it, or its sources were in no repository.
    """
    try:
        document = read(beside(wheel))
        digest = document["subject"][0]["digest"]["sha256"]
        found = commit(document)
    except archives.BROKEN:
        return None
    return found if digest == cache.sha256(wheel) else None


def serial_number(bill: Mapping[str, Any]) -> str:
    """Return the serial number of a bill of materials, which stands for all that it says."""
    nameless = {**bill, "serialNumber": uuid.UUID(int=0).urn}
    return uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(nameless, sort_keys=True)).urn


def commit(document: Mapping[str, Any]) -> str | None:
    """Return the commit that a statement names, as ``revision`` does; LookupError, TypeError for none."""
    source = document["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    found = source.get("digest", {}).get("gitCommit")
    if not re.fullmatch("[0-9a-f]{40}", str(found)):
        return None
    return f"{found}-dirty" if source["annotations"]["uncommitted_changes"] else str(found)


def statement(repaired: RepairedWheel) -> dict[str, Any]:
    """Return the statement as a JSON value."""
    built, plan = repaired.built, repaired.built.plan
    return {
        "_type": STATEMENT,
        "subject": [
            {
                "name": repaired.path.name,
                "digest": {"sha256": cache.sha256(repaired.path)},
            }
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": "https://packaging.python.org/specifications/binary-distribution-format/",
                "externalParameters": {
                    "project": plan.project.name,
                    "python": built.python.version,
                    "lane": plan.lane,
                    "toolchain": plan.toolchain if plan.lane == "cross" else None,
                    "platform": plan.settings.platform,
                    "glibc": plan.glibc,
                    "kernels": list(plan.targets),
                    "baseline": plan.baseline,
                    "flags": list(plan.flags),
                    "config_settings": [f"{name}={value}" for name, value in plan.config_settings],
                    "packages": list(plan.packages),
                    "env": [f"{name}={value}" for name, value in plan.variables],
                    "build_requires": list(plan.settings.build_requires),
                    "source_date_epoch": plan.epoch,
                },
                "internalParameters": {"backend": plan.project.backend, "defines": plan.defines()},
                "resolvedDependencies": [
                    _source(repaired),
                    *_added(plan.patches, "patch"),
                    *_added(plan.sources, "fetched source"),
                    *(
                        {"uri": f"pkg:pypi/{name}@{release}", "name": name}
                        for name, release in sorted(built.tools.items())
                    ),
                    {"name": "compiler", "annotations": {"version": built.compiler}},
                ],
            },
            "runDetails": {
                "builder": {
                    "id": "pkg:pypi/armllm",
                    "version": {"armbuild": armbuild.version(), "python": platform.python_version()},
                },
            },
        },
    }


def _added(found: Iterable[Input], kind: str) -> Iterator[dict[str, Any]]:
    for item in found:
        annotations = {"kind": kind}
        yield {
            "name": item.name,
            "uri": item.path.name,
            "digest": dict(item.digest),
            "annotations": annotations,
        }


def _without_filters(git: Sequence[str | Path]) -> list[str]:
    """Return variables that empty the filters of a repository's own settings, which are programs to run."""
    found = process.succeeds([*git, "config", "--null", "--show-scope", "--get-regexp", r"^filter\."]) or ""
    fields = found.split("\0")
    names = [
        entry.partition("\n")[0]
        for scope, entry in zip(fields[::2], fields[1::2], strict=False)
        if scope not in {"system", "global"}
    ]
    pairs = [
        variable
        for number, name in enumerate(names)
        for variable in (f"GIT_CONFIG_KEY_{number}={name}", f"GIT_CONFIG_VALUE_{number}=")
    ]
    return [f"GIT_CONFIG_COUNT={len(names)}", *pairs]


def _source(repaired: RepairedWheel) -> dict[str, Any]:
    described = repaired.built.plan.project
    if described.origin:
        uri = described.origin.uri
        return {"name": "source", "uri": uri, "digest": {"sha256": described.origin.sha256}}
    folder = described.unpatched or described.folder
    git: list[str | Path] = [*process.GIT, "-C", folder]
    commit = process.succeeds([*git, "rev-parse", "HEAD"])
    if commit is None:
        return {"name": "source", "uri": folder.as_uri()}
    remote = process.succeeds([*git, "config", "--get", "remote.origin.url"])
    if remote:
        remote = re.sub(r"(?<=://)[^/@]*@", "", remote)  # CI systems clone with a token there
    unfiltered = ["env", *_without_filters(git)]
    question = ["status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty"]
    changed = process.succeeds([*unfiltered, *git, *question])
    return {
        "name": "source",
        "uri": f"git+{remote}" if remote else folder.as_uri(),
        "digest": {"gitCommit": commit},
        "annotations": {"uncommitted_changes": bool(changed)},
    }
