# ruff: noqa: S311 - seeded, so that a failure comes back
"""Captured cpuinfo files: what the kernel says comes out, and nothing that a file may hold breaks it."""

from __future__ import annotations

import json
import random
import time

import pytest

from armisa import Isa
from armisa.errors import IsaError
from armisa.tables import hwcap_bits

PI4 = """processor	: 0
BogoMIPS	: 108.00
Features	: fp asimd evtstrm crc32 cpuid
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x0
CPU part	: 0xd08
CPU revision	: 3

Hardware	: BCM2835
Model		: Raspberry Pi 4 Model B Rev 1.4
"""
COMMON = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"


def block(number, part, features=COMMON, implementer="0x41"):
    return (
        f"processor\t: {number}\nFeatures\t: {features}\nCPU implementer\t: {implementer}\n"
        "CPU architecture: 8\n"
        f"CPU variant\t: 0x1\nCPU part\t: {part}\nCPU revision\t: 2\n\n"
    )


def test_hwcap_and_cpuinfo_of_every_emulated_cpu_agree(capture):
    isa = Isa.from_cpuinfo(capture.cpuinfo, hwcap=capture.hwcap, hwcap2=capture.hwcap2)
    listed = frozenset(capture.cpuinfo.partition("Features\t: ")[2].splitlines()[0].split())
    assert isa.features == listed
    assert not [note for note in isa.notes if "not used" in note or "does not list" in note]


def test_hwcap_alone_proves_what_cpuinfo_lists(capture):
    masked = "\n".join(line for line in capture.cpuinfo.splitlines() if not line.startswith("Features"))
    isa = Isa.from_cpuinfo(masked, hwcap=capture.hwcap, hwcap2=capture.hwcap2)
    assert isa.features == Isa.from_cpuinfo(capture.cpuinfo).features


@pytest.mark.parametrize(
    "name",
    [
        "cortex-a53",
        "cortex-a57",
        "cortex-a72",
        "cortex-a76",
        "cortex-a710",
        "neoverse-n1",
        "neoverse-n2",
        "neoverse-v1",
        "a64fx",
        "max",
    ],
)
def test_table_entry_has_what_the_emulated_core_has(name, captures):
    """Of the features that decide over kernels, a core's entry has exactly those of the core."""
    table = Isa.from_target(name)
    seen = captures[name]
    features = Isa.from_cpuinfo(seen.cpuinfo).features
    decisive = {
        "asimd",
        "atomics",
        "asimddp",
        "asimdhp",
        "asimdfhm",
        "bf16",
        "i8mm",
        "sve",
        "sve2",
        "svebf16",
        "svei8mm",
        "sme",
    }
    assert table.features & decisive == features & decisive
    assert table.sve_vector_bits == (seen.sve * 8 if seen.sve > 0 else None)
    assert table.sme_vector_bits == (seen.sme * 8 if seen.sme > 0 else None)
    assert Isa.from_cpuinfo(seen.cpuinfo).kernels() == table.kernels()


def test_raspberry_pi_is_named_by_its_model_line():
    isa = Isa.from_cpuinfo(PI4)
    assert isa.products == ("Raspberry Pi 4",)
    assert isa.cores[0].name == "Cortex-A72"
    assert (isa.cores[0].variant, isa.cores[0].revision) == (0, 3)
    assert isa.architecture == "armv8-a"


def test_big_little_uses_the_intersection_and_names_performance_cores():
    text = "".join(block(n, "0xd05") for n in range(4)) + "".join(
        block(n, "0xd41", COMMON + " ssbs i8mm") for n in (4, 5)
    )
    isa = Isa.from_cpuinfo(text)
    assert [(core.name, core.count, core.performance) for core in isa.cores] == [
        ("Cortex-A78", 2, True),
        ("Cortex-A55", 4, False),
    ]
    assert "i8mm" not in isa.features
    assert isa.threads == 2
    assert any("i8mm" in note for note in isa.notes)


def test_disagreement_is_noted_and_the_auxiliary_vector_decides():
    isa = Isa.from_cpuinfo(block(0, "0xd0c", "fp asimd i8mm"), hwcap=0b11 | 1 << 20, hwcap2=0)
    assert isa.features == {"fp", "asimd", "asimddp"}
    assert any("i8mm" in note for note in isa.notes)
    assert any("asimddp" in note for note in isa.notes)


def test_unknown_part_is_named_by_numbers_and_its_features_used():
    isa = Isa.from_cpuinfo(block(0, "0xfff", implementer="0x99"))
    assert isa.cores[0].name is None
    assert "0x99" in isa.cores[0].label
    assert "0xfff" in isa.cores[0].label
    assert "asimddp" in isa.features


def test_vector_length_from_the_table_is_called_so(captures):
    isa = Isa.from_cpuinfo(captures["neoverse-v1"].cpuinfo)
    assert isa.sve_vector_bits == 256
    assert any("not measured" in note for note in isa.notes)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("  \n\n", "empty"),
        ("\0\1\2ELF", "binary"),
        ("hello world\n", "no CPU"),
        (
            "processor\t: 0\nFeatures\t: half thumb vfp neon vfpv4\nCPU architecture: 7\nCPU part\t: 0xd03\n",
            "32-bit",
        ),
        (
            "processor\t: 0\nFeatures\t: half thumb neon\nCPU architecture: 8\nCPU part\t: 0xd08\n",
            "32-bit",
        ),
        ("processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t: fpu sse\n", "32-bit x86"),
        ("processor       : 0\nhart            : 0\nisa             : rv64imafdc\n", "neither"),
    ],
)
def test_what_is_no_cpuinfo_is_refused_in_a_sentence(text, word):
    with pytest.raises(IsaError, match=word) as caught:
        Isa.from_cpuinfo(text)
    assert len(str(caught.value).splitlines()) == 1


def test_x86_cpuinfo_is_described_as_such():
    isa = Isa.from_cpuinfo("processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t: lm fpu sse2 avx2\n")
    assert isa.machine == "x86_64"
    assert isa.kernels()


def test_words_beyond_64_bits_are_refused():
    with pytest.raises(IsaError, match="64-bit"):
        Isa.from_cpuinfo(PI4, hwcap=1 << 64)


def test_unknown_bits_are_noted():
    isa = Isa.from_cpuinfo(PI4, hwcap=0b11 | 1 << 60)
    assert any("60" in note for note in isa.notes)


def test_every_hwcap_bit_has_one_name():
    names = [name for word in hwcap_bits().values() for name in word.values()]
    assert len(names) == len(set(names))


def test_five_thousand_mutations_end_in_an_answer_or_a_sentence(captures):
    """Any exception but IsaError, any answer that is not JSON, any slow parse would fail here."""
    random.seed(20)
    sources = [item.cpuinfo for item in captures.values()] + [PI4, block(0, "0xd05") + block(1, "0xd41")]
    answers = 0
    started = time.monotonic()
    for _ in range(5000):
        text = bytearray(random.choice(sources)[:3000].encode())
        for _ in range(random.randint(1, 12)):
            place = random.randrange(len(text)) if text else 0
            match random.randrange(5):
                case 0:
                    text[place : place + 1] = bytes([random.randrange(256)])
                case 1:
                    del text[place : place + random.randint(1, 200)]
                case 2:
                    text[place:place] = text[: random.randint(1, 200)]
                case 3:
                    text[place:place] = random.choice(
                        [b"0x", b":", b"\n", b"processor : ", b"CPU part\t: 0x", b"999999999999"]
                    )
                case _:
                    text = text[:place]
        try:
            json.dumps(Isa.from_cpuinfo(text.decode("utf-8", "replace")).as_dict())
            answers += 1
        except IsaError as error:
            assert 1 <= len(str(error).splitlines()) <= 2  # noqa: PT017 - either outcome is right
    assert answers > 1000
    assert time.monotonic() - started < 600  # hangs only; no promise about speed
