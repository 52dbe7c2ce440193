"""Which products are the faster ones on which CPU."""

from __future__ import annotations

import pytest
import torch

from armllm.layers import cpu


@pytest.mark.parametrize(
    ("target", "computes", "panels"),
    [("avx512", False, True), ("avx512", True, False), ("avx2", False, False), ("bf16", True, True)],
)
def test_panels_replace_torch_where_it_emulates_bfloat16(monkeypatch, target, computes, panels):
    """oneDNN multiplies bf16 on any AVX-512, but slowly without AVX512-BF16."""
    monkeypatch.setattr(cpu.kernels, "report", lambda: {"panel_matmul_bf16": {"target": target}})
    monkeypatch.setattr(cpu, "cpu_computes_bfloat16", lambda: computes)
    assert cpu.has_fast_panels.__wrapped__(torch.bfloat16) is panels
    assert not cpu.has_fast_panels.__wrapped__(torch.float16)


@pytest.mark.parametrize(
    ("machine", "target", "panels"),
    [
        ("aarch64", "neon", True),
        ("x86_64", "avx512", True),
        ("x86_64", "avx2", True),
        ("x86_64", "scalar", False),
    ],
)
def test_float32_is_torchs_without_vectors_only(monkeypatch, machine, target, panels):
    """On AArch64 it copies the weight from 15 rows on. On x86-64 MKL is slower for few rows."""
    monkeypatch.setattr(cpu.kernels, "report", lambda: {"panel_matmul_f32": {"target": target}})
    monkeypatch.setattr(cpu.platform, "machine", lambda: machine)
    assert cpu.has_fast_panels.__wrapped__(torch.float32) is panels


@pytest.mark.parametrize(
    ("machine", "dtype", "computes", "kept"),
    [
        ("aarch64", torch.bfloat16, True, True),
        ("aarch64", torch.bfloat16, False, False),
        ("aarch64", torch.float32, False, True),
        ("aarch64", torch.float16, True, False),
        ("x86_64", torch.bfloat16, True, False),
        ("x86_64", torch.float32, True, True),
    ],
)
def test_fp8_stays_where_decoding_is_no_slower_than_reading(monkeypatch, machine, dtype, computes, kept):
    monkeypatch.setattr(cpu, "wants_panels", lambda _dtype: True)
    monkeypatch.setattr(cpu, "cpu_computes_bfloat16", lambda: computes)
    monkeypatch.setattr(cpu.platform, "machine", lambda: machine)
    assert cpu.wants_fp8(dtype) is kept
    monkeypatch.setattr(cpu, "wants_panels", lambda _dtype: False)
    assert not cpu.wants_fp8(dtype)
