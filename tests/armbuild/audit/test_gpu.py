"""Code for GPUs: what nvcc wrote is listed, what it never wrote is a sentence, in bounded time."""

import os
import re
import struct
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from armbuild.audit import audit_path, gpu
from armbuild.audit.text import describe

# Headers of entries as nvcc 13.5 wrote them. Their code is not needed.
OF_NVCC = {
    "cubin sm_90": (
        "0200010140000000700d0000000000000000000000000000080001005a000000000000000000000011000000"
        "0000000000000000000000000000000000000000"
    ),
    "cubin sm_90a": (
        "0200010140000000700d0000000000000000000000000000080001005a000000000000000000000011001000"
        "0000000000000000000000000000000000000000"
    ),
    "cubin sm_100f": (
        "02000101780000007014000000000000000000004000000008000100640000000000000000000000110020010000"
        "00000000000000000000000000000000000048000000280000000002090000020c000002020100030d0101030701"
        "0102030000040b08000900000000000000030e400400000000000000"
    ),
    "ptx compute_121": (
        "01000101500000000001000000000000fe000000400000000500090079000000000000000000000011800000"
        "00000000000000000000000091010000000000004800000000000000"
        "0000000000000000"
    ),
}


def entry(header):
    header = bytes.fromhex(header)
    return header + bytes(struct.unpack_from("<Q", header, 8)[0])


def fat(*entries, version=1, size=None):
    body = b"".join(entries)
    return struct.pack("<4sHHQ", gpu.MAGIC, version, 16, len(body) if size is None else size) + body


def audited(folder, elf, *sections):
    path = folder / "x.so"
    path.write_bytes(elf(constants=sections))
    report = audit_path(path)
    return report, [f"{item.kind} {item.target}" for item in report.files[0].gpu_code]


def test_what_nvcc_wrote_is_listed_with_its_targets(tmp_path, elf):
    one, two = (
        fat(*map(entry, OF_NVCC.values())),
        fat(entry(OF_NVCC["cubin sm_90"]), entry(OF_NVCC["ptx compute_121"])),
    )
    report, found = audited(tmp_path, elf, (".nv_fatbin", one + bytes(40) + two))
    assert set(found) == set(OF_NVCC)
    assert report.ok
    assert not report.warnings
    by_target = {item["target"]: item["count"] for item in report.as_dict()["files"][0]["gpu_code"]}
    assert by_target == {"sm_90": 2, "sm_90a": 1, "sm_100f": 1, "compute_121": 2}
    assert "for GPUs: cubin sm_90, sm_90a, sm_100f; ptx compute_121" in "\n".join(describe(report))


def test_relocatable_code_and_kinds_that_are_new_are_listed(tmp_path, elf):
    unknown = "4000" + OF_NVCC["cubin sm_90"][4:]
    report, found = audited(
        tmp_path, elf, ("__nv_relfatbin", fat(entry("0800" + OF_NVCC["cubin sm_90"][4:]), entry(unknown)))
    )
    assert found == ["lto lto_90", "other 90"]
    assert not report.warnings


def test_code_for_the_cpu_alone_says_nothing_of_gpus(tmp_path, elf):
    report, found = audited(tmp_path, elf, (".rodata", fat(*map(entry, OF_NVCC.values()))))
    assert not found
    assert "GPU" not in "\n".join(describe(report))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no such code", "nothing in it begins like such code"),
        (gpu.MAGIC, "it ends in a header"),
        (fat(version=7), "its version is 7"),
        (fat(size=1 << 63), "it ends behind its section"),
        (fat(bytes(20)), "it ends in the header of a piece"),
        (fat(bytes(48)), "a piece ends behind the others' end"),
        (fat(struct.pack("<HHIQ", 2, 0, 48, 1 << 63) + bytes(32)), "a piece ends behind the others' end"),
        (fat(struct.pack("<HHIQ", 2, 0, 0xFFFFFFFF, 0) + bytes(32)), "a piece ends behind the others' end"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_nvcc_never_wrote_is_a_warning(tmp_path, elf, content, reason):
    report, _ = audited(tmp_path, elf, (".nv_fatbin", content))
    (warning,) = report.warnings
    assert warning.startswith("x.so: code for GPUs (.nv_fatbin) cannot be read: ")
    assert reason in warning


def test_what_is_read_before_the_damage_is_listed(tmp_path, elf):
    report, found = audited(tmp_path, elf, (".nv_fatbin", fat(entry(OF_NVCC["cubin sm_90"])) + fat(size=9)))
    assert found == ["cubin sm_90"]
    assert len(report.warnings) == 1


def test_a_million_pieces_are_refused_in_seconds(tmp_path, elf):
    small = struct.pack("<HHIQIIHHIIIQ", 2, 0, 48, 0, 0, 0, 0, 0, 90, 0, 0, 0)
    path = tmp_path / "x.so"
    path.write_bytes(elf(constants=[(".nv_fatbin", fat(small * (gpu.MAX_ENTRIES + 2)))]))
    begun = time.process_time()
    assert "more than 1000000 pieces of code for GPUs" in audit_path(path).errors[0]
    assert time.process_time() - begun < 30


def test_sections_that_lie_on_one_another_are_not_read(tmp_path, elf):
    content = bytearray(elf(constants=[(".nv_fatbin", bytes(4096))] * 2))
    # In a section's header the size comes behind the place.
    first, second = (found.end() for found in re.finditer(rb"(?s)(?=(?!\0{8}).{8}\0\x10\0{6}).{8}", content))
    content[first : first + 8] = content[second : second + 8] = struct.pack("<Q", 8000)
    content[second - 8 : second] = content[first - 8 : first]
    path = tmp_path / "x.so"
    path.write_bytes(content)
    report = audit_path(path)
    assert report.warnings == ("x.so: code for GPUs cannot be read: its sections overlap",)


SOURCE = """
#include <Python.h>
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
static PyObject* run(PyObject*, PyObject*) {
  twice<<<1, 32>>>(nullptr);
  return PyUnicode_FromString(cudaGetErrorString(cudaGetLastError()));
}
static PyMethodDef methods[] = {{"run", run, METH_NOARGS, 0}, {0, 0, 0, 0}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "thing", 0, -1, methods};
PyMODINIT_FUNC PyInit_thing() { return PyModule_Create(&module); }
"""
WHEELS = ("nvcc", "cuobjdump", "crt", "runtime", "cccl")


@pytest.mark.network
@pytest.mark.slow
def test_the_recipe_of_the_docs_makes_an_extension_whose_gpus_cuobjdump_confirms(tmp_path):
    """The nvcc of the package index, for this machine, with the runtime of AArch64 (docs/wheel.md)."""
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "-q", "--no-deps", "--target"]
    names = [f"nvidia-cuda-{name}" for name in WHEELS]
    subprocess.run([*uv, tmp_path / "x86", "nvidia-nvvm", *names], check=True)
    arm = ["--python-platform", "aarch64-manylinux_2_28", tmp_path / "arm", "nvidia-cuda-runtime"]
    subprocess.run([*uv[:-1], *arm[:2], "--target", *arm[2:]], check=True)
    (tmp_path / "thing.cu").write_text(SOURCE)
    made = tmp_path / "thing.abi3.so"
    (toolkit,) = (tmp_path / "x86/nvidia").glob("cu*/bin")
    (libraries,) = (tmp_path / "arm/nvidia").glob("cu*/lib")
    (cudart,) = libraries.glob("libcudart.so.*")
    subprocess.run(
        [
            toolkit / "nvcc", "-ccbin", "aarch64-linux-gnu-g++", "-Xcompiler", "-fPIC", "-shared",
            "-cudart", "none", "-gencode", "arch=compute_90,code=[sm_90,compute_90]",
            "-gencode", "arch=compute_121,code=sm_121", "-I", sysconfig.get_path("include"),
            "-L", libraries, "-Xlinker", f"-l:{cudart.name}", "-o", made, tmp_path / "thing.cu",
        ],
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    (file,) = audit_path(made).files
    assert file.machine == "aarch64"
    listed = subprocess.run(
        [toolkit / "cuobjdump", "--list-elf", "--list-ptx", made], capture_output=True, text=True, check=True
    ).stdout
    theirs = {
        f"{kind} {'sm' if kind == 'cubin' else 'compute'}_{number}"
        for number, kind in re.findall(r"\.sm_(\w+)\.(cubin|ptx)", listed)
    }
    assert {f"{item.kind} {item.target}" for item in file.gpu_code} == theirs
    assert theirs == {"cubin sm_90", "cubin sm_121", "ptx compute_90"}
