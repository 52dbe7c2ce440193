"""Rust for AArch64 on any machine: cargo, rustc and the target's standard library, all of one version.

The user's own toolchain serves where it has the target's standard library (``rustup target add``). Otherwise
Debian's packages are unpacked into the cache. The settings of cargo: https://doc.rust-lang.org/cargo/reference/config.html,
and for PyO3 https://pyo3.rs/main/building-and-distribution.html#cross-compiling.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild.errors import MissingError
from armbuild.host import cache, process
from armbuild.host.fetched_pythons import MACHINES
from armbuild.target import deb_files, debian
from armbuild.toolchain import compilers, zig_driver
from armbuild.toolchain.compile_cache import LAUNCHER
from armbuild.toolchain.compilers import program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

TARGET = "aarch64-unknown-linux-gnu"
SUITE = "bookworm-security"
"""Where Debian keeps the newest Rust (rustc-web) of a stable release."""
PACKAGES = ("rustc-web", "cargo-web", "libstd-rust-web-dev")
HOST_GLIBC = "2.28"
"""What build scripts and procedural macros are linked for: they run here, and in Debian's rustc."""
STATIC = (("std", "Rust's standard library"),)
"""What rustc links into every shared object."""
ELSEWHERE = frozenset({"libc-dev", "libc6-dev"})
"""What Debian's rustc depends on for a compiler of C, which is zig here."""
FEATURES = {
    "fullfp16": "fp16",
    "fp16fml": "fhm",
    "rcpc_immo": "rcpc2",
    "complxnum": "fcma",
    "altnzcv": "flagm2",
    "fptoint": "frintts",
    "pauth": "paca,+pacg",
}
"""zig's names of features that rustc spells in another way (`rustc --print target-features`)."""
START = """\
#!/bin/sh
# Debian's {name}, with the C library that it was made for.
export CARGO={cargo}
exec {loader} --library-path {libraries} --argv0 "$0" {program} "$@"
"""
WRAPPER = """\
#!/bin/sh
# cargo calls this with rustc and its arguments (RUSTC_WRAPPER). A compile cache sees the whole command line.
# sccache's server keeps the variables of its first caller, and would call itself through the linker.
kind=host
case " $* " in
*" --target {target} "*|*" --target={target} "*) kind=target; set -- "$@" {flags} ;;
esac
test -z "${{CARGO_PKG_NAME:-}}" ||
  echo "$kind $CARGO_PKG_NAME $CARGO_PKG_VERSION" >> "${{{record}:-/dev/null}}"
case "${{{launcher}:-}}" in
*/sccache) launcher=${launcher}; unset {launcher}; exec "$launcher" "$@" {remap} ;;
*) exec "$@" {remap} ;;
esac
"""
CARGO = """\
#!/bin/sh
# Hooks that were written for their own machine look below target/release for what cargo made.
{cargo} "$@" || exit
here=. before=
for word do
  case "$before $word" in
  "--manifest-path "*) here=$(dirname "$word") ;;
  *" --manifest-path="*) here=$(dirname "${{word#*=}}") ;;
  esac
  before=$word
done
for made in "${{CARGO_TARGET_DIR:-/nowhere}}"/{target}/*/*.so; do
  test -f "$made" || continue
  profile=$(basename "$(dirname "$made")")
  for place in "$here/target" "$CARGO_TARGET_DIR"; do
    mkdir -p "$place/$profile" && cp -p "$made" "$place/$profile/" || exit
  done
done
"""
CRATES = "crates"
BINDGEN = "BINDGEN_EXTRA_CLANG_ARGS"
RETRY = "CARGO_NET_RETRY"
RECORD = "ARMBUILD_CRATES"
"""The variable that names the file where the wrapper writes which crates were compiled, and for what."""
ASK = """\
#!/bin/sh
# Stands for Rust until a build calls it.
mkdir -p {folder} && : > {marker}
echo "{name}: Rust is not here yet" >&2
exit 127
"""


@dataclass(frozen=True, kw_only=True)
class Rust:
    """A toolchain that runs here and compiles for the target."""

    cargo: Path
    rustc: Path
    folder: Path
    """All of it is below this folder."""
    description: str
    """Its version and where it is from, for reports."""

    def environment(
        self,
        tools: Path,
        sysconfig: Path,
        python: str,
        *,
        build: Path,
        home: Path,
        baseline: Sequence[str],
        prefix_map: Mapping[str, str],
    ) -> dict[str, str]:
        """Return what cargo, PyO3 and cc-rs must see; PATH is what programs are looked for in first.

        ``tools`` has the cross compilers, ``sysconfig`` the build variables of the target's ``python``;
        ``build`` is where cargo compiles, ``home`` where it keeps crates; ``baseline`` are zig's flags for a
        raised baseline.
        """
        own = self._programs(baseline, {**prefix_map, str(home): "/cargo"})
        host = f"{platform.machine()}-unknown-linux-gnu"
        variables = {
            "PATH": str(own),
            "CARGO": str(self.cargo),
            "RUSTC": str(self.rustc),
            "RUSTC_WRAPPER": str(own / "rustc-wrapper"),
            "CARGO_BUILD_TARGET": TARGET,
            "CARGO_INCREMENTAL": "0",
            "CARGO_HOME": str(home),
            "CARGO_TARGET_DIR": str(build / "cargo"),
            RECORD: str(build / CRATES),
            "PYO3_CROSS_LIB_DIR": str(sysconfig),
            "PYO3_CROSS_PYTHON_VERSION": python,
        }
        # The target's last: on an AArch64 machine the host is the target.
        for triple, folder, prefix in ((host, own, "host-"), (TARGET, tools, "")):
            name = triple.replace("-", "_")
            variables[f"CARGO_TARGET_{_variable(triple)}_LINKER"] = str(folder / f"{prefix}cc")
            for variable, tool in (("CC", "cc"), ("CXX", "c++"), ("AR", "ar"), ("RANLIB", "ranlib")):
                variables[f"{variable}_{name}"] = str(folder / f"{prefix}{tool}")
        return variables

    def _programs(self, baseline: Sequence[str], prefix_map: Mapping[str, str]) -> Path:
        """Return a folder with cargo, rustc, what is called before rustc, and the host's compilers."""
        remap = shlex.join(f"--remap-path-prefix={old}={new}" for old, new in sorted(prefix_map.items()))
        wrapper = WRAPPER.format(
            target=TARGET,
            flags=shlex.join(target_features(baseline)),
            remap=remap,
            launcher=LAUNCHER,
            record=RECORD,
        )
        driver = Path(zig_driver.__file__).read_bytes()
        zig, machine = compilers.zig(), platform.machine()
        cargo = CARGO.format(cargo=shlex.quote(str(self.cargo)), target=TARGET)
        facts = [str(self.rustc), self.description, wrapper, cargo, hashlib.sha256(driver).hexdigest()]

        def fill(folder: Path) -> None:
            program(folder / "rustc-wrapper", wrapper)
            program(folder / "cargo", cargo)
            (folder / "rustc").symlink_to(self.rustc)
            (folder / "zig_driver.py").write_bytes(driver)
            for name in ("cc", "c++", "ar", "ranlib"):
                target = f"{machine}-linux-gnu.{HOST_GLIBC}"
                line = shlex.join([sys.executable, "-ISE", "DRIVER", str(zig), name, target, "0"])
                line = line.replace("DRIVER", '"$(dirname "$0")/zig_driver.py"')
                program(folder / f"host-{name}", f'#!/bin/sh\nexec {line} "$@"\n')

        place = cache.root() / "rust" / f"programs-{cache.digest([*facts, str(zig), sys.executable])}"
        return cache.fill(place, fill)


def home() -> Path:
    """Return cargo's own folder: the user's where there is one, else a part of the cache."""
    named = os.environ.get("CARGO_HOME")
    usual = Path.home() / ".cargo"
    return Path(named).absolute() if named else usual if usual.is_dir() else cache.root() / "cargo"


def retries(home: Path, folder: Path, variables: Container[str]) -> dict[str, str]:
    """Return how often cargo, in ``folder``, repeats a download; nothing where files or variables say it.

    Its own three repeats take 12 s, for each time that it is called, where no registry is reached.
    """
    places = (home, *(place / ".cargo" for place in (folder, *folder.absolute().parents)))
    stated = any(_states_retries(place / name) for place in places for name in ("config.toml", "config"))
    return {} if stated or RETRY in variables else {RETRY: "1"}


def _states_retries(path: Path) -> bool:
    """Return whether a file of cargo's settings says how often a download is repeated."""
    try:
        net = tomllib.loads(path.read_text(encoding="utf-8")).get("net")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False  # cargo says what is wrong with it
    return isinstance(net, dict) and "retry" in net


def bindgen(compiler: Path, variables: Iterable[str]) -> dict[str, str]:
    """Return where bindgen's libclang finds headers: where the cross ``compiler`` does.

    Nothing where ``variables`` say it. https://rust-lang.github.io/rust-bindgen/requirements.html
    """
    if any(name.startswith(BINDGEN) for name in variables):
        return {}
    ask = f"{shlex.quote(str(compiler))} -E -v -x c /dev/null 2>&1"
    answer = process.succeeds(["sh", "-c", ask], cwd=Path("/"), env={**os.environ, "LC_ALL": "C"})
    found = (answer or "").partition("search starts here:\n ")[2].partition("\nEnd of")[0]
    folders = [str(Path("/", line.strip())) for line in found.splitlines()]
    arguments = ["-nostdinc", *(word for folder in folders for word in ("-isystem", folder))]
    return {f"{BINDGEN}_{TARGET.replace('-', '_')}": shlex.join(arguments)} if folders else {}


def target_features(flags: Iterable[str]) -> list[str]:
    """Return rustc's options for zig's ``-mcpu=generic+sve+...``; none without one."""
    names = [name for flag in flags if flag.startswith("-mcpu=") for name in flag.split("+")[1:]]
    features = (f"+{FEATURES.get(name, name.replace('_', '-'))}" for name in names)
    return ["-C", f"target-feature={','.join(features)}"] if names else []


def baseline(flags: Iterable[str]) -> dict[str, str]:
    """Return how this machine's own cargo, on AArch64, gets zig's ``flags``, beside what the user sets."""
    features = target_features(flags)
    if not features:
        return {}
    name = "RUSTFLAGS" if os.environ.get("RUSTFLAGS") else f"CARGO_TARGET_{_variable(TARGET)}_RUSTFLAGS"
    return {name: " ".join((os.environ.get(name, ""), *features)).strip()}


def _variable(triple: str) -> str:
    return triple.replace("-", "_").upper()


def ask(marker: Path) -> Path:
    """Return a folder whose cargo and rustc do nothing but leave the file ``marker`` behind."""

    def fill(folder: Path) -> None:
        for name in ("cargo", "rustc"):
            paths = {"folder": marker.parent, "marker": marker}
            program(
                folder / name,
                ASK.format(name=name, **{key: shlex.quote(str(path)) for key, path in paths.items()}),
            )

    return cache.fill(cache.root() / "rust" / f"ask-{cache.digest([ASK, str(marker)])}", fill)


def find(mirror: str | None) -> Rust:
    """Return this machine's Rust if it compiles for the target, else Debian's, from the cache.

    Raises MissingError, with what to install, when neither can be had.
    """
    own = installed()
    if own:
        return own
    try:
        return _from_debian(mirror)
    except MissingError as error:
        raise MissingError(
            f"Rust for {TARGET}: {str(error).splitlines()[0]}\n"
            f"  `rustup target add {TARGET}` brings it to this machine's Rust, --mirror names another archive"
        ) from error


def installed() -> Rust | None:
    """Return the Rust on PATH if it has the target's standard library, whatever a project asks of rustup."""
    answer = process.succeeds(["rustc", "--print", "sysroot"], cwd=Path("/"))
    if not answer or not list(Path(answer, "lib/rustlib", TARGET, "lib").glob("libstd-*.rlib")):
        return None
    folder = Path(answer)
    rustc, cargo = folder / "bin/rustc", folder / "bin/cargo"
    if not cargo.is_file():  # a distribution's may lie elsewhere
        cargo = Path(shutil.which("cargo") or cargo)
    versions = [process.succeeds([tool, "--version"], cwd=Path("/")) for tool in (rustc, cargo)]
    numbers = {match[1] for text in versions if text and (match := re.match(r"\w+ (\d+\.\d+)", text))}
    if None in versions or len(numbers) != 1:
        return None
    return Rust(cargo=cargo, rustc=rustc, folder=folder, description=f"{versions[0]}, this machine's")


def _from_debian(mirror: str | None) -> Rust:
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise MissingError(f"Debian's {SUITE} is not read for {platform.machine()}")
    architecture, triplet, loader = machine
    folder = debian.cache_folder("rust", f"{SUITE}-{architecture}", mirror)

    def fill(root: Path) -> None:
        _unpack(root, architecture, mirror)
        libraries = folder / "usr/lib" / triplet
        (root / "bin").unlink()
        (root / "bin").mkdir()
        for name in ("cargo", "rustc"):
            paths = {
                "loader": libraries / loader,
                "libraries": libraries,
                "program": folder / "usr/bin" / name,
                "cargo": folder / "bin/cargo",
            }
            quoted = {key: shlex.quote(str(path)) for key, path in paths.items()}
            program(root / "bin" / name, START.format(name=name, **quoted))

    cache.fill(folder, fill)
    rustc = folder / "bin/rustc"
    version = process.succeeds([rustc, "--version"], cwd=Path("/"))
    if version is None:
        raise MissingError(f"Debian's rustc does not run here: {rustc}")
    return Rust(
        cargo=folder / "bin/cargo", rustc=rustc, folder=folder, description=f"{version}, Debian {SUITE}"
    )


def _unpack(root: Path, architecture: str, mirror: str | None) -> None:
    """Unpack Debian's Rust for this machine, its libraries, and the target's standard library."""
    with cache.work_folder("rust") as work:

        def download(names: Sequence[str], architecture: str, *, dependencies: bool) -> list[Path]:
            return debian.download(
                tuple(names),
                suite=SUITE,
                architecture=architecture,
                source=debian.archive(mirror),
                into=work,
                dependencies=dependencies,
                log=work / "apt.log",
            )

        own = download(PACKAGES, architecture, dependencies=False)
        described = [deb_files.control(package) for package in own]
        version, *others = {fields.get("Version") for fields in described}
        if others or not version:
            raise MissingError(f"Debian's packages of Rust in {SUITE} are of different versions, or of none")
        needed = {name for fields in described for name in _libraries(fields.get("Depends", ""))}
        libraries = download(sorted(needed), architecture, dependencies=True)
        if architecture != "arm64":
            own += download([f"{PACKAGES[-1]}={version}"], "arm64", dependencies=False)
        deb_files.unpack(libraries, root)
        deb_files.unpack(own, root)


def _libraries(depends: str) -> list[str]:
    """Return the names of the libraries in a Depends field; compilers and linkers are left out."""
    first = (entry.partition("|")[0] for entry in depends.split(","))
    names = [match[0] for text in first if (match := re.match(r"[a-z0-9][a-z0-9+.-]+", text.strip()))]
    return [name for name in names if name.startswith("lib") and name not in {*ELSEWHERE, *PACKAGES}]
