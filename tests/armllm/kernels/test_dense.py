"""Products with weights as they are, against float64 torch."""

from __future__ import annotations

import pytest
import torch

from armllm import kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SIZES = [(1, 1, 1), (1, 65, 33), (2, 16, 64), (9, 129, 70), (17, 64, 96), (40, 200, 129)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


def problem(rows, out_features, in_features, dtype):
    """Rows with a gap after each, a weight whose products have a size of about 1, a bias, a place."""
    x = torch.randn(rows, in_features + 3).to(dtype)[:, :in_features]
    weight = (torch.randn(out_features, in_features) / in_features**0.5).to(dtype)
    out = torch.zeros(rows, out_features + 5, dtype=dtype)[:, :out_features]
    return out, x, weight, torch.randn(out_features).to(dtype)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_float64_product(size, dtype, with_bias):
    out, x, weight, bias = problem(*size, dtype)
    kernels.linear(out, x, weight, bias if with_bias else None)
    expected = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    size_of_terms = x.double().abs() @ weight.double().abs().T
    sums = 12 * size[2] ** 0.5 * 2**-24 * size_of_terms
    assert ((out.double() - expected).abs() <= sums + torch.finfo(dtype).eps * expected.abs() + 1e-6).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_beside_any_others(dtype):
    out, x, weight, bias = problem(37, 130, 100, dtype)
    kernels.linear(out, x, weight, bias)
    for rows in (1, 2, 5, 16, 17):
        part = torch.empty(rows, 130, dtype=dtype)
        kernels.linear(part, x[:rows], weight, bias)
        assert torch.equal(part, out[:rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_features_leave_the_bias(dtype):
    out, bias = torch.empty(3, 20, dtype=dtype), torch.randn(20).to(dtype)
    kernels.linear(out, torch.empty(3, 0, dtype=dtype), torch.empty(20, 0, dtype=dtype), bias)
    assert torch.equal(out, bias.expand(3, 20))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_and_an_infinity_reach_their_row_alone(dtype):
    out, x, weight, _ = problem(4, 70, 40, dtype)
    x[1, 3], x[2, 39] = torch.nan, torch.inf
    kernels.linear(out, x, weight)
    assert out[[0, 3]].isfinite().all()
    assert out[1].isnan().all()
    assert not out[2].isfinite().any()


def test_what_does_not_fit_is_named():
    out, x, weight, bias = problem(4, 6, 8, torch.bfloat16)
    with pytest.raises(ValueError, match=r"^weight has shape \[6, 7\], expected \[6, 8\]"):
        kernels.linear(out, x, weight[:, :7], bias)
    with pytest.raises(ValueError, match=r"^weight must be contiguous"):
        kernels.linear(out, x, torch.empty(6, 16, dtype=torch.bfloat16)[:, :8], bias)
    with pytest.raises(ValueError, match=r"^bias has dtype torch\.float32"):
        kernels.linear(out, x, weight, bias.float())
    with pytest.raises(ValueError, match=r"^out has shape \[4, 5\]"):
        kernels.linear(out[:, :5], x, weight, bias)
