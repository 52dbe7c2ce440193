"""Experts of a checkpoint's tensors: in panels where the kernels have faster products with these."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.testing import assert_close

from armllm import kernels
from armllm.checkpoint.weights import LoadingWeights
from armllm.layers import cpu, moe

HIDDEN, WIDTH, EXPERTS = 24, 20, 3


def experts(dtype):
    generator = torch.Generator().manual_seed(7)
    gate_up = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator).to(dtype)
    down = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator).to(dtype)
    gate_up, down = (list(map(moe.placed, whole / 4)) for whole in (gate_up, down))
    return moe.combined(gate_up, down, sizes=(HIDDEN, WIDTH), activation="silu")


@pytest.mark.parametrize(
    ("fast_panels", "fast_rows", "stored"),
    [(True, False, kernels.PanelWeight), (True, True, torch.Tensor), (False, False, torch.Tensor)],
)
def test_experts_are_in_panels_where_those_are_the_fastest(monkeypatch, fast_panels, fast_rows, stored):
    """Catches a copy of all weights for nothing, and products that take them in the slower order."""
    x, ids = torch.randn(5, HIDDEN).bfloat16(), torch.tensor([[0], [1], [2], [1], [0]])
    expected = experts(torch.float32)(x.float(), ids, torch.ones(5, 1))
    monkeypatch.setattr(cpu, "has_fast_panels", lambda dtype: fast_panels and dtype is torch.bfloat16)
    monkeypatch.setattr(cpu, "has_fast_kernel", lambda dtype: fast_rows and dtype is torch.bfloat16)
    layer = experts(torch.bfloat16)
    assert {type(weight) for weight in (*layer.experts.gate_up, *layer.experts.down)} == {stored}
    assert_close(layer(x, ids, torch.ones(5, 1)).float(), expected, rtol=0.02, atol=0.05)
    assert {type(weight) for weight in experts(torch.float32).experts.down} == {torch.Tensor}


def test_experts_without_data_get_no_panels(monkeypatch):
    monkeypatch.setattr(cpu, "has_fast_panels", lambda _dtype: True)
    weights = [moe.placed(torch.empty(8, 8, dtype=torch.bfloat16, device="meta"))] * 2
    layer = moe.combined(weights, weights, sizes=(HIDDEN, WIDTH), activation="silu")
    assert isinstance(layer, moe.SeparateExperts)


class File:
    """All experts of a layer in two tensors of bf16."""

    def __init__(self):
        self.tensors = {
            "experts.gate_up_proj": torch.randn(EXPERTS, 2 * WIDTH, HIDDEN).bfloat16(),
            "experts.down_proj": torch.randn(EXPERTS, HIDDEN, WIDTH).bfloat16(),
        }

    def names(self):
        return self.tensors.keys()

    def read(self, name):
        return self.tensors[name]


def test_experts_are_converted_one_by_one(monkeypatch):
    """Catches a whole layer in fp32 beside its panels: 78 MiB more in a small gpt-oss."""
    seen = []

    def pack(matrix):
        assert all(one() is None for one in seen)
        seen.append(weakref.ref(matrix))
        return kernels.PanelWeight.empty(*matrix.shape, matrix.dtype)

    monkeypatch.setattr(cpu, "has_fast_panels", lambda _dtype: True)
    monkeypatch.setattr(cpu, "has_fast_kernel", lambda _dtype: False)
    monkeypatch.setattr(kernels, "pack_panels", pack)
    weights = LoadingWeights(File(), torch.float32)
    layer = moe.load_experts(weights, EXPERTS, HIDDEN, WIDTH, activation="silu")
    assert len(seen) == 2 * EXPERTS
    assert isinstance(layer, moe.FusedExperts)


def test_separate_experts_have_tensors_of_their_own():
    """Catches stacked experts that a model looks for one by one, and the other way round."""
    file = File()
    weights = LoadingWeights(file, torch.float32).scope("experts")
    assert not moe.are_separate(weights)
    file.tensors["0.up_proj.weight"] = torch.ones(1)
    assert not moe.are_separate(weights)
    file.tensors["experts.0.up_proj.weight"] = torch.ones(1)
    assert moe.are_separate(weights)
