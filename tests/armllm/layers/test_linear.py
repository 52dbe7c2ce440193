"""Which product a dense layer takes on which CPU, and that all of them are the same product."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from armllm import kernels
from armllm.checkpoint.folder import Checkpoint
from armllm.checkpoint.matrix import IntegerWeight
from armllm.checkpoint.weights import LoadingWeights
from armllm.layers import cpu, linear


@pytest.fixture
def cpu_has(monkeypatch):
    """Set what a CPU has: fast kernels for weights as they are, for panels, oneDNN's products in 16 bits."""

    def has(*, fast=False, panels=False, onednn=False):
        monkeypatch.setattr(cpu, "has_fast_kernel", lambda _dtype: fast)
        monkeypatch.setattr(cpu, "has_fast_panels", lambda dtype: panels and dtype is torch.bfloat16)
        monkeypatch.setattr(cpu, "has_torch_product", lambda dtype: onednn or dtype is torch.float32)

    return has


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_without_onednn_are_multiplied_in_panels(cpu_has, dtype):
    cpu_has()
    weight, bias = torch.randn(50, 24).to(dtype), torch.randn(50).to(dtype)
    product = linear.dense(weight, bias)
    assert isinstance(product.weight, kernels.PanelWeight)
    assert cpu.has_own_products(dtype)
    x = torch.randn(3, 24).to(dtype)
    expected = x.double() @ weight.double().T + bias.double()
    assert torch.allclose(product(x).double(), expected, rtol=2**-7, atol=2**-6)


def test_a_fast_kernel_takes_weights_as_they_are(cpu_has):
    cpu_has(fast=True, onednn=True)
    weight = torch.randn(16, 8, dtype=torch.bfloat16)
    assert linear.dense(weight).weight is weight
    assert cpu.has_own_products(torch.bfloat16)


def test_with_arms_bf16_instructions_bfloat16_goes_in_panels_and_nothing_else(cpu_has):
    """torch's product there copies the whole weight into another order in every call."""
    cpu_has(panels=True, onednn=True)
    weight = torch.randn(16, 8)
    assert isinstance(linear.dense(weight.bfloat16()).weight, kernels.PanelWeight)
    assert cpu.has_own_products(torch.bfloat16)
    assert linear.dense(weight).weight is weight


def test_float32_of_torch_stays_where_it_is(cpu_has):
    cpu_has()
    weight = torch.randn(16, 8)
    product = linear.dense(weight)
    assert isinstance(product, linear.DenseLinear)
    assert product.weight is weight
    assert not cpu.has_own_products(torch.float32)


def test_a_large_tied_head_is_not_kept_twice(cpu_has, monkeypatch):
    cpu_has()
    table = torch.randn(32, 8, dtype=torch.bfloat16)
    assert isinstance(linear.tied_head(table).weight, kernels.PanelWeight)
    monkeypatch.setattr(linear, "LARGEST_TIED", table.nbytes - 1)
    product = linear.tied_head(table)
    assert product.weight is table
    x = torch.randn(2, 8, dtype=torch.bfloat16)
    assert torch.allclose(product(x).float(), x.float() @ table.float().T, rtol=2**-7, atol=2**-6)


def test_a_model_without_data_gets_no_panels(cpu_has):
    cpu_has()
    product = linear.dense(torch.empty(16, 8, dtype=torch.bfloat16, device="meta"))
    assert isinstance(product, linear.DenseLinear)


def test_panels_are_made_from_the_files_without_a_copy_in_the_wanted_dtype(cpu_has, monkeypatch, tmp_path):
    """Catches a whole matrix in fp32 beside its panels, which is a fifth of the memory of a small model."""
    cpu_has()
    stored = {"a": torch.randn(21, 24, dtype=torch.bfloat16), "b": torch.randn(30, 24, dtype=torch.bfloat16)}
    save_file({f"{name}.weight": weight for name, weight in stored.items()}, tmp_path / "model.safetensors")
    weights = LoadingWeights(Checkpoint(tmp_path), torch.float16)
    monkeypatch.setattr(weights, "take", None)
    monkeypatch.setattr(weights, "concatenate", None)
    x = torch.randn(3, 24).half()
    for parts in (["a"], ["a", "b"]):
        product = linear.load_linear(weights, {name: len(stored[name]) for name in parts}, 24, bias=False)
        assert isinstance(product.weight, kernels.PanelWeight)
        whole = torch.cat([stored[name] for name in parts]).half()
        assert torch.equal(product(x), linear.dense(whole)(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"input_scale": 0.003},
        {"input_scale": 0.003, "input_zero": 5},
        {"input_scale": 0.003, "input_zero": -128},
        {"input_zero": 0},
        {"columns": torch.arange(63, -1, -1)},
    ],
    ids=["own scales", "static", "above zero", "below zero", "own zero points", "columns"],
)
def test_the_matrix_of_a_quantized_product_is_the_decoded_one(tmp_path, inputs, dtype):
    """Small scales of inputs would be lost in 16 bits."""
    torch.manual_seed(2)
    weight = IntegerWeight(
        q=torch.randint(-127, 128, (48, 64), dtype=torch.int8),
        scales=torch.rand(48, 2) * 1e-3 + 1e-4,
        zeros=None,
        bits=8,
        **inputs,
    )
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    product = linear.quantized(weight)
    found = linear.matrix_of(product, LoadingWeights(Checkpoint(tmp_path), dtype), 48, 64)
    assert found.dtype is dtype
    step = 2**-10 if dtype is torch.float16 else 1e-6
    # The zero point times all weights of a row is added and taken off again, with a rounding each time.
    exact = weight.dequantize()
    rounding = 2**-22 * abs(inputs.get("input_zero", 0)) * float(exact.abs().sum(dim=1).max())
    assert torch.allclose(found.float(), exact, rtol=step, atol=1e-6 + rounding)


def test_the_matrix_of_a_dense_product_is_a_copy_of_its_own(tmp_path):
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        weight = torch.randn(40, 24).to(dtype)
        weights = LoadingWeights(Checkpoint(tmp_path), dtype)
        assert torch.equal(linear.matrix_of(linear.dense(weight), weights, 40, 24), weight)
