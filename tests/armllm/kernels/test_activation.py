"""Activations, layer_norm and conversions against float64 torch; any argument is computed or refused."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.testing import assert_close

from armllm import kernels
from armllm.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROUND = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
SHAPES = [(0, 8), (1, 1), (3, 7), (2, 1025), (5, 64)]

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


@st.composite
def tensors(draw, rows, columns):
    """Any small matrix: shapes, dtypes, strides that fit or don't."""
    dtype = draw(st.sampled_from([*DTYPES, torch.float64, torch.int32]))
    shape = draw(st.sampled_from([(rows, columns), (rows, columns + 1), (columns,), (rows, 1, columns)]))
    x = torch.zeros(*shape[:-1], shape[-1] + draw(st.integers(0, 2)), dtype=dtype)[..., : shape[-1]]
    kind = draw(st.sampled_from(["plain", "plain", "transposed", "expanded"]))
    if kind == "transposed" and x.ndim == 2:
        return x.t()
    if kind == "expanded" and x.ndim == 2:
        return x[:1].expand(x.shape)
    return x


FUZZED = {
    "rms_norm": lambda a, b, c, _: kernels.rms_norm(a, b, c, 1e-6),
    "fused_add_rms_norm": lambda a, b, c, _: kernels.fused_add_rms_norm(a, b, c, 1e-6),
    "layer_norm": lambda a, b, c, d: kernels.layer_norm(a, b, c, d, 1e-6),
    "silu_and_mul": lambda a, b, _c, _d: kernels.silu_and_mul(a, b),
    "gelu": lambda a, b, _c, _d: kernels.gelu(a, b),
    "relu": lambda a, b, _c, _d: kernels.relu(a, b),
    "convert": lambda a, b, _c, _d: kernels.convert(a, b),
}


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_whatever_the_faces_let_through_is_computed(data):
    """A shape, dtype or stride that a face forgot to check shows as another error, or as a crash."""
    rows, columns = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 40))
    arguments = [
        data.draw(tensors(rows, columns)),
        data.draw(tensors(rows, columns)),
        data.draw(st.one_of(tensors(rows, columns), st.just(torch.ones(columns)))),
        data.draw(st.one_of(st.none(), st.just(torch.ones(columns)), tensors(rows, columns))),
    ]
    name = data.draw(st.sampled_from(sorted(FUZZED)))
    with contextlib.suppress(ValueError):
        FUZZED[name](*arguments)


def test_the_reference_has_every_function_that_the_kernels_have():
    assert set(reference.__all__) == set(kernels.__all__)


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
