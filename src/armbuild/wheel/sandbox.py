"""``--sandbox``: an untrusted build and its tests see the system's programs, what they need, and no network.

Bubblewrap starts them: namespaces, a filter of system calls, and a root that has only what is named here.
What they may write is theirs alone: their sources, what is compiled, and the wheel's folder.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild.errors import BuildError
from armbuild.host import bubblewrap, cache, process, seccomp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

INSTEAD = "build without --sandbox only what you trust as your own programs"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
CONFIGURATION = (
    "alternatives", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf",
    "passwd",
)  # fmt: skip
"""Below /etc: what programs cannot start without. The rest of it may hold keys."""
CACHE_PARTS = (
    "crossenvs", "environments", "headers", "host-clang", "pythons", "qemu", "roots",
    "run-aarch64", "rust", "sysroots", "target-packages", "tools", "torch-stubs",
)  # fmt: skip
"""What builds read. The other parts hold the sources and the objects of other projects."""
PASSED = frozenset({
    "ARCHFLAGS", "CFLAGS", "CMAKE_ARGS", "CMAKE_BUILD_PARALLEL_LEVEL", "CMAKE_GENERATOR", "CPPFLAGS",
    "CXXFLAGS", "FFLAGS", "LANG", "LANGUAGE", "LDFLAGS", "MAKEFLAGS", "MAX_JOBS", "NPY_NUM_BUILD_JOBS",
    "PATH", "TERM", "TZ",
})  # fmt: skip
PASSED_PREFIXES = ("LC_", "SETUPTOOLS_SCM_PRETEND_VERSION", "SKBUILD_")
"""The caller's variables that say how to build; all others may be secrets."""
ANSWER = "output.json"
"""What pyproject_hooks reads of a hook."""
LARGEST_ANSWER = 1 << 20
DEVICES = tuple(Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom", "tty"))
"""What bwrap shows of this machine."""
ENTER = 'filter=$1; shift; exec "$@" 8<"$filter"'
GIT_SETTINGS = r"^(core\.(repositoryformatversion|filemode|bare)|extensions\..*)$"
"""What git must know to read a repository. Its other settings may hold passwords, and name programs."""


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """How programs of one build, or of one wheel's test, are started."""

    bwrap: tuple[str, ...]
    work: Path
    """A private folder for the filter, /tmp, and what is shown in place of the caller's files."""
    devices: tuple[str, ...]
    """Options that show some in place of the machine's."""
    readable: tuple[Path, ...]
    writable: tuple[Path, ...]

    def command(
        self, program: Sequence[str | Path], cwd: Path, *shown: Path, writable: Iterable[Path] = ()
    ) -> list[str]:
        """Return the command line that runs ``program`` in ``cwd``.

        ``shown`` are further files to read, ``writable`` further folders to write.
        """
        for path in self.writable:
            path.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix="sandbox-tmp-", dir=self.work)
        mounts = {Path(path): "--ro-bind" for path in (*self.readable, *shown) if path.exists()}
        mounts |= dict.fromkeys((*self.writable, *writable), "--bind")
        places = [part for path in sorted(mounts) for part in _placed(path, mounts)]
        # PATH begins with folders that untrusted packages filled. And root, although without rights, owns
        # the kernel's settings in /proc.
        return [
            "/bin/sh", "-c", ENTER, "sh", str(self.work / "sandbox-filter"), *self.bwrap,
            *bubblewrap.ISOLATED, "--unshare-net", *_system(), "--proc", "/proc", "--remount-ro", "/proc",
            "--dev", "/dev", *self.devices,
            "--bind", scratch, "/tmp", "--dir", "/tmp/home",  # noqa: S108 - the sandbox's own
            *places, *self._history(), "--remount-ro", "/", "--chdir", str(cwd), "--seccomp", "8", "--",
            *map(str, program),
        ]  # fmt: skip

    def environment(self, variables: Mapping[str, str], own: Iterable[str] = ()) -> dict[str, str]:
        """Return ``variables`` without the caller's that may be secrets; ``own`` are armbuild's names."""
        names = {*own, *(name for name in variables if name in PASSED or name.startswith(PASSED_PREFIXES))}
        private = {"HOME": "/tmp/home", "TMPDIR": "/tmp"}  # noqa: S108 - the sandbox's own
        return {name: variables[name] for name in names if name in variables} | private

    def _history(self) -> list[str]:
        """Return what hides the settings of each repository that is shown."""
        options: list[str] = []
        for path in (path for path in self.readable if (path / "HEAD").is_file()):
            for settings in _git_settings(path):
                plain = self.work / f"sandbox-git-{len(options)}"
                _write_git_settings(settings, plain)
                options += ["--ro-bind", str(plain), str(settings)]
        return options


def make(work: Path, *, readable: Iterable[Path], writable: Iterable[Path], mirror: str | None) -> Sandbox:
    """Return a sandbox that shows ``readable`` and ``writable`` folders beside the system's programs.

    Raises MissingError, with the reason, where this machine has none.
    """
    # a program of the caller with this bit would give his rights to whoever runs it; folders have the group's
    program = seccomp.program(platform.machine(), modes=seccomp.SET_USER)
    bwrap = bubblewrap.find(instead=INSTEAD, mirror=mirror)
    (work / "sandbox-filter").write_bytes(program)
    parts = (cache.root() / name for name in CACHE_PARTS)
    devices = tuple(bubblewrap.devices(DEVICES, work, instead=INSTEAD))
    return Sandbox(
        bwrap=bwrap, work=work, devices=devices, readable=(*parts, *readable), writable=tuple(writable)
    )


def interpreters(*executables: Path) -> Iterator[Path]:
    """Return the folders without which Python ``executables`` do not start, outside of the system's."""
    for executable in executables:
        path = executable
        folders = [path.parent.parent] if (path.parent.parent / "pyvenv.cfg").is_file() else []
        while path.is_symlink():
            if path.parent.parent not in folders:
                yield path
            path = path.parent / path.readlink()
            if (path.parent.parent / "pyvenv.cfg").is_file():
                folders.append(path.parent.parent)
        yield from folders
        for prefix in dict.fromkeys((path.parent.parent, executable.resolve().parent.parent)):
            if not any(prefix.is_relative_to(folder) for folder in SYSTEM) and prefix != Path("/"):
                yield from (prefix / name for name in ("bin", "lib", "lib64", "include"))


def running() -> Iterator[Path]:
    """Return the folders of the interpreter that runs armbuild, which zig's command line is translated by."""
    yield from interpreters(Path(sys.executable))
    yield Path(sys.base_prefix, "lib")


def repository(folder: Path) -> Iterator[Path]:
    """Return where the history of ``folder`` lies, for back ends that read the version there.

    A project in a part of a repository, and one whose files name a repository elsewhere, has none here.
    """
    history = (folder / ".git").resolve()
    if history.is_dir() and history.is_relative_to(folder.resolve()):
        yield history


def check_wheel(path: Path, folder: Path) -> Path:
    """Return ``path`` if it is a file of ``folder`` itself; BuildError for a path that leads elsewhere."""
    if path.parent != folder or path.is_symlink() or not path.is_file():
        raise BuildError(f"the project's build names a wheel that is not in its folder: {path}")
    return path


def check_answer(folder: Path) -> None:
    """Raise BuildError unless the answer of a hook in ``folder`` is a file of its own, of ordinary size.

    It is read outside: a link would lead to a device without end, and a pipe would never answer.
    """
    path = folder / ANSWER
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_ANSWER:
        raise BuildError(f"the project's build gives no answer that can be read ({ANSWER})")


def _placed(path: Path, mounts: Mapping[Path, str]) -> tuple[str, ...]:
    """Return what shows ``path``; an interpreter finds its library from where a link of it leads."""
    if path.is_symlink() and not path.is_dir():
        if not mounts.keys().isdisjoint(path.parents):
            return ()  # its folder is shown, and the link with it
        return ("--symlink", str(path.readlink()), str(path))
    return (mounts[path], str(path), str(path))


def _system() -> list[str]:
    options = []
    for name in SYSTEM:
        if os.path.islink(name):  # noqa: PTH114 - /bin is a link to usr/bin on merged systems
            options += ["--symlink", os.readlink(name), name]  # noqa: PTH115
        else:
            options += ["--ro-bind-try", name, name]
    for name in CONFIGURATION:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return options


def _git_settings(repository: Path) -> Iterator[Path]:
    """Return the settings of a repository, and those of its submodules and work trees."""
    for folder, names, files in os.walk(repository):
        names[:] = [name for name in names if name not in {"objects", "refs", "logs"}]
        for path in (Path(folder, name) for name in files if name.startswith("config")):
            if not path.is_symlink():
                yield path


def _write_git_settings(source: Path, target: Path) -> None:
    git = [*process.GIT, "config", "--no-includes", "--file"]
    found = process.succeeds([*git, source, "--null", "--get-regexp", GIT_SETTINGS]) or ""
    target.write_text("")
    for name, _, value in (entry.partition("\n") for entry in found.split("\0") if entry):
        process.succeeds([*git, target, name, value])
