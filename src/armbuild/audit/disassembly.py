"""The text of one A64 instruction."""

from __future__ import annotations

import functools
from typing import Any


def disassemble(word: int, address: int, names: str) -> str:
    """Return the instruction ``word`` at ``address``: mnemonic and operands, as disassemblers write them.

    ``names`` are the table's, for instructions newer than capstone: 5 ends before SVE2.1, SME2 and FP8, where
    every row of the table has one mnemonic.
    """
    found = next(_capstone().disasm_lite(word.to_bytes(4, "little"), address, 1), None)
    if found is None:
        return names.lower() if names.isupper() else names
    return f"{found[2]} {found[3]}".rstrip()


@functools.cache
def _capstone() -> Any:
    # Only reports that show instructions need it.
    import capstone  # noqa: PLC0415

    # capstone 6 spells the architecture as Arm does
    arm64 = getattr(capstone, "CS_ARCH_AARCH64", None) or capstone.CS_ARCH_ARM64
    return capstone.Cs(arm64, capstone.CS_MODE_LITTLE_ENDIAN)
