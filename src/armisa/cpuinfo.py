"""Reading /proc/cpuinfo of AArch64 and x86-64 machines, live or captured."""

from __future__ import annotations

import re
from dataclasses import dataclass

from armisa.errors import IsaError

# A machine with 4,096 CPUs has about 2 MB; more than this is not a cpuinfo file.
MAX_SIZE = 16 << 20


@dataclass(frozen=True, kw_only=True)
class CpuInfo:
    """What the file says: MIDR_EL1 of each block that has one, and the features that all blocks share."""

    machine: str
    midrs: tuple[int, ...]
    features: frozenset[str]
    cpus: int
    model: str | None
    notes: tuple[str, ...]


def parse(text: str) -> CpuInfo:
    """Return what ``text`` says; raises IsaError when it is not from an AArch64 or x86-64 Linux."""
    if not text.strip():
        raise IsaError("the cpuinfo file is empty: expected the text of /proc/cpuinfo")
    if "\0" in text:
        raise IsaError("the cpuinfo file is binary: expected the text of /proc/cpuinfo")
    blocks, model = _blocks(text)
    if not blocks:
        raise IsaError("no CPU found in the cpuinfo file: expected blocks that begin with 'processor : 0'")
    if any("cpu implementer" in block or "cpu part" in block for block in blocks):
        return _arm(blocks, model)
    if any("flags" in block and "vendor_id" in block for block in blocks):
        return _x86(blocks)
    if any("features" in block for block in blocks):
        return _arm(blocks, model)
    raise IsaError("the cpuinfo file is neither from an AArch64 nor from an x86-64 machine")


def _blocks(text: str) -> tuple[list[dict[str, str]], str | None]:
    """Return one block per CPU and the board's name.

    Linux before 3.19 describes all CPUs in one block, before or behind bare ``processor`` lines.
    """
    blocks: list[dict[str, str]] = []
    common: dict[str, str] = {}
    model = None
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if not colon:
            continue
        if name == "processor" and value.isdecimal():
            blocks.append({})
        elif name == "model" and not value.isdecimal():
            model = value  # the board, on a Raspberry Pi; x86 has a number here
        (blocks[-1] if blocks else common).setdefault(name, value)
    if not blocks and common.keys() & {"cpu implementer", "features"}:
        return [common], model  # some emulators and containers leave the processor line out
    if blocks and all(block.keys() == {"processor"} for block in blocks[:-1]):
        common = common | blocks[-1]
    return [common | block for block in blocks], model


def _arm(blocks: list[dict[str, str]], model: str | None) -> CpuInfo:
    notes = []
    midrs = []
    lists = []
    broken = 0
    for block in blocks:
        midr = _midr(block)
        if midr is not None:
            midrs.append(midr)
        elif any(name.startswith("cpu ") for name in block):
            broken += 1
        if (listed := block.get("features", block.get("flags"))) is not None:  # vendors' kernels write flags
            lists.append(_words(listed))
    # 32-bit Linux lists half, thumb, vfpv4, and so does a 64-bit kernel to 32-bit programs.
    everything = frozenset().union(*lists) if lists else frozenset()
    if (everything & {"thumb", "vfpv3", "vfpv4", "half"} and "asimd" not in everything) or any(
        re.match(r"[4-7]\b|[4-7][A-Z]", block.get("cpu architecture", "")) for block in blocks
    ):
        raise IsaError(
            "this cpuinfo is from a 32-bit Arm system: armbuild needs a 64-bit kernel and user space"
        )
    features = frozenset.intersection(*lists) if lists else frozenset()
    if broken:
        notes.append(f"{broken} of {len(blocks)} CPU blocks lack a readable implementer or part")
    if not lists:
        notes.append("the cpuinfo file has no Features line")
    elif len(lists) < len(blocks):
        notes.append(f"{len(blocks) - len(lists)} of {len(blocks)} CPU blocks have no Features line")
    if missing := sorted(everything - features):
        notes.append(f"not on every core, so not used: {', '.join(missing[:20])}")
    return CpuInfo(
        machine="aarch64",
        midrs=tuple(midrs),
        features=features,
        cpus=len(blocks),
        model=model,
        notes=tuple(notes),
    )


def _x86(blocks: list[dict[str, str]]) -> CpuInfo:
    lists = [_words(block["flags"]) for block in blocks if "flags" in block]
    features = frozenset.intersection(*lists)
    if "lm" not in features:
        raise IsaError("this cpuinfo is from a 32-bit x86 system: armbuild is for 64-bit machines")
    return CpuInfo(
        machine="x86_64",
        midrs=(),
        features=features,
        cpus=len(blocks),
        model=blocks[0].get("model name"),
        notes=(),
    )


def _words(value: str) -> frozenset[str]:
    # Whatever else stands in a mutilated file is not a feature name, and would garble a terminal.
    return frozenset(word for word in value.split() if re.fullmatch(r"[a-z0-9_.]{1,40}", word))


def _midr(block: dict[str, str]) -> int | None:
    fields = [
        _number(block.get(name), limit)
        for name, limit in (
            ("cpu implementer", 0xFF),
            ("cpu variant", 0xF),
            ("cpu part", 0xFFF),
            ("cpu revision", 0xF),
        )
    ]
    implementer, variant, part, revision = fields
    if implementer is None or part is None:
        return None
    return implementer << 24 | (variant or 0) << 20 | 0xF << 16 | part << 4 | (revision or 0)


def _number(value: str | None, limit: int) -> int | None:
    if value is None or not re.fullmatch(r"0x[0-9a-fA-F]{1,8}|[0-9]{1,8}", value):
        return None
    number = int(value, 16 if value.startswith("0x") else 10)
    return number if number <= limit else None
