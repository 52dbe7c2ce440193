from __future__ import annotations

import types

import pytest
import torch
from torch.nn.functional import linear

from armllm import kernels
from armllm.checkpoint.matrix import IntegerWeight
from armllm.kernels import reference_moe


@pytest.fixture
def exact_products(monkeypatch):
    """Products with the dequantized weights in fp32, inputs not rounded: what is left are mistakes."""

    def pack(q, scales, zeros, *, bits, values="integers", target=None, offsets=None):
        assert target is None
        groups = scales.shape[1]
        assert q.dtype == torch.int8
        assert scales.dtype == torch.float32
        assert groups == 1 or q.shape[1] // groups in {32, 64, 128}
        assert zeros is None or zeros.dtype == torch.int8
        assert offsets is None or (offsets.dtype == torch.float32 and zeros is None)
        weight = IntegerWeight(q=q, scales=scales, zeros=zeros, bits=bits, offsets=offsets)
        shifted = zeros is not None or offsets is not None
        form = {
            "bits": bits,
            "group_size": q.shape[1] // groups,
            "zero_points": shifted,
            "scales": "torch.float32",
            "values": values,
        }
        return types.SimpleNamespace(out_features=q.shape[0], matrix=weight.dequantize(), **form)

    def product(out, x, weight, bias=None):
        out.copy_(linear(x, weight.matrix, bias))

    join_floating = kernels.join_experts

    def join(gate_up, down, *, gate_up_bias, down_bias, gatherer):
        assert gatherer is None
        if not isinstance(gate_up[0], types.SimpleNamespace):
            biases = {"gate_up_bias": gate_up_bias, "down_bias": down_bias}
            return join_floating(gate_up, down, gatherer=None, **biases)
        rest = {"gate_up_bias": gate_up_bias, "down_bias": down_bias, "columns": down[0].out_features}
        return types.SimpleNamespace(gate_up=gate_up, down=down, bits=8, dtype=None, **rest)

    def experts(out, x, ids, weights, joined, *, activation):
        out.zero_()
        for expert, (gate_up, down) in enumerate(zip(joined.gate_up, joined.down, strict=True)):
            first, second = (b if b is None else b[expert] for b in (joined.gate_up_bias, joined.down_bias))
            gate, up = linear(x, gate_up.matrix, first).chunk(2, -1)
            share = (weights * (ids == expert)).sum(-1, keepdim=True)
            out += share * linear(reference_moe.activate(gate, up, activation), down.matrix, second)

    monkeypatch.setattr(kernels, "pack_weight", pack)
    monkeypatch.setattr(kernels, "join_experts", join)
    monkeypatch.setattr(kernels, "moe_w8a8", experts)
    monkeypatch.setattr(kernels, "matmul_w4a8", product)
    monkeypatch.setattr(kernels, "matmul_w8a8", product)
