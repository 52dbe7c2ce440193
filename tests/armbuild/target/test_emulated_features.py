import struct

import pytest

from armbuild.target import emulated_features, qemu


def emulator(path, *entries, status=0):
    """A program that answers as one does that runs ours: with an auxiliary vector."""
    vector = path.with_suffix(".vector")
    vector.write_bytes(b"".join(struct.pack("<QQ", *entry) for entry in [*entries, (0, 0)]))
    path.write_text(f"#!/bin/sh\ncat {vector}\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_what_a_core_has_and_the_emulator_does_not_give_is_named(tmp_path):
    """QEMU 11.1.3 gives HWCAP2 0x13201 as neoverse-v1, 10.0.2 gives 0x17201: bit 14 is BF16."""
    everything = (16, 0xFFFFFFFF)
    old = emulator(tmp_path / "old", everything, (26, 0x17201))
    new = emulator(tmp_path / "new", everything, (26, 0x13201))
    assert emulated_features.fault(old, "neoverse-v1") == ""
    assert emulated_features.fault(new, "neoverse-v1") == "emulates neoverse-v1 without bf16"
    assert emulated_features.fault(new, "max") == ""


def test_an_emulator_that_gives_more_than_the_core_has_is_refused(tmp_path):
    """One that is always max would pass a wheel that a Neoverse-N1 ends with SIGILL."""
    same = emulator(tmp_path / "same", (16, 0xFFFFFFFF), (26, 0x17201))
    fault = emulated_features.fault(same, "neoverse-n1")
    assert fault.startswith("emulates neoverse-n1 with asimdfhm, bf16, i8mm, sve, ")
    assert fault.endswith(", which it lacks")


@pytest.mark.parametrize("status", [0, 1])
def test_an_emulator_that_does_not_run_the_program_gives_nothing(tmp_path, status):
    broken = tmp_path / "broken"
    broken.write_text(f"#!/bin/sh\necho nonsense\nexit {status}\n")
    broken.chmod(0o755)
    assert emulated_features.given_by(broken, "neoverse-n1") is None
    for cpu in ("neoverse-n1", "max"):
        assert emulated_features.fault(broken, cpu) == f"does not run a program as {cpu}"
    assert emulated_features.given_by(tmp_path / "absent", "neoverse-n1") is None


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.emulated
def test_the_emulator_found_gives_every_core_what_its_kernels_need():
    program = qemu.find(tuple(qemu.MODELS))
    for cpu in qemu.MODELS:
        assert emulated_features.given_by(program, cpu)
