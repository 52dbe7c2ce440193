"""Activations, layer_norm and conversions against float64 torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from armllm import kernels
from armllm.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROUND = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
SHAPES = [(0, 8), (1, 1), (3, 7), (2, 1153), (5, 64)]

PLAIN = {
    "gelu": (kernels.gelu, functional.gelu),
    "gelu_tanh": (
        lambda out, x: kernels.gelu(out, x, "tanh"),
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
    "quick_gelu": (kernels.quick_gelu, lambda x: x * torch.sigmoid(1.702 * x)),
    "relu": (kernels.relu, functional.relu),
}
GATED = {
    "silu": (kernels.silu_and_mul, functional.silu),
    "gelu": (kernels.gelu_and_mul, functional.gelu),
    "gelu_tanh": (
        lambda out, x: kernels.gelu_and_mul(out, x, approximate="tanh"),
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("function", "exact"), PLAIN.values(), ids=PLAIN.keys())
def test_plain_activations_are_those_of_float64(function, exact, shape, dtype):
    x = (torch.randn(shape[0], shape[1] + 3) * 4).to(dtype)[:, : shape[1]]
    expected = exact(x.double())
    out = torch.empty(shape, dtype=dtype)
    function(out, x)
    assert_close(out.double(), expected, rtol=ROUND[dtype], atol=1e-6)
    function(x, x)
    assert torch.equal(x, out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("function", "exact"), GATED.values(), ids=GATED.keys())
def test_gated_activations_are_those_of_float64(function, exact, shape, dtype):
    x = (torch.randn(shape[0], 2 * shape[1] + 1) * 4).to(dtype)[:, : 2 * shape[1]]
    out = torch.empty(shape, dtype=dtype)
    function(out, x)
    gate, up = x.double().chunk(2, -1)
    assert_close(out.double(), exact(gate) * up, rtol=ROUND[dtype], atol=3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_norm_is_the_float64_norm(dtype, shape, with_bias):
    x = (torch.randn(shape) + 5).to(dtype)
    weight, bias = torch.randn(2, shape[1]).to(dtype)
    out = torch.empty_like(x)
    kernels.layer_norm(out, x, weight, bias if with_bias else None, 1e-5)
    exact_bias = bias.double() if with_bias else None
    expected = functional.layer_norm(x.double(), shape[1:], weight.double(), exact_bias, 1e-5)
    assert_close(out.double(), expected, rtol=ROUND[dtype], atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_adds_to_a_residual_as_torch_does(dtype):
    x, residual = torch.randn(2, 5, 67).to(dtype)
    weight, bias = torch.randn(2, 67).to(dtype)
    total, expected, out = x + residual, torch.empty_like(x), torch.empty_like(x)
    kernels.layer_norm(expected, total, weight, bias, 1e-5)
    kernels.layer_norm(out, x, weight, bias, 1e-5, residual=residual)
    assert torch.equal(residual, total)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_conversions_round_as_torch_does(source, to):
    x = torch.randint(-(2**31), 2**31 - 1, (3, 4099)).to(torch.int32).view(torch.float32).to(source)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 65519.0, 65520.0, 2**-25, 6e-8])
    x[0, : len(special)] = special.to(source)
    out = torch.empty(x.shape, dtype=to)
    kernels.convert(out, x)
    expected = x.to(to)
    assert torch.equal(out.isnan(), expected.isnan())
    bits = torch.int32 if to is torch.float32 else torch.int16
    kept = ~expected.isnan()
    assert torch.equal(out[kept].view(bits), expected[kept].view(bits))


def test_an_unknown_approximation_is_refused():
    x = torch.ones(1, 4)
    for function in (kernels.gelu, kernels.gelu_and_mul):
        with pytest.raises(ValueError, match="approximate is 'fast', expected 'none' or 'tanh'"):
            function(torch.empty(1, 2 if function is kernels.gelu_and_mul else 4), x, "fast")


def test_the_reference_has_every_function_that_the_kernels_have():
    assert [name for name in kernels.__all__ if not hasattr(reference, name)] == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_agrees_with_the_kernels(dtype):
    x, weight = torch.randn(3, 48).to(dtype), torch.randn(48).to(dtype)
    for name, rest in (
        ("rms_norm", (weight, 1e-5)),
        ("layer_norm", (weight, None, 1e-5)),
        ("gelu", ("tanh",)),
        ("quick_gelu", ()),
        ("relu", ()),
        ("convert", ()),
    ):
        ours, plain = torch.empty_like(x), torch.empty_like(x)
        getattr(kernels, name)(ours, x, *rest)
        getattr(reference, name)(plain, x, *rest)
        assert_close(ours, plain, rtol=2 * ROUND[dtype], atol=1e-5)
