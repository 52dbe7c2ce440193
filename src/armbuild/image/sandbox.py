"""A container runtime's work in little: a program inside an unpacked image, read-only, as the image's user.

User and mount namespaces (user_namespaces(7)) take no root rights. Where they are not allowed, an emulator
alone maps paths into the image, and the program runs as the caller.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from armbuild.errors import MissingError
from armbuild.host import process
from armbuild.image import unpack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EMULATOR = "qemu-aarch64"
INITS = ("tini", "tini-static", "dumb-init", "catatonit")
# The image is mounted over itself to be made read-only; /proc, /dev and /sys are this machine's, /tmp is new.
ENTER = " && ".join(
    (
        "root=$1 user=$2 group=$3",
        "shift 3",
        'mount --bind "$root" "$root"',
        'mount -o remount,ro,bind "$root"',
        *(f'mount --rbind /{name} "$root/{name}"' for name in ("proc", "dev", "sys")),
        'mount -t tmpfs tmpfs "$root/tmp"',
        'exec unshare --user --map-user="$user" --map-group="$group" --root="$root" --wd=/ "$@"',
    )
)


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """How programs of one unpacked image are started."""

    root: Path
    user: int
    group: int
    emulator: Path | None
    """None on the image's own machine."""
    isolated: bool
    """Whether namespaces are used; False: paths alone, as the caller."""

    def describe(self) -> str:
        """Return in a few words what surrounds the program."""
        if self.isolated:
            return f"as user {self.user}, read-only, in namespaces"
        return "as the caller: this machine allows no user namespaces"

    def command(
        self, program: Sequence[str], environment: Mapping[str, str], cpu: str | None
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment that run the image's ``program`` on a QEMU ``cpu``.

        An init in front is left out under emulation: it would start a program that this machine cannot run.
        An emulator starts no scripts, so that their interpreter is named in front of them.
        """
        words = list(program)
        if self.emulator is None:
            return [*self._enter(), *words], dict(environment)
        words = _machine_code(self.root, without_init(words), environment)
        # -E keeps a variable from the programs that start QEMU, but would cut its value at each comma
        outer = {name: value for name, value in environment.items() if "," in value}
        inner = [f"{name}={value}" for name, value in environment.items() if name not in outer]
        variables = [part for variable in inner for part in ("-E", variable)]
        options = [*(("-cpu", cpu) if cpu else ()), *variables]
        if self.isolated:
            return [*self._enter(), f"/{EMULATOR}", *options, *words], {
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                **outer,
            }
        inside = str(self.root / words[0].lstrip("/"))
        return [str(self.emulator), "-L", str(self.root), *options, inside, *words[1:]], outer

    def _enter(self) -> list[str]:
        outer = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ENTER, "sh"]
        return [*outer, str(self.root), str(self.user), str(self.group)]


def make(root: Path, user: str, emulator: Path | None) -> Sandbox:
    """Return how to start programs in ``root`` as ``user`` ("10001:10001" or a name of its /etc/passwd).

    Raises MissingError on the image's own machine when that allows no user namespaces.
    """
    for name in ("proc", "dev", "sys", "tmp"):
        (root / name).mkdir(exist_ok=True)
    if emulator:
        shutil.copyfile(emulator, root / EMULATOR)
        (root / EMULATOR).chmod(0o755)
    number, group = _ids(root, user)
    sandbox = Sandbox(root=root, user=number, group=group, emulator=emulator, isolated=True)
    question = [f"/{EMULATOR}", "--version"] if emulator else ["/proc/self/exe", "--version"]
    if process.succeeds([*sandbox._enter(), *question]) is not None:  # noqa: SLF001 - its own class
        return sandbox
    if emulator is None:
        raise MissingError("this machine allows no user namespaces: run the image with a container engine")
    return Sandbox(root=root, user=number, group=group, emulator=emulator, isolated=False)


def without_init(words: list[str]) -> list[str]:
    """Return a command line without the init (tini and its like) in front."""
    if words and PurePosixPath(words[0]).name in INITS:
        rest = words[1:]
        if "--" in rest:
            return rest[rest.index("--") + 1 :]
        return [
            word
            for index, word in enumerate(rest)
            if not all(item.startswith("-") for item in rest[: index + 1])
        ]
    return words


def find(root: Path, name: str, environment: Mapping[str, str]) -> PurePosixPath | None:
    """Return where a program lies in the image, as seen from inside; None when it is not there."""
    folders = ["/"] if "/" in name else environment.get("PATH", "").split(":")
    places = [PurePosixPath(folder, name) for folder in folders]
    return next((place for place in places if unpack.inside(root, place).is_file()), None)


def _machine_code(root: Path, words: list[str], environment: Mapping[str, str]) -> list[str]:
    place = find(root, words[0], environment)
    if place is None:
        return words
    with unpack.inside(root, place).open("rb") as program:
        first = program.readline(256)
    interpreter = (
        first[2:].decode(errors="replace").strip().split(maxsplit=1) if first.startswith(b"#!") else []
    )
    return [*interpreter, str(place), *words[1:]]


def _ids(root: Path, user: str) -> tuple[int, int]:
    name, _, group = user.partition(":")
    entries = {}
    passwd = root / "etc/passwd"
    if passwd.is_file():
        for line in passwd.read_text(errors="replace").splitlines():
            fields = line.split(":")
            if len(fields) > 3 and fields[2].isdecimal() and fields[3].isdecimal():
                entries[fields[0]] = (int(fields[2]), int(fields[3]))
                entries.setdefault(fields[2], (int(fields[2]), int(fields[3])))
    number, own = entries.get(name or "root", (int(name) if name.isdecimal() else 0, 0))
    return number, int(group) if group.isdecimal() else own
