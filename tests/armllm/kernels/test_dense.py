"""Products with floating-point weights, as they are and in panels, against float64 torch."""

from __future__ import annotations

import pytest
import torch

from armllm import kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SIZES = [(1, 1, 1), (1, 65, 33), (2, 16, 64), (9, 129, 70), (17, 64, 96), (40, 200, 129)]


FORMS = pytest.mark.parametrize(
    "form", [lambda weight: weight, kernels.pack_panels], ids=["as it is", "panels"]
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


def problem(rows, out_features, in_features, dtype):
    """Rows with a gap after each, a weight whose products have a size of about 1, a bias, a place."""
    x = torch.randn(rows, in_features + 3).to(dtype)[:, :in_features]
    weight = (torch.randn(out_features, in_features) / in_features**0.5).to(dtype)
    out = torch.zeros(rows, out_features + 5, dtype=dtype)[:, :out_features]
    return out, x, weight, torch.randn(out_features).to(dtype)


@FORMS
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_float64_product(size, dtype, with_bias, form):
    out, x, weight, bias = problem(*size, dtype)
    kernels.linear(out, x, form(weight), bias if with_bias else None)
    expected = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    size_of_terms = x.double().abs() @ weight.double().abs().T
    sums = 12 * size[2] ** 0.5 * 2**-24 * size_of_terms
    assert ((out.double() - expected).abs() <= sums + torch.finfo(dtype).eps * expected.abs() + 1e-6).all()


@FORMS
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_beside_any_others(dtype, form):
    out, x, weight, bias = problem(37, 130, 100, dtype)
    weight = form(weight)
    kernels.linear(out, x, weight, bias)
    for rows in (1, 2, 5, 16, 17):
        part = torch.empty(rows, 130, dtype=dtype)
        kernels.linear(part, x[:rows], weight, bias)
        assert torch.equal(part, out[:rows])


@FORMS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1])
def test_rows_without_a_gap_have_the_bits_of_rows_with_one(offset, dtype, form):
    """Such rows of fp32 are read where they lie, on any boundary."""
    out, x, weight, bias = problem(37, 160, 96, dtype)
    weight = form(weight)
    kernels.linear(out, x, weight, bias)
    together = torch.empty(offset + x.numel(), dtype=dtype)[offset:].view(x.shape).copy_(x)
    kept = together.clone()
    other = torch.empty(37, 160, dtype=dtype)
    kernels.linear(other, together, weight, bias)
    assert torch.equal(other, out)
    assert torch.equal(together, kept)


@FORMS
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_features_leave_the_bias(dtype, form):
    out, bias = torch.empty(3, 20, dtype=dtype), torch.randn(20).to(dtype)
    kernels.linear(out, torch.empty(3, 0, dtype=dtype), form(torch.empty(20, 0, dtype=dtype)), bias)
    assert torch.equal(out, bias.expand(3, 20))


@FORMS
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_and_an_infinity_reach_their_row_alone(dtype, form):
    out, x, weight, _ = problem(4, 70, 40, dtype)
    x[1, 3], x[2, 39] = torch.nan, torch.inf
    kernels.linear(out, x, form(weight))
    assert out[[0, 3]].isfinite().all()
    assert out[1].isnan().all()
    assert not out[2].isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group_size", [0, 12, 64])
def test_a_product_with_fp8_has_the_bits_of_one_with_the_decoded_weight(dtype, group_size):
    out, x, weight, bias = problem(19, 130, 100, dtype)
    small = weight.float().mul(64).to(torch.float8_e4m3fn)
    scales = torch.rand(130, -(-100 // group_size) if group_size else 1) / 64
    each = scales.repeat_interleave(group_size or 100, 1)[:, :100]
    packed = kernels.pack_fp8(small, scales, group_size=group_size, dtype=dtype)
    panels = kernels.pack_panels((small.float() * each).to(dtype))
    for rows in (1, 3, 19):
        expected = torch.empty(rows, 130, dtype=dtype)
        kernels.linear(expected, x[:rows], panels, bias)
        kernels.linear(out[:rows], x[:rows], packed, bias)
        assert torch.equal(out[:rows], expected)


def test_what_is_no_fp8_weight_is_named():
    weight, scales = torch.ones(6, 8).to(torch.float8_e4m3fn), torch.ones(6, 1)
    for change, words in (
        ({"weight": torch.ones(6, 8).to(torch.float8_e5m2)}, "weight has dtype torch.float8_e5m2, expected"),
        ({"weight": torch.full((6, 8), torch.nan).to(torch.float8_e4m3fn)}, "weight has values that are NaN"),
        ({"scales": torch.ones(6, 2)}, r"scales has shape \[6, 2\], expected \[6, 1\]"),
        ({"scales": scales * 128}, "scales has values beyond 127"),
        ({"scales": scales * torch.nan}, "scales has values beyond 127, or no numbers"),
        ({"group_size": 6}, "group_size is 6, expected a multiple of 4"),
        ({"dtype": torch.float64}, "dtype is .*float64"),
    ):
        arguments = {"weight": weight, "scales": scales, "dtype": torch.float32, **change}
        with pytest.raises(ValueError, match=f"^{words}"):
            kernels.pack_fp8(**arguments)
    packed = kernels.pack_fp8(weight, scales, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"^x has dtype torch\.float32, expected torch\.bfloat16"):
        kernels.linear(torch.empty(1, 6), torch.ones(1, 8), packed)


def test_what_does_not_fit_is_named():
    out, x, weight, bias = problem(4, 6, 8, torch.bfloat16)
    with pytest.raises(ValueError, match=r"^weight has shape \[6, 7\], expected \[out_features, 8\]"):
        kernels.linear(out, x, weight[:, :7], bias)
    with pytest.raises(ValueError, match=r"^weight must be contiguous"):
        kernels.linear(out, x, torch.empty(6, 16, dtype=torch.bfloat16)[:, :8], bias)
    with pytest.raises(ValueError, match=r"^bias has dtype torch\.float32"):
        kernels.linear(out, x, weight, bias.float())
    with pytest.raises(ValueError, match=r"^out has shape \[4, 5\]"):
        kernels.linear(out[:, :5], x, weight, bias)
    panels = kernels.pack_panels(weight)
    with pytest.raises(ValueError, match=r"^x has 7 features, weight 8"):
        kernels.linear(out, x[:, :7].contiguous(), panels, bias)
    with pytest.raises(ValueError, match=r"^weight\.data has dtype torch\.bfloat16, expected torch\.float32"):
        kernels.linear(out.float(), x.float(), panels, bias.float())
    with pytest.raises(ValueError, match=r"^weight has dtype torch\.float64"):
        kernels.pack_panels(weight.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_panels_hold_sixteen_columns_and_pairs_of_bfloat16(dtype):
    weight = torch.arange(18 * 6).view(18, 6).to(dtype)
    panels = kernels.pack_panels(weight).data
    assert panels.shape == (2, 8 * 16)
    expected = [weight[0, 2], weight[0, 3]] if dtype is torch.bfloat16 else [weight[0, 2], weight[1, 2]]
    assert panels[0, 32:34].tolist() == [value.item() for value in expected]
    assert panels[1].view(4, 32)[:, 4:16].count_nonzero() == panels[:, 96:].count_nonzero() == 0


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "features"), [(5, 3), (33, 700), (64, 256)])
def test_panels_are_filled_from_pieces_of_any_dtype(dtype, stored, rows, features):
    """A piece ends within a panel, and features within a block and within a group of four."""
    weight = torch.randn(rows, features + 1).to(stored)[:, :features]
    panels = kernels.PanelWeight.empty(rows, features, dtype)
    for first, last in ((0, rows // 3), (rows // 3, rows)):
        panels.put(first, weight[first:last])
    whole = torch.nn.functional.pad(weight.to(dtype), (0, -features % 4, 0, -rows % 16))
    # Where the second feature of the first column lies: at 1 if several features stand side by side.
    second = kernels.pack_panels(torch.tensor([[0, 1, 0, 0]]).to(dtype)).data[0].argmax().item()
    third = kernels.pack_panels(torch.tensor([[0, 0, 1, 0]]).to(dtype)).data[0].argmax().item()
    step = 1 if second == 16 else 2 if third == 32 else 4
    expected = whole.view(-(-rows // 16), 16, -1, step).transpose(1, 2)
    assert torch.equal(panels.data, expected.reshape(panels.data.shape))


@pytest.mark.parametrize("first", [-1, 1, 2**62])
def test_rows_beyond_the_panels_are_refused(first):
    panels = kernels.PanelWeight.empty(16, 8, torch.float32)
    with pytest.raises(ValueError, match=rf"^rows {first} and on, 16, don't fit into 1 panels"):
        panels.put(first, torch.ones(16, 8))
    with pytest.raises(ValueError, match=r"^panels has shape \[1, 128\]"):
        panels.put(0, torch.ones(16, 12))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 3, 32, 20), (5, 2, 16, 7), (0, 2, 16, 8), (40, 4, 48, 64)])
def test_products_of_heads_have_the_bits_of_products_one_by_one(size, dtype):
    tokens, heads, out_features, in_features = size
    wide = torch.randn(tokens, heads, in_features + 3).to(dtype)
    x, weight = wide[..., :in_features], torch.randn(heads, out_features, in_features).to(dtype)
    out = torch.full((tokens, heads + 1, out_features + 4), 7.0, dtype=dtype)
    kernels.head_linear(out[:, :heads, :out_features], x, kernels.pack_panels(weight.flatten(0, 1)))
    for head in range(heads):
        expected = torch.empty(tokens, out_features, dtype=dtype)
        kernels.linear(expected, x[:, head].contiguous(), kernels.pack_panels(weight[head]))
        assert torch.equal(out[:, head, :out_features], expected)
    assert (out[:, heads] == 7).all()
    assert (out[..., out_features:] == 7).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_products_of_heads_are_the_same_with_any_number_of_threads(threads):
    x, weight = torch.randn(70, 5, 40), kernels.pack_panels(torch.randn(5 * 64, 40))
    outs = [torch.empty(70, 5, 64) for _ in range(2)]
    before = kernels.get_num_threads()
    for number, out in zip((threads, 2), outs, strict=True):
        kernels.set_num_threads(number)
        kernels.head_linear(out, x, weight)
    kernels.set_num_threads(before)
    assert torch.equal(*outs)


def test_what_does_not_fit_heads_is_named():
    x, weight = torch.ones(3, 2, 8), kernels.pack_panels(torch.ones(32, 8))
    with pytest.raises(ValueError, match=r"^x has shape \[3, 2, 7\], expected \[tokens, heads, 8\]"):
        kernels.head_linear(torch.empty(3, 2, 16), x[..., :7], weight)
    with pytest.raises(
        ValueError, match=r"^weight has 32 rows, expected a multiple of 16 for each of the 3 "
    ):
        kernels.head_linear(torch.empty(3, 3, 16), torch.ones(3, 3, 8), weight)
    with pytest.raises(
        ValueError, match=r"^weight has 32 rows, expected a multiple of 16 for each of the 0 "
    ):
        kernels.head_linear(torch.empty(3, 0, 16), torch.ones(3, 0, 8), weight)
    with pytest.raises(ValueError, match=r"^out has shape \[3, 2, 8\], expected \[3, 2, 16\]"):
        kernels.head_linear(torch.empty(3, 2, 8), x, weight)
    with pytest.raises(ValueError, match=r"^weight\.data has dtype torch\.float32, expected torch\.float16"):
        kernels.head_linear(torch.empty(3, 2, 16).half(), x.half(), weight)
