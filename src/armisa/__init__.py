"""What a CPU can do: this one, a captured one, or one known by name. Standard library only."""

from __future__ import annotations

from armisa.detection import detect
from armisa.flags import COMPILERS, compiler_flags
from armisa.kernels import KernelTarget, kernel_targets, select_kernels
from armisa.model import Core, Isa
from armisa.tables import target_names

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
