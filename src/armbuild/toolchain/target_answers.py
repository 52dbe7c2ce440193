"""Answers of the target for a build on this machine: /proc/cpuinfo, `uname`, `ldconfig -p`, `curl-config`."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
from typing import TYPE_CHECKING

import armisa
from armbuild.toolchain.compilers import program
from armisa import tables

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.toolchain.sysroot import Sysroot

CPUINFO = "/proc/cpuinfo"
LOWEST = frozenset({"fp", "asimd", "evtstrm", "cpuid"})
"""What every Armv8.0 core has."""
READERS = ("cat", "grep")
"""Programs by which build scripts read /proc/cpuinfo."""
READER = """\
#!/bin/sh
case " $* " in *" /proc/cpuinfo "*)
  for word do
    shift
    test "$word" != /proc/cpuinfo || word={cpuinfo}
    set -- "$@" "$word"
  done ;;
esac
exec {reader} "$@"
"""
UNAME = """\
#!/bin/sh
# Makefiles choose sources and flags by this name. The system, the host's name, the release and the version,
# which come first, stay as they are.
answer=$({uname} "$@") || exit
first=
for word do
  case $word in
  --a*) first=snrv; break ;;
  --s*|--kernel-n*) first=$first"s" ;;
  --n*) first=$first"n" ;;
  --r*|--kernel-r*) first=$first"r" ;;
  --kernel-v*) first=$first"v" ;;
  --*) ;;
  -*a*) first=snrv; break ;;
  -*) first=$first$(printf %s "$word" | tr -cd snrv) ;;
  esac
done
test -z "$first" || first=$({uname} "-$first")
printf %s "$first"
printf '%s\\n' "${{answer#"$first"}}" | sed 's/{machine}/aarch64/g'
"""
LDCONFIG = """\
#!/bin/sh
# The cache of this machine's loader is not the target's, and is not a build's to change.
case " $* " in *" -p "*|*" --print-cache "*) exec cat {listing} ;; esac
exit 0
"""
PROGRAMS = re.compile(r"(?!(?:[\w.+-]+-)?pkg-config)[\w.+-]+[_-]config(?:[.-][\w.+-]+)?")
"""Programs of libraries that say how to compile with them, such as curl-config; pkg-config is none."""
CONFIG = """\
#!/bin/sh
# The target's own {name}. The folders that it names are in the folder of its packages.
answer=$({run} {script} "$@") || exit
printf '%s\\n' "$answer" | sed -E {below}
"""
SEARCH = """\
found=
IFS=:
for folder in $PATH; do
  test "$folder" = {answers} || test ! -x "$folder/{name}" || {{ found=$folder/{name}; break; }}
done
unset IFS
test -n "$found" || {{ echo "{name}: not found" >&2; exit 127; }}
"""
SWIG = """\
#!/bin/sh
# SWIG reads headers as a compiler does: the target's, where a project names this machine's.
{search}root={root}
for word do
  shift
  case $word in
  -I/usr/include/{machine}-linux-gnu*)
    word=-I$root/usr/include/aarch64-linux-gnu${{word#-I/usr/include/{machine}-linux-gnu}} ;;
  -I/usr/include|-I/usr/include/*) word=-I$root${{word#-I}} ;;
  esac
  set -- "$@" "$word"
done
exec "$found" "$@"
"""
OPEN = """\

import builtins
import io


class _Open:
    \"\"\"open(), but for the file that describes the machine's CPU.\"\"\"

    def __init__(self, original):
        self._original = original

    def __call__(self, file, *arguments, **named):
        if isinstance(file, (str, os.PathLike)) and os.fspath(file) == "/proc/cpuinfo":
            file = {cpuinfo!r}
        return self._original(file, *arguments, **named)

    def __getattr__(self, name):
        return getattr(self._original, name)


builtins.open = io.open = _Open(io.open)
"""
"""The end of a sitecustomize.py. An object, since a function would become a method where a class has it."""


def cpuinfo(baseline: str | None, processors: int) -> str:
    """Return what Linux says on a machine whose cores are all ``baseline``; None: plain Armv8.0.

    Format: arch/arm64/kernel/cpuinfo.c of Linux.
    """
    core = armisa.Isa.from_target(baseline or "cortex-a53")
    stated = core.features if baseline else LOWEST
    order = [name for bits in tables.hwcap_bits().values() for _, name in sorted(bits.items())]
    features = " ".join(name for name in order if name in stated)
    part = core.cores[0] if core.cores else None
    lines = [
        "BogoMIPS\t: 50.00",
        f"Features\t: {features}",
        f"CPU implementer\t: 0x{part.implementer if part else 0x41:02x}",
        "CPU architecture: 8",
        f"CPU variant\t: 0x{part.variant if part else 0:x}",
        f"CPU part\t: 0x{part.part if part else 0xD03:03x}",
        f"CPU revision\t: {part.revision if part else 0}",
    ]
    return "".join("\n".join((f"processor\t: {number}", *lines, "\n")) for number in range(processors))


def write(folder: Path, place: Path, baseline: str | None, system: Sysroot | None, run: Path) -> str:
    """Write programs and files into ``folder``, which moves to ``place``; return code for sitecustomize.py.

    ``system`` has the libraries that ``ldconfig -p`` lists, and programs such as curl-config, which the
    program ``run`` starts.
    """
    (folder / "answers").mkdir()
    (folder / "cpuinfo").write_text(cpuinfo(baseline, os.cpu_count() or 1))
    described = place / "cpuinfo"
    for name in READERS:
        reader = shlex.quote(shutil.which(name) or f"/usr/bin/{name}")
        text = READER.format(cpuinfo=shlex.quote(str(described)), reader=reader)
        program(folder / "answers" / name, text)
    uname = shlex.quote(shutil.which("uname") or "/usr/bin/uname")
    program(folder / "answers/uname", UNAME.format(uname=uname, machine=platform.machine()))
    found = {
        path.name: path
        for libraries in reversed(system.libraries if system else ())
        for path in sorted(libraries.glob("lib*.so*"))
    }
    listing = "".join(f"\t{name} (libc6,AArch64) => {path}\n" for name, path in sorted(found.items()))
    (folder / "libraries").write_text(f"{len(found)} libs found in cache `/etc/ld.so.cache'\n{listing}")
    program(folder / "answers/ldconfig", LDCONFIG.format(listing=shlex.quote(str(place / "libraries"))))
    if system:
        _write_programs(folder / "answers", system, run)
        root, search = shlex.quote(str(system.folder)), search_behind(place / "answers", "swig")
        text = SWIG.format(search=search, root=root, machine=platform.machine())
        program(folder / "answers/swig", text)
    return OPEN.format(cpuinfo=str(described))


def search_behind(answers: Path, name: str) -> str:
    """Return the lines by which a script in ``answers`` finds the program ``name`` of the other folders."""
    return SEARCH.format(answers=shlex.quote(str(answers)), name=name)


def _write_programs(answers: Path, system: Sysroot, run: Path) -> None:
    """Let a build find the programs of libraries that answer for the target."""
    usr = f"{system.folder}/usr".translate({ord(sign): f"\\{sign}" for sign in "\\&#"})
    below = rf"s#(^|[[:space:]=:,]|-[ILR]|-isystem)/usr($|[/[:space:]])#\1{usr}\2#g"
    for path in sorted((system.folder / "usr/bin").glob("*")):
        if PROGRAMS.fullmatch(path.name) and path.is_file():
            text = CONFIG.format(
                name=path.name,
                run=shlex.quote(str(run)),
                script=shlex.quote(str(path)),
                below=shlex.quote(below),
            )
            program(answers / path.name, text)
