"""What a CPU can do: this one, a captured one, or one known by name. Standard library only."""

from __future__ import annotations

from armbuild.isa.detect import detect
from armbuild.isa.flags import COMPILERS, compiler_flags
from armbuild.isa.kernels import KernelTarget, kernel_targets, select_kernels
from armbuild.isa.model import Core, Isa
from armbuild.isa.tables import target_names

__all__ = [
    "COMPILERS",
    "Core",
    "Isa",
    "KernelTarget",
    "compiler_flags",
    "detect",
    "kernel_targets",
    "select_kernels",
    "target_names",
]
