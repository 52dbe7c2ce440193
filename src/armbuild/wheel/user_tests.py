"""Tests that a user names for any wheel: modules to import, a command to run, on each CPU."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from armbuild.artifact import wheelfile
from armbuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

IMPORT = """\
import importlib, pathlib, sys
folder, *names = sys.argv[1:]
for name in names:
    module = importlib.import_module(name)
    places = [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", []))
    if not any(pathlib.Path(place).is_relative_to(folder) for place in places):
        where = (places or ["the interpreter"])[0]
        sys.exit(f"{name} is not part of the wheel: it was imported from {where}")
print("imported " + ", ".join(names))
"""


@dataclass(frozen=True, kw_only=True)
class UserTests:
    """What to do with an installed wheel; at least one of ``imports`` and ``command``."""

    imports: tuple[str, ...] = ()
    """Modules that must be importable, from the wheel itself."""
    command: str = ""
    """A program of the installed packages with its arguments, such as ``pytest --pyargs thing``."""
    requires: tuple[str, ...] = ()
    """Requirements of the tests, installed beside the wheel."""
    project: Path | None = None
    """What ``{project}`` in ``command`` stands for."""
    sandbox: bool = False
    """Whether the wheel's code sees no network, and writes only into the test's own folder."""

    def __bool__(self) -> bool:
        return bool(self.imports or self.command)

    def arguments(self) -> list[str]:
        """Return the command's words; raises UsageError for quotes that don't close and a lone {project}."""
        try:
            arguments = shlex.split(self.command)
        except ValueError as error:
            raise UsageError(f"--command {self.command}: {error}") from error
        if any("{project}" in word for word in arguments) and self.project is None:
            raise UsageError("--command: {project} stands for nothing here: name the folder itself")
        return [word.replace("{project}", str(self.project)) for word in arguments]

    def check(self) -> None:
        """Raise UsageError for what cannot be meant."""
        for name in self.imports:
            if not all(part.isidentifier() for part in name.split(".")):
                raise UsageError(f"--import {name}: not a module's name")
        if self.requires and not self:
            raise UsageError("--requires names what --import or --command needs; there is neither")
        for line in self.requires:
            _check_requirement(line)
        self.arguments()

    def labels(self) -> tuple[str, ...]:
        """Return what is run, for the report."""
        return (*(f"import {name}" for name in self.imports), *([self.command] if self.command else []))


def _check_requirement(line: str) -> None:
    """Refuse before a build what uv would refuse after it; uv takes folders, files and addresses too."""
    if Path(line).exists() or "://" in line:
        return
    try:
        Requirement(line)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"--requires {line}: not a requirement such as pytest>=8 ({reason})") from error


def programs(
    folder: Path, interpreter: Sequence[str | Path], emulator: Sequence[str | Path], sites: Sequence[Path]
) -> None:
    """Write into ``folder`` a ``python`` and every script and program that ``sites``/bin hold.

    ``interpreter`` runs Python, ``emulator`` other programs of the target. Programs that start others, with
    ``sys.executable`` too, find these, so that no AArch64 file is handed to this machine's kernel.
    """
    folder.mkdir(parents=True)
    own = folder / "python"
    _program(own, [*interpreter], argument_zero=own if emulator else None)
    for name in ("python3", "python" + str(interpreter[-1]).rpartition("python")[2]):
        if not (folder / name).exists():
            (folder / name).symlink_to("python")
    for site in sites:
        for script in sorted((site / "bin").glob("*")):
            if (folder / script.name).exists() or not os.access(script, os.X_OK) or not script.is_file():
                continue
            with script.open("rb") as file:
                head = file.read(64)
            if head.startswith(b"\x7fELF"):
                if wheelfile.elf_machine(head) == "aarch64":
                    _program(folder / script.name, [*emulator, script])
            elif head.startswith(b"#!") and b"python" in head.split(b"\n")[0] + script.read_bytes()[:200]:
                _program(folder / script.name, [own, script])


def _program(path: Path, arguments: Sequence[str | Path], argument_zero: Path | None = None) -> None:
    parts = [str(word) for word in arguments]
    if argument_zero:  # QEMU's -0: Python takes sys.executable from it
        parts[-1:-1] = ["-0", str(argument_zero)]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(parts)} "$@"\n')
    path.chmod(0o755)


def script(tests: UserTests, folder: Path, own: Path) -> Path:
    """Write the shell script that runs ``tests`` with the programs in ``folder``; ``own`` holds the wheel.

    Raises UsageError for a command that the installed packages do not bring.
    """
    lines = ["#!/bin/sh", "set -e"]
    if tests.imports:
        check = folder.parent / f"import-{folder.name}.py"
        check.write_text(IMPORT)
        lines.append(shlex.join([str(folder / "python"), str(check), str(own), *tests.imports]))
    if arguments := tests.arguments():
        program = folder / arguments[0]
        if not program.exists():
            raise UsageError(
                f"--command {arguments[0]}: none of the installed packages brings this program; "
                f"is it missing from --requires?"
            )
        lines.append("exec " + shlex.join([str(program), *arguments[1:]]))
    path = folder.parent / f"run-{folder.name}.sh"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return path
