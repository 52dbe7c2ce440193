"""Which interpreters a project's wheels are built with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armbuild.errors import MissingError, UsageError
from armbuild.host import pythons
from armbuild.host.pythons import HostPython

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from armbuild.wheel.project import Project


def find_interpreters(
    described: Project, asked: Sequence[str], find: Callable[[str], HostPython]
) -> tuple[tuple[HostPython, ...], tuple[tuple[str, str], ...]]:
    """Return the interpreters to build with and, for ``all``, the missing ones with the reason."""
    if "all" not in asked:
        named = tuple(map(find, dict.fromkeys(asked))) or (find(pythons.running()),)
        for version in (python.version for python in named):
            if not described.supports(version):
                raise UsageError(
                    f"--python {version}: {described.name} needs Python {described.requires_python}"
                )
        return named, ()
    if len(set(asked)) > 1:
        raise UsageError("--python all is every version already: name no other beside it")
    found, missing = list[HostPython](), []
    for version in described.pythons:
        try:
            found.append(find(version))
        except MissingError as error:  # noqa: PERF203 - a handful, each tried
            missing.append((version, str(error).splitlines()[0]))
    if not found and not missing:
        raise UsageError(
            f"--python all: {described.name} needs Python {described.requires_python}: none fits"
        )
    if not found:
        raise MissingError(f"--python all: {described.name} can be built for none here: {missing[0][1]}")
    return tuple(found), tuple(missing)
