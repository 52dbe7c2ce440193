"""vLLM's back end for CPUs from its published sdist: an hour of compiling, with `-m hours` alone."""

import hashlib
import os
import subprocess
import zipfile

import pytest
from tests.armbuild.cross_builds import built

from armbuild.artifact import archives
from armbuild.host import download, pythons
from armbuild.target import arm64_root, debian, qemu, target_packages

PYTHON = "3.11"
SOURCES = {
    "oneDNN": (
        "pool/main/o/onednn/onednn_3.7.2+ds.orig.tar.xz",
        "0cc51ca26c1af6a2bb1e71e378e7046f3ceb3e71791ee9d4e246d50f904a6ea6",
    ),
    "acl": (
        "pool/main/a/arm-compute-library/arm-compute-library_24.11+dfsg.orig.tar.xz",
        "cebdf5dfe8b35007a84e3dfb6794ffe07064d9297bffeb5df0765437bf69c556",
    ),
}
"""Source packages of Debian, which vLLM would else download as other commits."""
NEWER = ("if (!acl_obj_->asm_gemm.has_stateless_impl()) { locker.lock(); }", "locker.lock();")
"""What this oneDNN asks of a newer Arm Compute Library, and what is right with any."""
USE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
ops, functional = torch.ops._C, torch.nn.functional
torch.manual_seed(0)
for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
    x, weight = torch.randn(5, 256, dtype=dtype), torch.randn(256, dtype=dtype)
    out = torch.empty(5, 128, dtype=dtype)
    ops.silu_and_mul(out, x)
    expected = functional.silu(x[:, :128].float()) * x[:, 128:].float()
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)
    out = torch.empty_like(x)
    ops.rms_norm(out, x, weight, 1e-6)
    expected = functional.rms_norm(x.float(), (256,), weight.float(), 1e-6)
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)
    if str(dtype) in sys.argv[2:]:
        linear, bias = torch.randn(64, 256, dtype=dtype) / 16, torch.randn(64, dtype=dtype)
        handler = torch.tensor(ops.create_onednn_mm_handler(linear.t(), 128), dtype=torch.int64)
        out = torch.empty(5, 64, dtype=dtype)
        ops.onednn_mm(out, x, bias, handler)
        expected = functional.linear(x.float(), linear.float(), bias.float())
        torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)
    print(dtype, "right")
"""


def sources(folder):
    """Download what the build takes by --source; return the options."""
    options = []
    for name, (place, digest) in SOURCES.items():
        target = folder / place.rpartition("/")[2]
        download.fetch(f"{debian.archive().uri.rstrip('/')}/{place}", target)
        assert hashlib.sha256(target.read_bytes()).hexdigest() == digest
        (folder / name).mkdir()
        archives.unpack_tar(target, folder / name)
        (unpacked,) = (folder / name).iterdir()
        options.append(f"--source={name}={unpacked}")
        matmul = unpacked / "src/cpu/aarch64/matmul/acl_matmul.cpp"
        if matmul.is_file():
            text = matmul.read_text()
            assert NEWER[0] in text
            matmul.write_text(text.replace(*NEWER))
    return options


def used(wheel, folder, cpu, *products):
    """Return the types in which the wheel computes what torch does on a core; products in these alone."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    (folder / "use.py").write_text(USE)
    packages = ["torch==2.10.0", "numpy"]
    site = target_packages.cached(packages, PYTHON, host=pythons.find(PYTHON), log=folder / "uv.log")
    root = arm64_root.make(PYTHON)
    done = subprocess.run(
        [qemu.find((cpu,)), "-L", root, "-cpu", cpu, arm64_root.interpreter(root, PYTHON),
         folder / "use.py", folder / "unpacked/vllm/_C.abi3.so", *products],
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.hours
def test_vllms_back_end_becomes_an_audited_wheel_whose_ops_compute_as_torch(tmp_path):
    result = built(
        "vllm==0.19.1", tmp_path, f"--python={PYTHON}", "--env=VLLM_TARGET_DEVICE=cpu",
        "--env=ACL_ROOT_DIR={acl}", "--with=libnuma-dev", *sources(tmp_path), "--no-smoke",
    )  # fmt: skip
    assert result["audit"]["ok"]
    right = ["torch.float32 right", "torch.bfloat16 right"]
    # oneDNN has no product of bf16 for a core without bf16
    assert used(result["path"], tmp_path, "neoverse-n1", "torch.float32") == right
    assert used(result["path"], tmp_path, "neoverse-v1", "torch.float32", "torch.bfloat16") == right
