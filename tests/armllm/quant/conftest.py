from __future__ import annotations

import types
from functools import partial

import pytest
import torch

from armllm import kernels
from armllm.checkpoint.matrix import IntegerWeight


@pytest.fixture
def exact_products(monkeypatch):
    """Products with the dequantised weights in fp32, inputs not rounded: what is left are mistakes."""

    def pack(q, scales, zeros, *, bits, target=None, offsets=None):
        assert target is None
        groups = scales.shape[1]
        assert q.dtype == torch.int8
        assert scales.dtype == torch.float32
        assert groups == 1 or q.shape[1] // groups in {32, 64, 128}
        assert zeros is None or zeros.dtype == torch.int8
        assert offsets is None or (offsets.dtype == torch.float32 and zeros is None)
        weight = IntegerWeight(q=q, scales=scales, zeros=zeros, bits=bits, offsets=offsets)
        shifted = zeros is not None or offsets is not None
        form = {"bits": bits, "group_size": q.shape[1] // groups, "zero_points": shifted}
        return types.SimpleNamespace(out_features=q.shape[0], matrix=weight.dequantize(), **form)

    def product(out, x, weight, bias=None):
        out.copy_(torch.nn.functional.linear(x, weight.matrix, bias))

    def join(gate_up, down):
        return types.SimpleNamespace(gate_up=gate_up, down=down, bits=8, dtype=None)

    def experts(out, x, ids, weights, joined, *, activation):
        activate = {
            "silu": torch.nn.functional.silu,
            "gelu": torch.nn.functional.gelu,
            "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
        }[activation]
        out.zero_()
        for expert, (gate_up, down) in enumerate(zip(joined.gate_up, joined.down, strict=True)):
            gate, up = (x @ gate_up.matrix.T).chunk(2, -1)
            share = (weights * (ids == expert)).sum(-1, keepdim=True)
            out += share * ((activate(gate) * up) @ down.matrix.T)

    monkeypatch.setattr(kernels, "pack_weight", pack)
    monkeypatch.setattr(kernels, "join_experts", join)
    monkeypatch.setattr(kernels, "moe_w8a8", experts)
    monkeypatch.setattr(kernels, "matmul_w4a8", product)
    monkeypatch.setattr(kernels, "matmul_w8a8", product)
