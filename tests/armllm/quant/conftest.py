from __future__ import annotations

import types

import pytest
import torch

from armllm import kernels
from armllm.quant.weight import IntegerWeight


@pytest.fixture
def exact_products(monkeypatch):
    """Products with the dequantised weights in fp32, inputs not rounded: what is left are mistakes."""

    def pack(q, scales, zeros, *, bits, target=None):
        assert target is None
        groups = scales.shape[1]
        assert q.dtype == torch.int8
        assert scales.dtype == torch.float32
        assert groups == 1 or (bits == 4 and q.shape[1] // groups in {32, 64, 128})
        assert zeros is None or (bits == 4 and zeros.dtype == torch.int8)
        weight = IntegerWeight(q=q, scales=scales, zeros=zeros, bits=bits)
        return types.SimpleNamespace(out_features=q.shape[0], bits=bits, matrix=weight.dequantize())

    def product(out, x, weight, bias=None):
        out.copy_(torch.nn.functional.linear(x, weight.matrix, bias))

    monkeypatch.setattr(kernels, "pack_weight", pack)
    monkeypatch.setattr(kernels, "matmul_w4a8", product)
    monkeypatch.setattr(kernels, "matmul_w8a8", product)
