from __future__ import annotations

import pytest

from armisa import Isa, kernel_targets, select_kernels, target_names
from armisa.errors import IsaError
from armisa.tables import architecture_of, core_types, extensions, implied, products, what_it_buys

WANTED = [
    "cortex-a53",
    "cortex-a55",
    "cortex-a57",
    "cortex-a72",
    "cortex-a76",
    "cortex-a78",
    "cortex-x1",
    "cortex-x2",
    "cortex-x3",
    "cortex-x4",
    "cortex-x925",
    "neoverse-n1",
    "neoverse-n2",
    "neoverse-n3",
    "neoverse-v1",
    "neoverse-v2",
    "neoverse-v3",
    "a64fx",
    "ampereone",
    "ampereone-m",
    "altra",
    "kunpeng-920",
    "graviton1",
    "graviton2",
    "graviton3",
    "graviton3e",
    "graviton4",
    "grace",
    "cobalt-100",
    "axion",
    "raspberry-pi-3",
    "raspberry-pi-4",
    "raspberry-pi-5",
    "apple-m1",
    "apple-m2",
    "apple-m3",
    "apple-m4",
    "snapdragon-x",
    "orin",
    "thor",
    "max",
    "neoverse_v1",
    "Neoverse-V1",
    "GRAVITON3",
]

# Linux, arch/arm64/include/asm/cputype.h
PARTS = {
    "Cortex-A53": (0x41, 0xD03),
    "Cortex-A55": (0x41, 0xD05),
    "Cortex-A57": (0x41, 0xD07),
    "Cortex-A72": (0x41, 0xD08),
    "Cortex-A76": (0x41, 0xD0B),
    "Cortex-A78": (0x41, 0xD41),
    "Cortex-A78AE": (0x41, 0xD42),
    "Cortex-X1": (0x41, 0xD44),
    "Cortex-X2": (0x41, 0xD48),
    "Cortex-X3": (0x41, 0xD4E),
    "Cortex-X4": (0x41, 0xD82),
    "Cortex-X925": (0x41, 0xD85),
    "Neoverse-N1": (0x41, 0xD0C),
    "Neoverse-N2": (0x41, 0xD49),
    "Neoverse-N3": (0x41, 0xD8E),
    "Neoverse-V1": (0x41, 0xD40),
    "Neoverse-V2": (0x41, 0xD4F),
    "Neoverse-V3": (0x41, 0xD84),
    "Neoverse-V3AE": (0x41, 0xD83),
    "A64FX": (0x46, 0x001),
    "TSV110": (0x48, 0xD01),
    "Ampere-1": (0xC0, 0xAC3),
    "Ampere-1A": (0xC0, 0xAC4),
    "Ampere-1B": (0xC0, 0xAC5),  # GCC, aarch64-cores.def
    "Apple M3 efficiency core": (0x61, 0x048),  # LLVM, TargetParser/Host.cpp
    "Apple M3 performance core": (0x61, 0x049),
    "Apple M4 efficiency core": (0x61, 0x052),  # pytorch/cpuinfo pull request 385
    "Apple M4 performance core": (0x61, 0x053),
    "Oryon": (0x51, 0x001),
    "Firestorm": (0x61, 0x023),
    "Avalanche": (0x61, 0x033),
    "Azure Cobalt 100 core": (0x6D, 0xD49),
}


@pytest.mark.parametrize("name", WANTED)
def test_every_promised_name_is_known(name):
    isa = Isa.from_target(name)
    assert isa.machine == "aarch64"
    assert isa.architecture
    assert {"fp", "asimd"} <= isa.features
    assert any("nothing was measured" in note for note in isa.notes)


@pytest.mark.parametrize(("name", "numbers"), PARTS.items())
def test_part_numbers_are_those_of_the_kernel(name, numbers):
    core = next(core for core in core_types() if core.name == name)
    assert core.implementer == numbers[0]
    assert numbers[1] in core.parts


def test_no_two_cores_share_a_number_and_no_two_entries_a_name():
    numbers = [(core.implementer, part) for core in core_types() for part in core.parts]
    assert len(numbers) == len(set(numbers))
    assert len(target_names()) == len(set(target_names()))


def test_tables_use_known_features_only():
    known = set(what_it_buys())
    for core in core_types():
        assert core.features <= known, core.name
        assert (core.sve is not None) == ("sve" in core.features), core.name
        assert (core.sme is not None) == ("sme" in core.features), core.name
    for extension in extensions().values():
        assert extension.linux <= known, extension.name
        assert implied([extension.name])
    names = {core.name for core in core_types()}
    for product in products():
        assert set(product.cores) <= names, product.name


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("cortex-a72", "armv8-a"),
        ("neoverse-n1", "armv8.2-a"),
        ("a64fx", "armv8.2-a"),
        ("neoverse-v1", "armv8.4-a"),
        ("apple-m1", "armv8.4-a"),
        ("apple-m2", "armv8.6-a"),
        ("ampereone", "armv8.6-a"),
        ("neoverse-v2", "armv9-a"),
        ("cortex-x4", "armv9.2-a"),
    ],
)
def test_architecture_level_follows_from_features(name, level):
    assert architecture_of(Isa.from_target(name).features) == level


def test_products_differ_from_their_cores_where_makers_left_something_out():
    assert "aes" in Isa.from_target("cortex-a72").features
    assert "aes" not in Isa.from_target("raspberry-pi-4").features


def test_mixed_products_count_performance_cores_only():
    isa = Isa.from_target("apple-m1")
    assert [(core.name, core.performance) for core in isa.cores] == [("Firestorm", True), ("Icestorm", False)]
    assert isa.threads == 4


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("graviton33", "graviton3"), ("neoverse-v11", "neoverse-v1"), ("cortexa720x", "cortex-a720")],
)
def test_unknown_name_gets_suggestions(wrong, right):
    with pytest.raises(IsaError, match=right):
        Isa.from_target(wrong)


def test_kernels_of_a_core_are_the_last_targets_that_it_can_run():
    for name in target_names():
        isa = Isa.from_target(name)
        for op, chosen in isa.kernels().items():
            runnable = [
                target.name
                for target in kernel_targets()
                if op in target.ops
                and target.machine in ("any", "aarch64")
                and target.features <= isa.features
                and target.sve_bits <= (isa.sve_vector_bits or 0)
            ]
            assert chosen == runnable[-1]


def test_sve_kernels_are_for_vectors_of_256_bits_and_more_powers_of_two():
    features = Isa.from_target("neoverse-v1").features
    sve = {
        bits
        for bits in (None, 128, 256, 384, 512, 640, 1024, 2048)
        if "sve" in select_kernels(features, "aarch64", sve_bits=bits).values()
    }
    assert sve == {256, 512, 1024, 2048}


def test_kernels_are_limited_to_what_a_wheel_holds():
    features = Isa.from_target("max").features
    assert set(select_kernels(features, "aarch64", {"scalar"}).values()) == {"scalar"}
    assert select_kernels(features, "aarch64", set()) == {}
