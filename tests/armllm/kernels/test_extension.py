"""The choice of targets, ARMLLM_ISA, threads, importing without the extension or without torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from armisa import kernel_targets
from armllm import kernels


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ARMLLM_", "OMP_"))}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean | environment, check=False
    )


def test_report_names_a_compiled_target_and_a_reason_for_every_op():
    report = kernels.report()
    assert {"rms_norm_f32", "paged_attention_bf16"} <= set(report)
    for entry in report.values():
        assert entry["target"] in kernels.targets()
        assert entry["why"]


def test_the_cap_holds_every_op_down_and_says_so():
    done = python(
        "from armllm import kernels\n"
        "for op, entry in kernels.report().items(): print(op, entry['target'], entry['why'])",
        ARMLLM_ISA="scalar",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(kernels.report())
    for line in lines:
        assert line.split()[1] == "scalar"
        assert "capped by ARMLLM_ISA=scalar" in line


def test_an_unknown_cap_is_reported_with_the_names_there_are_and_stops_nothing():
    code = "from armllm import kernels; print(kernels.report()['rms_norm_f32']['target'])"
    done = python(code, ARMLLM_ISA="warp9")
    assert done.returncode == 0
    assert "ARMLLM_ISA=warp9" in done.stderr
    assert "scalar" in done.stderr
    assert done.stdout == python(code).stdout


def test_where_linux_refuses_the_tiles_of_amx_the_target_below_computes():
    """Linux doesn't grant them to a process with a signal stack that can't hold them."""
    small_stack = (
        "import ctypes\n"
        "class Stack(ctypes.Structure):\n"
        "    _fields_ = [('address', ctypes.c_void_p), ('flags', ctypes.c_int), ('size', ctypes.c_size_t)]\n"
        "memory = ctypes.create_string_buffer(8192)\n"
        "stack = Stack(ctypes.addressof(memory), 0, 8192)\n"
        "assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0\n"
    )
    report = (
        "from armllm import kernels\n"
        "entry = kernels.report()['paged_attention_bf16']\n"
        "print(entry['target'], entry['why'])\n"
    )
    default, refused = python(report), python(small_stack + report)
    assert refused.returncode == 0, refused.stderr
    if default.stdout.startswith("amx "):
        assert refused.stdout == "avx512_bf16 amx: the CPU lacks amx_tile\n"
    else:
        assert refused.stdout == default.stdout


def test_a_missing_extension_is_explained_in_a_sentence():
    done = python("import sys; sys.modules['armllm._kernels'] = None; import armllm.kernels")
    assert done.returncode == 1
    assert "compiled kernels (armllm._kernels) are not available" in done.stderr.splitlines()[-1]
    assert "pip install" in done.stderr.splitlines()[-1]


def test_threads_are_those_of_the_openmp_that_torch_loaded():
    code = (
        "import torch, armllm.kernels as k\n"
        "torch.set_num_threads(3)\n"
        "libraries = {l.split()[-1] for l in open('/proc/self/maps') if 'gomp' in l or 'libomp' in l}\n"
        "print(k.thread_backend(), k.get_num_threads(), len(libraries))\n"
    )
    done = python(code)
    assert done.stdout.split() == ["libgomp", "3", "1"], done.stderr


def test_without_torch_the_extension_brings_threads_of_its_own():
    code = (
        "import sys\n"
        "import armllm._kernels as e\n"
        "assert 'torch' not in sys.modules\n"
        "print(e.thread_backend(), e.get_num_threads())\n"
    )
    assert python(code, OMP_NUM_THREADS="3").stdout.split() == ["pool", "3"]
    assert python(code, ARMLLM_NUM_THREADS="5", OMP_NUM_THREADS="3").stdout.split() == ["pool", "5"]


def test_own_threads_take_the_place_of_openmps_until_they_are_given_back():
    code = (
        "import threading, torch, armllm.kernels as k\n"
        "tasks = lambda: len(__import__('os').listdir('/proc/self/task'))\n"
        "k.set_num_threads(3)\n"
        "x, w = torch.randn(64, 512), torch.randn(4096, 512)\n"
        "out = torch.empty(64, 4096)\n"
        "k.use_own_threads()\n"
        "before = tasks()\n"
        "k.linear(out, x, w)\n"
        "print(k.thread_backend(), tasks() - before, torch.allclose(out, x @ w.T, atol=1e-3))\n"
        "k.use_own_threads(False)\n"
        "print(k.thread_backend())\n"
    )
    assert python(code, OMP_NUM_THREADS="1").stdout.split() == ["pool", "2", "True", "libgomp"]


def test_the_number_of_threads_can_be_set_and_given_back():
    default = kernels.get_num_threads()
    assert default == torch.get_num_threads()
    kernels.set_num_threads(7)
    assert kernels.get_num_threads() == 7
    kernels.set_num_threads(0)
    assert kernels.get_num_threads() == default
    with pytest.raises(ValueError, match="threads is -1"):
        kernels.set_num_threads(-1)


COUNT_CHANGES = """
import threading, time, torch, armllm.kernels as k
k.use_own_threads()
experts = k.join_experts([torch.ones(2 * 20000, 64)], [torch.ones(64, 20000)])
x, ids, weights = torch.ones(64, 64), torch.zeros(64, 1, dtype=torch.int64), torch.ones(64, 1)

def compute(out):
    k.moe_f32(out, x, ids, weights, experts)

want, same = torch.empty(64, 64), True
compute(want)
for delay in (0.001, 0.002, 0.004, 0.008):
    k.set_num_threads(1)
    out = torch.zeros(64, 64)
    thread = threading.Thread(target=compute, args=(out,))  # whose scratch memory is new
    thread.start()
    time.sleep(delay)
    k.set_num_threads(64)
    thread.join()
    same &= torch.equal(out, want)
print(same)
"""


def test_the_number_of_threads_may_change_during_a_call():
    """Catches scratch memory for fewer threads than then compute: a heap overflow of megabytes."""
    done = python(COUNT_CHANGES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"]


FORK = """
import multiprocessing, torch, armllm.kernels as k
torch.set_num_threads(2)
x, w, many = torch.randn(64, 512), torch.randn(512, 512), torch.randn(300, 1000)

def product():
    out = torch.empty(64, 512)
    k.linear(out, x, w)
    return out.numpy().tobytes(), torch.softmax(many, -1).sum().item()

def child(pipe, further):
    pipe.send((k.thread_backend(), product() == want))
    if further:  # as a server that forks its workers from one that has the model
        process = context.Process(target=child, args=(pipe, False))
        process.start()
        process.join(60)

k.use_own_threads({own})
want = product()
context = multiprocessing.get_context("fork")
receiver, sender = context.Pipe()
process = context.Process(target=child, args=(sender, True))
process.start()
process.join(120)
print(k.thread_backend(), process.exitcode)
while receiver.poll():
    print(*receiver.recv())
"""


@pytest.mark.parametrize(("own", "backend"), [(False, "libgomp"), (True, "pool")])
def test_a_forked_child_and_its_child_compute_on_threads_of_their_own(own, backend):
    """Catches a child that waits for the threads of its parent's team or pool, in a kernel or in torch."""
    done = python(FORK.replace("{own}", str(own)))
    assert done.stdout.splitlines() == [f"{backend} 0", "pool True", "pool True"], done.stderr


def test_kernels_toml_and_the_extension_agree_on_the_ops_there_are():
    scalar, *others = kernel_targets()
    assert set(scalar.ops) == set(kernels.report())
    for target in others:
        assert set(target.ops) <= set(scalar.ops)
