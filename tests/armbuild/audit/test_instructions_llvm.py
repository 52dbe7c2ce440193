"""The instruction table against LLVM 19 on random words (needs Debian's llvm-19)."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from armbuild.audit.disassembly import disassemble
from armbuild.audit.instructions import UNDEFINED, classify, table

pytestmark = pytest.mark.slow

# Extension -> LLVM 19's features, simplest first: the first set with which a word decodes is what it needs.
FEATURES = {
    "": "",
    "crc": "+crc",
    "lse": "+lse",
    "rdm": "+rdm",
    "lor": "+lor",
    "fp16": "+fullfp16",
    "fhm": "+fp16fml",
    "dotprod": "+dotprod",
    "aes": "+aes",
    "sha2": "+sha2",
    "sha3": "+sha3",
    "sm4": "+sm4",
    "rcpc": "+rcpc",
    "rcpc2": "+rcpc-immo",
    "rcpc3": "+rcpc3",
    "jscvt": "+jsconv",
    "fcma": "+complxnum,+fullfp16",
    "pauth": "+pauth",
    "flagm": "+flagm",
    "flagm2": "+altnzcv",
    "frintts": "+fptoint",
    "memtag": "+mte",
    "bf16": "+bf16",
    "i8mm": "+i8mm",
    "ls64": "+ls64",
    "mops": "+mops,+mte",
    "hbc": "+hbc",
    "cssc": "+cssc",
    "lse128": "+lse128",
    "the": "+the,+lse128,+d128",
    "gcs": "+gcs",
    "cpa": "+cpa",
    "tme": "+tme",
    "pauth-lr": "+pauth-lr",
    "lut": "+lut",
    "faminmax": "+faminmax",
    "fp8": "+fp8",
    "fp8fma": "+fp8fma",
    "fp8dot4": "+fp8dot4",
    "fp8dot2": "+fp8dot2",
    "sve": "+sve",
    "sve-bf16": "+sve,+bf16",
    "sve-i8mm": "+sve,+i8mm",
    "f32mm": "+f32mm",
    "f64mm": "+f64mm",
    "sve2": "+sve2",
    "sve2-aes": "+sve2-aes",
    "sve2-bitperm": "+sve2-bitperm",
    "sve2-sha3": "+sve2-sha3",
    "sve2-sm4": "+sve2-sm4",
    "sve2p1": "+sve2p1",
    "sve-b16b16": "+sve2,+sve-b16b16",
    "lut+sve2": "+sve2,+lut",
    "faminmax+sve2": "+sve2,+faminmax",
    "fp8+sve2": "+sve2,+fp8",
    "fp8fma+sve2": "+sve2,+fp8fma",
    "fp8dot4+sve2": "+sve2,+fp8dot4",
    "fp8dot2+sve2": "+sve2,+fp8dot2",
    "cpa+sve": "+sve,+cpa",
    "sme": "+sme",
    "sme-f64f64": "+sme-f64f64",
    "sme-i16i64": "+sme-i16i64",
    "sme2": "+sme2",
    "sme2p1": "+sme2p1",
    "sme-f16f16": "+sme-f16f16",
    "sme-b16b16": "+sme-b16b16",
    "faminmax+sme2": "+sme2,+faminmax",
    "fp8+sme2": "+sme2,+fp8",
    "sme-f8f16": "+sme-f8f16",
    "sme-f8f32": "+sme-f8f32",
    "sme-i16i64+sme2": "+sme2,+sme-i16i64",
    "sme-f64f64+sme2": "+sme2,+sme-f64f64",
    "sme-lutv2+sme2p1": "+sme2p1,+sme-lutv2",
}
# So many extensions are asked for together: what all of them cannot decode, none of them can.
SET = 8
# Translation tables' and 128-bit system registers' instructions: the table keeps them in groups.
RARE = {"the", "d128"}
# LLVM shows every word of this space as a system register's access, with or without the extension.
SYSTEM = 0xD5


class Disassembler:
    """LLVM's C interface: which of several feature sets decodes a word first."""

    def __init__(self):
        library = ctypes.CDLL("libLLVM-19.so")
        for part in ("TargetInfo", "TargetMC", "Disassembler"):
            getattr(library, f"LLVMInitializeAArch64{part}")()
        create = library.LLVMCreateDisasmCPUFeatures
        create.restype = ctypes.c_void_p
        create.argtypes = [ctypes.c_char_p] * 3 + [
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self.decode = library.LLVMDisasmInstruction
        self.decode.restype = ctypes.c_size_t
        self.decode.argtypes = [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]
        self.text = ctypes.create_string_buffer(256)
        self.everything = create(b"aarch64-linux-gnu", b"generic", b"+all", None, 0, None, None)

        def context(*features):
            return create(b"aarch64-linux-gnu", b"generic", ",".join(features).encode(), None, 0, None, None)

        self.base = context()
        extensions = [(name, features) for name, features in FEATURES.items() if name]
        parts = [extensions[first : first + SET] for first in range(0, len(extensions), SET)]
        self.sets = [
            (
                context(*(features for _, features in part)),
                [(name, context(features)) for name, features in part],
            )
            for part in parts
        ]

    def needs(self, word):
        """Return the extension that decodes ``word``, "" for Armv8.0-A, None for no instruction."""
        raw = int(word).to_bytes(4, "little")
        if not self.decode(self.everything, raw, 4, 0, self.text, 256):
            return None
        if self.decode(self.base, raw, 4, 0, self.text, 256):
            return ""
        for together, contexts in self.sets:
            if self.decode(together, raw, 4, 0, self.text, 256):
                for name, context in contexts:
                    if self.decode(context, raw, 4, 0, self.text, 256):
                        return name
        return ""  # el2, el3 and their like: no business of programs

    def mnemonic(self, word):
        """Return the mnemonic of ``word``, None for no instruction."""
        if not self.decode(self.everything, int(word).to_bytes(4, "little"), 4, 0, self.text, 256):
            return None
        return self.text.value.decode().split()[0]


@pytest.fixture(scope="module")
def llvm():
    return Disassembler()


def sample():
    """Words over the whole space, more of the scalable groups, and around every row of the table."""
    random = np.random.default_rng(2026)

    def words(count):
        return random.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)

    parts = [words(150_000)]
    parts.append(words(100_000) & ~np.uint32(0x1E000000) | np.uint32(2 << 25))  # SVE
    parts.append(words(100_000) & ~np.uint32(0x1E000000) | np.uint32(1 << 31))  # SME
    for row in table()[1:]:
        inside = words(150) & np.uint32(~row.mask & 0xFFFFFFFF) | np.uint32(row.value)
        parts.append(inside)
        parts.append(inside ^ (np.uint32(1) << random.integers(0, 32, 150).astype(np.uint32)))
    found = np.unique(np.concatenate(parts))
    return found[(found >> np.uint32(24)) != SYSTEM]


def test_none_is_missed_and_none_falsely_accused(llvm):
    words = sample()
    rows = classify(words)
    labels = {index: "+".join(sorted(row.extensions)) for index, row in enumerate(table())}
    wrong = []
    checked = 0
    for word, row in zip(words.tolist(), rows.tolist(), strict=True):
        needs = llvm.needs(word)
        if needs is None:
            continue
        checked += 1
        if row == UNDEFINED:
            if needs or word >> 16:  # UDF is the one defined word that the table calls no instruction
                wrong.append((f"{word:08x}", needs, "no instruction"))
        elif labels[row] != needs:
            wrong.append((f"{word:08x}", needs, labels[row]))
    assert wrong == []
    assert checked > 200_000


def test_offenders_are_called_by_their_exact_mnemonics(llvm):
    """capstone's or, for what it does not know, the table's: never a group's name."""
    words = sample()
    words = np.random.default_rng(5).choice(words, 60_000, replace=False)
    rows = classify(words)
    wrong = []
    checked = 0
    for word, row in zip(words.tolist(), rows.tolist(), strict=True):
        needed = table()[row].extensions if row != UNDEFINED else set()
        wanted = llvm.mnemonic(word) if needed and not needed & RARE else None
        if wanted is None:
            continue
        checked += 1
        said = disassemble(word, 0, table()[row].instructions)
        if said.split()[0] != wanted:
            wrong.append((f"{word:08x}", said, wanted))
    assert wrong == []
    assert checked > 20_000
