"""The conformance runner passes on emulated cores, of what they choose; a step reads its weights once.

Apart from the native ones, so that both can be run side by side.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import conformance as tool
import count_bytes
from armbuild.target import qemu
from armisa import kernels


@pytest.fixture(scope="session")
def arm64(tmp_path_factory):
    return tool.build(tmp_path_factory.mktemp("aarch64"), arm64=True)


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.parametrize("cpu", tool.CPUS)
def test_what_a_core_chooses_conforms_on_it(arm64, cpu):
    emulator = qemu.find((cpu.partition(",")[0],))
    done, choice = (
        subprocess.run(
            [emulator, "-cpu", cpu, arm64, *options],
            env={**os.environ, **tool.QEMU},
            capture_output=True,
            text=True,
            check=False,
        )
        for options in (tool.CPUS[cpu], ("--list",))
    )
    assert done.returncode == 0, done.stdout

    def ran(op, target):
        return bool(re.search(rf"^{op} +{target} +ok ", done.stdout, re.MULTILINE))

    def chosen(op, target):
        return bool(re.search(rf"^{op} +{target} +chosen here$", choice.stdout, re.MULTILINE))

    assert ran("dispatch", "-")
    if cpu == "max,sve-max-vq=3":
        assert ran("silu_and_mul_f32", "neon")
        return
    if cpu.startswith("max"):
        assert ran("silu_and_mul_(f32|bf16)", "sve")
        return
    newer = cpu in {"neoverse-n2", "neoverse-v1"}
    wide = cpu in {"neoverse-v1", "a64fx"}
    assert chosen("paged_attention_f32", "sve" if wide else "neon")
    assert chosen("paged_attention_bf16", "sve") is (cpu == "a64fx")
    assert chosen("paged_attention_bf16", "bf16") is newer
    assert chosen("paged_attention_f16", "fhm") is newer
    assert chosen("paged_attention_int8_f16", "i8mm") is newer
    assert chosen("paged_attention_int8_bf16", "dotprod") is (cpu in {"cortex-a76", "neoverse-n1"})
    assert chosen("matmul_w4a8_f32", "i8mm") is newer
    assert chosen("matmul_w8a8_bf16", "dotprod") is (cpu in {"cortex-a76", "neoverse-n1"})
    assert chosen("silu_and_mul_f32", "sve") is wide
    for op in ("matmul_w8a8", "matmul_w4a8", "dense_matmul", "panel_matmul"):
        for storage in ("f32", "f16", "bf16"):
            assert chosen(f"{op}_{storage}", "sve512") is (cpu == "a64fx")


@pytest.mark.slow
@pytest.mark.emulated
def test_a_step_reads_its_weights_and_its_cache_once(arm64):
    """Catches a product that copies its weight, or reads it again for a second row."""
    counter = count_bytes.make_counter(arm64.parents[1])
    for target, form, sequences in (("i8mm", "bf16", 4), ("i8mm", "int8", 4), ("dotprod", "int4-g32", 1)):
        counts = counter.count(target, form, sequences)
        assert len(counts) == 10
        assert 0.99 < count_bytes.read_times(counts) <= count_bytes.MOST, counts


@pytest.mark.slow
@pytest.mark.emulated
def test_functions_sign_and_check_their_return_addresses(arm64):
    paciasp, autiasp = 0xD503233F, 0xD50323BF
    with arm64.open("rb") as stream:
        sections = {
            section.name: np.frombuffer(section.data(), "<u4")
            for section in ELFFile(stream).iter_sections()
            if section.name.startswith("armllm.")
        }
    assert {"armllm.neon", "armllm.i8mm", "armllm.sve", "armllm.sve512"} <= set(sections)
    for name, words in sections.items():
        signed, checked = (int((words == word).sum()) for word in (paciasp, autiasp))
        assert 0 < signed <= checked, name


def test_every_target_runs_whole_on_a_core_that_has_it():
    """Catches a target that no core runs in full, such as a new one. Scalar kernels run whole natively."""
    whole = {
        name
        for words in tool.CPUS.values()
        for option, name in itertools.pairwise(words)
        if option == "--target" and "--op" not in words
    }
    assert tool.CPUS["cortex-a53"] == ("--chosen",), "all of NEON"
    targets = {target.name for target in kernels.kernel_targets() if target.machine == "aarch64"}
    assert whole | {"neon"} == targets
