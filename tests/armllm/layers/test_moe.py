"""Experts of a checkpoint's tensors: in panels where the kernels have faster products with these."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from armllm import kernels
from armllm.layers import moe

HIDDEN, WIDTH, EXPERTS = 24, 20, 3


def experts(dtype):
    generator = torch.Generator().manual_seed(7)
    gate_up = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator).to(dtype)
    down = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator).to(dtype)
    return moe.combined(list(gate_up / 4), list(down / 4), sizes=(HIDDEN, WIDTH), activation="silu")


@pytest.mark.parametrize(
    ("fast_panels", "fast_rows", "stored"),
    [(True, False, kernels.PanelWeight), (True, True, torch.Tensor), (False, False, torch.Tensor)],
)
def test_experts_are_in_panels_where_those_are_the_fastest(monkeypatch, fast_panels, fast_rows, stored):
    """Catches a copy of all weights for nothing, and products that take them in the slower order."""
    x, ids = torch.randn(5, HIDDEN).bfloat16(), torch.tensor([[0], [1], [2], [1], [0]])
    expected = experts(torch.float32)(x.float(), ids, torch.ones(5, 1))
    monkeypatch.setattr(moe, "has_fast_panels", lambda dtype: fast_panels and dtype is torch.bfloat16)
    monkeypatch.setattr(moe, "has_fast_kernel", lambda dtype: fast_rows and dtype is torch.bfloat16)
    layer = experts(torch.bfloat16)
    assert {type(weight) for weight in (*layer.experts.gate_up, *layer.experts.down)} == {stored}
    assert_close(layer(x, ids, torch.ones(5, 1)).float(), expected, rtol=0.02, atol=0.05)
    assert {type(weight) for weight in experts(torch.float32).experts.down} == {torch.Tensor}


def test_experts_without_data_get_no_panels(monkeypatch):
    monkeypatch.setattr(moe, "has_fast_panels", lambda _dtype: True)
    weights = [torch.empty(8, 8, dtype=torch.bfloat16, device="meta")] * 2
    layer = moe.combined(weights, weights, sizes=(HIDDEN, WIDTH), activation="silu")
    assert isinstance(layer, moe.SeparateExperts)
