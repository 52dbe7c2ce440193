"""Build a wheel a second time, in another folder and at another time, and compare the bytes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from armbuild.artifact import archives
from armbuild.errors import CheckFailed
from armbuild.host import cache
from armbuild.wheel import build, repair, source

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.wheel.repair import RepairedWheel


def check(first: RepairedWheel, work: Path, *, mirror: str | None) -> None:
    """Build what ``first`` was built from again, cold; raises CheckFailed that names the first difference."""
    plan = first.built.plan
    again = work / "again-in-a-folder-with-another-and-longer-name"
    again.mkdir()
    described = plan.project
    copy = source.mirror(
        described.folder, again, leave_out=plan.settings.output, complete=described.origin is not None
    )
    moved = replace(plan, project=replace(described, folder=copy.resolve()), compile_cache=None)
    try:
        built = build.build_wheel(moved, first.built.python, again, mirror=mirror)
        second = repair.repair_wheel(built, again)
    finally:
        folder = cache.root() / "builds" / f"{described.name}-{moved.key(first.built.python)}"
        shutil.rmtree(folder, ignore_errors=True)
    found = difference(first.path, second.path)
    if found:
        raise CheckFailed(f"not reproducible: {found}\n  the two wheels: {first.path} {second.path}")


def difference(one: Path, other: Path) -> str:
    """Return where two wheels differ first; empty when their bytes are equal."""
    if one.name != other.name:
        return f"the names {one.name} and {other.name}"
    if one.read_bytes() == other.read_bytes():
        return ""
    with archives.open_zip(one) as left, archives.open_zip(other) as right:
        names, others = left.namelist(), right.namelist()
        lonely = sorted(set(names) ^ set(others))
        if lonely:
            return f"{lonely[0]} is in one of them only"
        for name in names:
            a, b = left.read(name), right.read(name)
            if a != b and not name.endswith("/RECORD"):
                pairs = enumerate(zip(a, b, strict=False))
                at = next((index for index, (x, y) in pairs if x != y), min(len(a), len(b)))
                return f"{name} differs at byte {at} of {len(a)} ({_around(a, at)} and {_around(b, at)})"
    return "the archives' own fields"


def _around(content: bytes, at: int) -> str:
    return repr(content[max(0, at - 8) : at + 24])[1:]
