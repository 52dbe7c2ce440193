"""A folder with the target's development packages: headers and libraries of Debian arm64, no root rights."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from armbuild.errors import MissingError, UsageError
from armbuild.host import cache
from armbuild.target import debian

if TYPE_CHECKING:
    from pathlib import Path

TRIPLET = "aarch64-linux-gnu"
MUSL = "aarch64-linux-musl"
"""What is compiled for where the C library is musl."""
SUITES = ("bullseye", "bookworm")
"""The oldest first: what is linked against its glibc (2.31; 2.36) and bundled runs on all newer systems."""
C_LIBRARY = re.compile(
    r"(?:libc6|libc6-dev|libc-dev-bin|libc-bin|libcrypt1|libcrypt-dev|linux-libc-dev|libnsl2|libnsl-dev"
    r"|libtirpc\w*|libtirpc-dev|rpcsvc-proto|gcc-\d+-base|libgcc-s1|libstdc\+\+6)_"
)
"""Packages (how their files' names begin) that a compiler with a C library must not see."""
COMPILER = {
    "bullseye": ("libc6-dev", "libstdc++-10-dev", "libgomp1", "libatomic1", "libgfortran5"),
    "bookworm": ("libc6-dev", "libstdc++-12-dev", "libgomp1", "libatomic1", "libgfortran5"),
}
"""What a compiler without a C library needs."""
SHARED = ("libstdc++.so.6", "libgomp.so.1", "libatomic.so.1", "libgfortran.so.5")
"""Runtimes to link by these names: a cross compiler's own want its newer glibc."""
ALTERNATIVES = ("openblas-pthread", "blas", "lapack")
"""Folders whose files Debian's scripts, which don't run here, would link one folder up; best first."""

OPENMP = ("libomp.so", "libgomp.so")
"""LLVM's OpenMP by the names to link, of which the second is for builds that know GCC alone."""


@dataclass(frozen=True, kw_only=True)
class Sysroot:
    """Where the target's headers and libraries are."""

    folder: Path
    suite: str

    @property
    def includes(self) -> tuple[Path, ...]:
        """Return the folders with C headers, in the order to search them."""
        return (self.folder / "usr/include" / TRIPLET, self.folder / "usr/include")

    @property
    def cxx_includes(self) -> tuple[Path, ...]:
        """Return the folders with libstdc++'s headers."""
        (release,) = {path.name for path in (self.folder / "usr/include/c++").iterdir()}
        common = self.folder / "usr/include/c++" / release
        return (common, self.folder / "usr/include" / TRIPLET / "c++" / release, common / "backward")

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Return the folders with libraries, in the order to search them."""
        names = ("linkable", f"usr/lib/{TRIPLET}", "usr/lib")
        return tuple(self.folder / name for name in names if (self.folder / name).is_dir())

    @property
    def openmp(self) -> Path:
        """Return where LLVM's OpenMP is, if ``packages`` have it."""
        return self.folder / "usr/lib" / TRIPLET / OPENMP[0]

    @property
    def pkg_config(self) -> tuple[Path, ...]:
        """Return the folders with ``.pc`` files."""
        return (self.folder / f"usr/lib/{TRIPLET}/pkgconfig", self.folder / "usr/share/pkgconfig")


def check_names(packages: tuple[str, ...]) -> None:
    """Raise UsageError for what is no name of a Debian package, with or without the suite to take it from."""
    suites = set()
    for item in packages:
        name, _, suite = item.partition("/")
        if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name):
            raise UsageError(f"--with {item}: not a Debian package's name, such as zlib1g-dev")
        if "/" in item and suite not in SUITES:
            raise UsageError(f"--with {item}: packages are taken from {' or '.join(SUITES)}")
        suites |= {suite} - {""}
    if len(suites) > 1:
        raise UsageError(f"--with: all packages come from one suite, not from {' and '.join(sorted(suites))}")


def make(packages: tuple[str, ...], *, compiler: bool, mirror: str | None) -> Sysroot:
    """Return a cached folder with arm64 ``packages`` and all they depend on.

    ``compiler``: glibc's and libstdc++'s headers and libraries too. A suite may be named as apt takes it
    ("libgeos-dev/bookworm"). Raises MissingError when no suite has the packages.
    """
    check_names(packages)
    names = tuple(item.partition("/")[0] for item in packages)
    *older, newest = [item.partition("/")[2] for item in packages if "/" in item][:1] or SUITES
    for suite in older:
        with contextlib.suppress(MissingError):
            return _make(suite, names, compiler=compiler, mirror=mirror)
    return _make(newest, names, compiler=compiler, mirror=mirror)


def _make(suite: str, packages: tuple[str, ...], *, compiler: bool, mirror: str | None) -> Sysroot:
    wanted = (*sorted(set(packages)), *(COMPILER[suite] if compiler else ()))

    def fill(folder: Path) -> None:
        debian.install(wanted, folder, suite=suite, mirror=mirror, skip=None if compiler else C_LIBRARY)
        _link_alternatives(folder)
        _link_openmp(folder)
        _make_relocatable(folder)

    name = f"{suite}-{cache.digest([wanted, compiler, ALTERNATIVES, OPENMP])}"
    folder = debian.cache_folder("sysroots", name, mirror)
    return Sysroot(folder=cache.fill(folder, fill), suite=suite)


def _link_alternatives(folder: Path) -> None:
    libraries, headers = folder / "usr/lib" / TRIPLET, folder / "usr/include" / TRIPLET
    for name in ALTERNATIVES:
        for place, above in (
            (libraries / name, libraries),
            (libraries / name / "pkgconfig", libraries / "pkgconfig"),
            (headers / name, headers),
        ):
            for path in place.glob("*.*"):
                above.mkdir(exist_ok=True)
                if not (above / path.name).exists():
                    (above / path.name).symlink_to(os.path.relpath(path, above))


def _link_openmp(folder: Path) -> None:
    """Put LLVM's OpenMP (--with libomp-dev) where any compiler looks, not clang of the same version alone."""
    libraries = folder / "usr/lib" / TRIPLET
    for header in sorted(folder.glob("usr/lib/llvm-*/**/omp.h"))[-1:]:
        (folder / "usr/include").mkdir(exist_ok=True)
        (folder / "usr/include/omp.h").symlink_to(os.path.relpath(header, folder / "usr/include"))
        for name in OPENMP:
            (libraries / name).symlink_to("libomp.so.5")


def _make_relocatable(folder: Path) -> None:
    """Let linker scripts name files without folders, and give the shared runtimes a name to link by."""
    libraries = folder / "usr/lib" / TRIPLET
    for path in libraries.glob("*.so") if libraries.is_dir() else ():
        if path.is_symlink() or path.stat().st_size > 4096:
            continue
        text = path.read_bytes()
        if b"GROUP" in text or b"INPUT" in text:
            path.write_bytes(re.sub(rb"/(?:[\w.+-]+/)*((?:lib|ld-)[\w.+-]+)", rb"\1", text))
    linkable = folder / "linkable"  # not GCC's own folder, which holds another release's libgcc and headers
    linkable.mkdir()
    for name in SHARED:
        if (libraries / name).exists():
            (linkable / f"{name.partition('.so')[0]}.so").symlink_to(f"../usr/lib/{TRIPLET}/{name}")
