"""The interpreters of this machine: which Python versions a wheel can be built for here."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from armbuild.errors import MissingError, UsageError
from armbuild.host import cache, process

SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14")
FREE_THREADED = ("3.14t",)
"""Builds without the global lock (PEP 703), under the name of their program; 3.13's was an experiment."""
NEXT = ("3.15", "3.15t")
"""Built for when named; `--python all` leaves them out while packages for them are few."""
KNOWN = SUPPORTED + FREE_THREADED + NEXT

PROBE = """\
import importlib.util, json, os, pathlib, sys, sysconfig
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
include = sysconfig.get_path("include")
folder, name = os.path.split(include)
own = os.path.join(include, "pyconfig.h")
arm = os.path.join(folder, "aarch64-linux-gnu", name, "pyconfig.h")
found = os.path.isfile(os.path.join(include, "Python.h")) and os.path.isfile(own)
# Debian's pyconfig.h includes the one of the machine compiled for, which is there only on that machine.
usable = found and ("<aarch64-linux-gnu/" not in pathlib.Path(own).read_text() or os.path.isfile(arm))
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2] + ("t" if free else ""),
    "executable": os.path.abspath(sys.executable),
    "include": include if usable else None,
    "magic": importlib.util.MAGIC_NUMBER.hex(),
    "implementation": sys.implementation.name,
}))
"""


@dataclass(frozen=True, kw_only=True)
class HostPython:
    """An interpreter that runs on this machine; build back ends run with it."""

    version: str
    """Such as "3.11", or "3.14t"."""
    executable: Path
    include: Path | None
    """The folder with a Python.h that serves AArch64, None where there is none."""
    magic: str
    """The bytecode's magic number in hex; files compiled under it serve every interpreter that shares it."""


def running() -> str:
    """Return the version of the interpreter that runs this."""
    free = sysconfig.get_config_var("Py_GIL_DISABLED")
    return "{}.{}{}".format(*sys.version_info[:2], "t" if free else "")


def number(version: str) -> str:
    """Return the language version of a build: "3.14" for "3.14t"."""
    return version.removesuffix("t")


def tags(version: str) -> str:
    """Return the interpreter and ABI tag of an extension built for ``version``: "cp314-cp314t"."""
    digits = version.replace(".", "")
    return f"cp{number(digits)}-cp{digits}"


def obtain(version: str, *, mirror: str | None = None) -> HostPython:
    """Return this machine's CPython ``version``, else one fetched into the cache: Debian's, else uv's.

    Raises MissingError with the reasons when neither has it.
    """
    from armbuild.host import fetched_pythons  # noqa: PLC0415 - which uses this module

    try:
        return find(version)
    except MissingError:
        return fetched_pythons.fetch(version, mirror=mirror)


def find(version: str | None = None) -> HostPython:
    """Return this machine's CPython ``version`` ("3.11"; default: the running one).

    Looks at the running interpreter, ``pythonX.Y`` on PATH that really runs, pyenv's and uv's own. Raises
    UsageError for what is no supported version, MissingError when the machine has none.
    """
    wanted = running() if version is None else version
    if wanted not in KNOWN:
        hint = ""
        digits = re.fullmatch(r"(?:cp|py|python)?-?3\.?(\d{1,2})(?:\.\d+)?(t?)", wanted)
        if digits and f"3.{digits[1]}{digits[2]}" in KNOWN:
            hint = f"; say 3.{digits[1]}{digits[2]}"
        raise UsageError(f"--python {wanted}: not a supported version (3.10 to 3.15, 3.14t, 3.15t){hint}")
    if wanted == running():
        own = _describe(_ask_itself())
        if own:
            return own
    for candidate in _candidates(wanted):
        found = probe(candidate)
        if found and found.version == wanted:
            return found
    raise MissingError(
        f"no Python {wanted} on this machine: `uv python install {wanted}` or the distribution brings it"
    )


def find_or_none(version: str) -> HostPython | None:
    """Return this machine's CPython ``version``, None where there is none."""
    try:
        return find(version)
    except (MissingError, UsageError):
        return None


def probe(executable: Path) -> HostPython | None:
    """Ask an interpreter who it is; None when it does not run or is no CPython."""
    answer = process.succeeds([executable, "-I", "-c", PROBE])
    return _describe(answer) if answer else None


def _ask_itself() -> str:
    """Let the running interpreter answer the probe, without a second process."""
    answer = io.StringIO()
    with contextlib.redirect_stdout(answer):
        exec(PROBE, {})  # noqa: S102 - the constant above
    return answer.getvalue()


def _describe(answer: str) -> HostPython | None:
    try:
        facts = json.loads(answer)
    except ValueError:
        return None
    if facts["implementation"] != "cpython":
        return None
    return HostPython(
        version=facts["version"],
        executable=Path(facts["executable"]),
        include=Path(facts["include"]) if facts["include"] else None,
        magic=facts["magic"],
    )


def _candidates(version: str) -> list[Path]:
    name, release = f"python{version}", f"{number(version)}.*"
    found = [Path(folder) / name for folder in os.get_exec_path() if (Path(folder) / name).is_file()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found += sorted(pyenv.glob(f"versions/{release}/bin/{name}"), reverse=True)
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    managed = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python")
    found += sorted(managed.glob(f"cpython-{release}/bin/{name}"), reverse=True)
    fetched = cache.root().glob(f"pythons/*-{version}/usr/bin/armbuild-{name}")
    return [*found, *sorted(map(cache.use, fetched))]


def tool(name: str) -> Path | None:
    """Return a program of this interpreter's own environment (it need not be activated), else of PATH."""
    beside = Path(sys.executable).with_name(name)
    if beside.is_file() and os.access(beside, os.X_OK):
        return beside
    found = shutil.which(name)
    return Path(found) if found else None
