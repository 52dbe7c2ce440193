"""Site-packages of the image: what the engine needs is resolved for the target, then laid out layer by layer.

uv resolves and unpacks wheels for another machine; none of their code runs here.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from armbuild.errors import BuildError, MissingError, UsageError
from armbuild.host import isolation, limits, process
from armbuild.image.reference import MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from armbuild.host.pythons import HostPython

PLATFORMS = {"arm64": "aarch64-manylinux_2_28", "amd64": "x86_64-manylinux_2_28"}
NEWEST = {"arm64": "aarch64-manylinux_2_40", "amd64": "x86_64-manylinux_2_40"}
"""What a wheel in a file may need, which is compared with the image's own glibc: uv knows none newer."""
EXTRA = "serve"
OPENVINO = "openvino"
OPENVINO_GLIBC = "2.35"
"""What OpenVINO's wheels for AArch64 need since 2026.1: manylinux_2_35."""
FOREIGN = re.compile(r"(?:nvidia|cuda|amd-rocm|rocm|intel-extension)\b")
CUDA_LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_hip.so")
UNUSED = (
    "torch/include", "torch/share", "torch/test",
    "mpmath/tests", "networkx/**/tests", "numpy/**/tests", "sympy/**/tests",
    "**/__pycache__",
)  # fmt: skip
"""C++ headers and CMake files, which only a compiler would read, and the tests that packages carry along."""
PROGRAMS = ("torch_shm_manager",)
"""Of torch's own programs, what its Python code asks for when it is imported."""


@dataclass(frozen=True, kw_only=True)
class Pins:
    """The exact packages beside the engine's own wheel: ``name==version --hash=...``, one of each file."""

    torch: str
    others: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """Return what is going to be installed, the engine included."""
        pins = (self.torch, *self.others)
        return frozenset({"armllm", *(canonicalize_name(pin.partition("==")[0]) for pin in pins)})

    @property
    def torch_version(self) -> str:
        """Return torch's version alone."""
        return without_hashes(self.torch).partition("==")[2]

    def version(self, name: str) -> str:
        """Return the version of a package beside torch; BuildError if it is not among them."""
        for pin in self.others:
            found, _, version = without_hashes(pin).partition("==")
            if canonicalize_name(found) == name:
                return version
        raise BuildError(f"{name} is not among the packages of the image: the wheel has no extra for it")


def without_hashes(pin: str) -> str:
    """Return ``name==version`` of a pin."""
    return pin.partition(" ")[0]


def resolve(
    wheel: Path,
    *,
    python: str,
    architecture: str,
    torch: str | None = None,
    index: str | None = None,
    with_openvino: bool = False,
    work: Path,
    log: Path,
) -> Pins:
    """Return the packages that serving with ``wheel`` takes on the target, also by OpenVINO if asked for.

    ``torch`` is a version other than the wheel's own choice; ``index`` a further index (URL) or folder of
    wheels, where a CPU build of torch may lie, which then wins. Raises MissingError when nothing fits,
    UsageError when torch turns out to be a CUDA build.
    """
    wanted, overrides = work / "wanted.in", work / "overrides.in"
    extras = f"{EXTRA},{OPENVINO}" if with_openvino else EXTRA
    wanted.write_text(f"armllm[{extras}] @ {wheel.absolute().as_uri()}\n")
    version = torch or (
        in_folder(Path(index), python, architecture) if index and "://" not in index else None
    )
    overrides.write_text(f"torch=={version}\n" if version else "")
    command = [
        str(isolation.uv_program()), "pip", "compile", "-q",
        *target(python, platform(architecture, with_openvino=with_openvino)), *sources(index), "--no-header",
        "--no-annotate", "--generate-hashes", "--override", str(overrides), str(wanted),
    ]  # fmt: skip
    what = f"choosing packages for {architecture}, Python {python}"
    return _pins(_uv(command, log=log, what=what), architecture, index)


def _uv(command: list[str], *, log: Path, what: str) -> str:
    """Return what uv prints; MissingError has its reason."""
    environment = isolation.clean()
    return process.run(
        command, log=log, what=what, env=environment, error=MissingError, limits=limits.DOWNLOAD
    )


def in_folder(folder: Path, python: str, architecture: str) -> str | None:
    """Return the newest version of torch that ``folder`` has a wheel of for the target, None without one."""
    interpreter = f"cp{python.replace('.', '')}"
    machine = PLATFORMS[architecture].partition("-")[0]
    found = []
    for path in folder.glob("torch-*.whl"):
        with contextlib.suppress(InvalidWheelFilename):
            _, version, _, tags = parse_wheel_filename(path.name)
            if any(tag.interpreter == interpreter and tag.platform.endswith(machine) for tag in tags):
                found.append(version)
    return str(max(found)) if found else None


def _pins(requirements: str, architecture: str, index: str | None) -> Pins:
    found = {}
    try:
        for line in filter(None, requirements.replace("\\\n", " ").splitlines()):
            text, *hashes = line.split(" --hash=")
            item = Requirement(text.strip())
            pin = [f"{item.name}{item.specifier}", *map(str.strip, hashes)]
            found[str(canonicalize_name(item.name))] = " --hash=".join(pin)
    except InvalidRequirement as error:
        raise BuildError(f"uv chose what cannot be read: {error}") from error
    found.pop("armllm", "")
    torch = found.pop("torch", "")
    if not torch:
        raise UsageError("the wheel does not ask for torch: not a wheel of the engine")
    foreign = sorted(name for name in found if FOREIGN.match(name))
    if foreign:
        raise UsageError(
            _cuda(
                without_hashes(torch),
                architecture,
                f"it asks for {foreign[0]} and {len(foreign) - 1} more",
                index,
            )
        )
    return Pins(torch=torch, others=tuple(sorted(found.values())))


def _cuda(torch: str, architecture: str, why: str, index: str | None) -> str:
    where = f"in {index} too" if index else "on this index"
    return (
        f"{torch} for {architecture} is no CPU build {where} ({why}): name an index or a folder of CPU builds"
        " with --torch-index, or another version with --torch"
    )


def platform(architecture: str, *, with_openvino: bool) -> str:
    """Return uv's name of the machine and C library that the image's packages are chosen for."""
    if not with_openvino:
        return PLATFORMS[architecture]
    return f"{MACHINES[architecture]}-manylinux_{OPENVINO_GLIBC.replace('.', '_')}"


def target(python: str, machine: str) -> list[str]:
    """Return uv's options that say for which machine and Python packages are chosen."""
    return [
        "--python-platform",
        machine,
        "--python-version",
        python,
        "--only-binary",
        ":all:",
    ]


def sources(index: str | None) -> list[str]:
    """Return uv's options for a further index, which wins for what it has, or for a folder of wheels."""
    if index is None:
        return []
    return ["--index" if "://" in index else "--find-links", index]


def install(
    wanted: Iterable[str | Path],
    site: Path,
    *,
    python: str,
    architecture: str,
    index: str | None,
    with_openvino: bool = False,
    log: Path,
) -> None:
    """Unpack exactly ``wanted`` (pins, or wheels) into ``site``, without programs and C++ headers.

    A wheel in a file is not compared with the image's glibc: whoever names one has done so.
    Raises UsageError when a CUDA library comes along, MissingError with uv's reason.
    """
    wanted = list(wanted)
    are_files = all(isinstance(item, Path) for item in wanted)
    machine = NEWEST[architecture] if are_files else platform(architecture, with_openvino=with_openvino)
    lock = log.with_suffix(".requirements.txt")
    lock.write_text("".join(f"{item}\n" for item in wanted))
    command = [
        str(isolation.uv_program()),
        "pip",
        "install",
        "-q",
        "--no-deps",
        *target(python, machine),
    ]
    # Links to files in uv's cache: from here on they may be removed, but not written to.
    command += [*sources(index), "--link-mode", "hardlink", "--target", str(site)]
    command += ["--", *map(str, wanted)] if are_files else ["--require-hashes", "-r", str(lock)]
    _uv(command, log=log, what=f"unpacking packages for {architecture}, Python {python}")
    for name in CUDA_LIBRARIES:
        if (site / "torch/lib" / name).exists():
            raise UsageError(_cuda("torch", architecture, f"it holds {name}", index))
    for pattern in UNUSED:
        for path in sorted(site.glob(pattern), reverse=True):  # a folder after those in it
            shutil.rmtree(path)
    for path in list(site.glob("torch/bin/*")):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in PROGRAMS:
            path.unlink()
    shutil.rmtree(site / "bin", ignore_errors=True)  # programs whose first line names this machine's Python
    for name in (".lock", "CACHEDIR.TAG", ".gitignore"):
        (site / name).unlink(missing_ok=True)
    for record in site.glob("*.dist-info/RECORD"):
        _rewrite_record(site, record)


def _rewrite_record(site: Path, record: Path) -> None:
    """List the files that are left, sorted; what says who installed it, and when, is dropped."""
    for name in ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"):
        (record.parent / name).unlink(missing_ok=True)
    rows = [row for row in csv.reader(io.StringIO(record.read_text())) if row and (site / row[0]).is_file()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    record.unlink()  # which may be a link to a file in uv's cache
    record.write_text(text.getvalue())


def compile_bytecode(host: HostPython, tree: Path, folder: Path, *, log: Path) -> None:
    """Compile the Python files of ``folder`` below ``tree``, which stands for the image's root.

    Bytecode is the same on every machine. One process takes the files in a fixed order: what marshal writes
    depends on which strings it has met before.
    """
    options = ["-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash"]
    command = [str(host.executable), *options, "-s", str(tree), "-p", "/", str(folder)]
    # packages ship a few files of other Python versions, which do not compile: no reason to stop
    process.run(
        ["sh", "-c", '"$@" || true', "sh", *command],
        log=log,
        what="compiling Python",
        env={**isolation.clean(), "PYTHONHASHSEED": "0"},
    )
