"""/proc/cpuinfo of real machines, on few of which anybody has tried this: names, products, threads, level."""

from __future__ import annotations

from pathlib import Path

import pytest

from armisa import Isa
from armisa.tables import parse_toml

MACHINES = parse_toml(Path(__file__).with_name("machines.toml").read_text())["machine"]


def cpuinfo(machine):
    text = ""
    number = 0
    for implementer, variant, part, revision, count in machine["cpus"]:
        for _ in range(count):
            text += (
                f"processor\t: {number}\nBogoMIPS\t: 48.00\nFeatures\t: {machine['features']}\n"
                f"CPU implementer\t: {implementer:#04x}\nCPU architecture: 8\nCPU variant\t: {variant:#x}\n"
                f"CPU part\t: {part:#05x}\nCPU revision\t: {revision}\n\n"
            )
            number += 1
    return text


@pytest.mark.parametrize("machine", MACHINES, ids=[machine["name"] for machine in MACHINES])
def test_published_machine_is_understood(machine):
    isa = Isa.from_cpuinfo(cpuinfo(machine))
    cores = [
        f"{core.count} x {core.label}{'' if core.performance else ' (efficiency)'}" for core in isa.cores
    ]
    assert cores == machine["cores"]
    assert list(isa.products) == machine["products"]
    assert isa.features == frozenset(machine["features"].split())
    assert isa.architecture == machine["architecture"]
    assert isa.threads == machine["threads"]


PI4 = "fp asimd evtstrm crc32 cpuid"


# hrw/arm-socs-table; the Model line tells the product, and what the chip's maker left out
@pytest.mark.parametrize(
    ("part", "features", "model", "product"),
    [
        ("0xd03", PI4, "Raspberry Pi 3 Model B Rev 1.2", "Raspberry Pi 3"),
        ("0xd08", PI4, "Raspberry Pi 4 Model B Rev 1.4", "Raspberry Pi 4"),
        (
            "0xd0b",
            f"{PI4} aes pmull sha1 sha2 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp",
            "Raspberry Pi 5 Model B Rev 1.0",
            "Raspberry Pi 5",
        ),
    ],
)
def test_raspberry_pi_entries_are_what_the_boards_say(part, features, model, product):
    text = "".join(
        f"processor : {n}\nFeatures : {features}\nCPU implementer : 0x41\nCPU part : {part}\n\n"
        for n in range(4)
    )
    isa = Isa.from_cpuinfo(f"{text}Hardware : BCM2835\nModel : {model}\n")
    assert isa.products == (product,)
    assert isa.features == Isa.from_target(product).features


def test_linux_3_10_describes_all_cpus_in_one_block():
    """Allwinner H6, Linux 3.10 (ThomasKaiser/sbc-bench): four bare processor lines, then one description."""
    isa = Isa.from_cpuinfo(
        "Processor       : AArch64 Processor rev 4 (aarch64)\nprocessor       : 0\nprocessor       : 1\n"
        "processor       : 2\nprocessor       : 3\nFeatures        : fp asimd aes pmull sha1 sha2 crc32\n"
        "CPU implementer : 0x41\nCPU architecture: AArch64\nCPU variant     : 0x0\nCPU part        : 0xd03\n"
        "CPU revision    : 4\n\nHardware        : sun50iw6\n"
    )
    assert [(core.name, core.count) for core in isa.cores] == [("Cortex-A53", 4)]
    assert "aes" in isa.features
    assert isa.notes == ()


def test_a_description_before_the_first_cpu_is_no_cpu_of_its_own():
    isa = Isa.from_cpuinfo(
        "Processor\t: AArch64 Processor rev 0 (aarch64)\nFeatures\t: fp asimd atomics\n"
        "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\n"
        "processor\t: 0\nCPU part\t: 0xd0c\n\nprocessor\t: 1\nCPU part\t: 0xd0a\n"
    )
    assert sum(core.count for core in isa.cores) == 2
    assert isa.features == {"fp", "asimd", "atomics"}


def test_flags_of_vendors_kernels_are_features():
    """Phytium FT-1500A under Kylin 4: x86's name for the line."""
    isa = Isa.from_cpuinfo(
        "processor\t: 0\nmodel name\t: phytium FT1500a\nbogomips\t: 3594.24\n"
        "flags\t\t: fp asimd evtstrm aes pmull sha1 sha2 crc32\nCPU implementer\t: 0x70\n"
        "CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0x660\nCPU revision\t: 1\n"
    )
    assert isa.machine == "aarch64"
    assert "crc32" in isa.features


@pytest.mark.parametrize("part", ["-", "node -", "", "0x", "masked", "0xfffff"])
def test_masked_numbers_leave_the_features(part):
    isa = Isa.from_cpuinfo(
        f"processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU implementer\t: {part}\nCPU part\t: {part}\n"
    )
    assert isa.cores == ()
    assert "asimddp" in isa.features
    assert any("readable implementer" in note for note in isa.notes)
