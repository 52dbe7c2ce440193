"""Norms, rotary embedding and activations against float64 torch, both storage types."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from armllm import kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(0, 8), (1, 1), (3, 7), (5, 64), (2, 1153), (33, 576)]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """One rounding to storage (half a unit in the last place), and some of float32 before it."""
    return {"rtol": {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(dtype, 5e-6), "atol": 1e-6}


def strided(rows: int, columns: int, dtype: torch.dtype, gap: int = 3) -> torch.Tensor:
    """Rows that don't follow each other without a gap."""
    return torch.randn(rows, columns + gap).to(dtype)[:, :columns]


def float64_rms_norm(x, weight, eps, offset=0.0):
    x, weight = x.double(), weight.double() + offset
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_is_the_float64_norm(dtype, shape, offset):
    x, weight = strided(*shape, dtype), torch.randn(shape[1]).to(dtype)
    out = strided(*shape, dtype, gap=5)
    kernels.rms_norm(out, x, weight, 1e-5, weight_offset=offset)
    assert_close(out.double(), float64_rms_norm(x, weight, 1e-5, offset), **tolerance(dtype))


def test_rms_norm_may_overwrite_its_input():
    x, weight = torch.randn(4, 33), torch.randn(33)
    expected = float64_rms_norm(x, weight, 1e-6)
    kernels.rms_norm(x, x, weight, 1e-6)
    assert_close(x.double(), expected, **tolerance(torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_add_rms_norm_keeps_the_rounded_sum_and_norms_it(dtype, shape):
    x, residual, weight = strided(*shape, dtype), strided(*shape, dtype, 1), torch.randn(shape[1]).to(dtype)
    total = x + residual
    kernels.fused_add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    assert_close(x.double(), float64_rms_norm(total, weight, 1e-6), **tolerance(dtype))


def float64_rotary(positions, x, cache, *, interleaved):
    rotary_dim = cache.shape[1]
    cosine, sine = cache.double()[positions].chunk(2, dim=-1)
    cosine, sine = cosine[:, None], sine[:, None]
    turned = x.double().clone()
    part = turned[..., :rotary_dim].clone()
    if interleaved:
        a, b = part[..., 0::2], part[..., 1::2]
        turned[..., 0:rotary_dim:2], turned[..., 1:rotary_dim:2] = (
            a * cosine - b * sine,
            b * cosine + a * sine,
        )
    else:
        a, b = part.chunk(2, dim=-1)
        turned[..., :rotary_dim] = torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)
    return turned


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 32), (24, 18), (8, 0), (256, 256)])
def test_rotary_embedding_turns_every_head(dtype, interleaved, head_dim, rotary_dim):
    tokens, query_heads, key_heads = 9, 6, 2
    # Query, key and value side by side, as a fused projection leaves them.
    packed = torch.randn(tokens, (query_heads + 2 * key_heads) * head_dim).to(dtype)
    query = packed[:, : query_heads * head_dim].view(tokens, query_heads, head_dim)
    key = packed[:, query_heads * head_dim : (query_heads + key_heads) * head_dim].unflatten(
        1, (key_heads, -1)
    )
    rest = packed[:, (query_heads + key_heads) * head_dim :].clone()
    angles = torch.rand(50, rotary_dim // 2) * 6
    cache = torch.cat((angles.cos(), angles.sin()), -1)
    positions = torch.randint(0, 50, (tokens,))
    expected = [float64_rotary(positions, x, cache, interleaved=interleaved) for x in (query, key)]
    kernels.rotary_embedding(positions, query, key, cache, interleaved=interleaved)
    assert_close(query.double(), expected[0], **tolerance(dtype))
    assert_close(key.double(), expected[1], **tolerance(dtype))
    assert torch.equal(packed[:, (query_heads + key_heads) * head_dim :], rest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (1, 14336)])
def test_silu_and_mul_gates_with_the_first_half(dtype, shape):
    x, out = strided(shape[0], 2 * shape[1], dtype), strided(*shape, dtype)
    kernels.silu_and_mul(out, x)
    gate, up = x.double().chunk(2, dim=-1)
    assert_close(out.double(), torch.nn.functional.silu(gate) * up, **tolerance(dtype))


def test_nan_and_infinity_stay_in_their_row():
    x = torch.randn(4, 20)
    x[1, 3], x[2, 5] = torch.nan, torch.inf
    out = torch.empty(4, 10)
    kernels.silu_and_mul(out, x)
    assert out[1].isnan().sum() == 1
    assert out[2, 5].isinf()
    assert out[[0, 3]].isfinite().all()


OTHER = torch.ones(4, 8, dtype=torch.bfloat16)
GOOD = {"out": torch.empty(4, 8), "x": torch.ones(4, 8), "weight": torch.ones(8)}
BAD_NORMS = {
    "x is half precision": ("x", {"x": torch.ones(4, 8, dtype=torch.float64)}),
    "x is on another device": ("x", {"x": torch.ones(4, 8, device="meta")}),
    "x has three dimensions": ("x", {"x": torch.ones(4, 8, 1)}),
    "x is transposed": ("x", {"x": torch.ones(8, 4).T}),
    "out has another dtype": ("out", {"out": OTHER}),
    "out has another shape": ("out", {"out": torch.empty(3, 8)}),
    "out is one row shown four times": ("out", {"out": torch.empty(8).expand(4, 8)}),
    "weight is too short": ("weight", {"weight": torch.ones(7)}),
    "weight has steps": ("weight", {"weight": torch.ones(16)[::2]}),
}


@pytest.mark.parametrize(("name", "change"), BAD_NORMS.values(), ids=BAD_NORMS.keys())
def test_rms_norm_names_the_argument_that_does_not_fit(name, change):
    with pytest.raises(ValueError, match=rf"^{name} "):
        kernels.rms_norm(**(GOOD | change), eps=1e-6)


@pytest.mark.parametrize("position", [-1, 10, 2**40, -(2**62)])
def test_rotary_embedding_refuses_a_position_outside_the_cache_and_writes_nothing(position):
    query, key = torch.ones(3, 2, 8), torch.ones(3, 1, 8)
    positions = torch.tensor([0, position, 1])
    with pytest.raises(ValueError, match=r"^positions\[1\] is .*\[0, 10\)"):
        kernels.rotary_embedding(positions, query, key, torch.zeros(10, 8))
    assert torch.equal(query, torch.ones(3, 2, 8))


@pytest.mark.parametrize("rotary_dim", [7, 16])
def test_rotary_embedding_refuses_a_table_that_is_odd_or_too_wide(rotary_dim):
    with pytest.raises(ValueError, match="cos_sin_cache has rotary_dim"):
        kernels.rotary_embedding(
            torch.zeros(1, dtype=torch.int64),
            torch.ones(1, 1, 8),
            torch.ones(1, 1, 8),
            torch.ones(4, rotary_dim),
        )


def test_silu_and_mul_refuses_an_odd_number_of_columns():
    with pytest.raises(ValueError, match="x has 7 columns"):
        kernels.silu_and_mul(torch.empty(2, 3), torch.ones(2, 7))
