"""Quantization of rows and products with 4- and 8-bit weights, against exact integers and float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from armllm import kernels
from armllm.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROWS = [*range(1, 18), 33]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(8)


def random_weight(n, k, group, bits, *, zero_points, scale=None):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    groups = 1 if group == 0 else k // group
    q = torch.randint(low, high, (n, k), dtype=torch.int8)
    scales = torch.rand(n, groups) + 0.5 if scale is None else torch.full((n, groups), scale)
    zeros = torch.randint(low, 9 if bits == 4 else high, (n, groups), dtype=torch.int8)
    return q, scales, zeros if zero_points else None


def multiply(x, quantized, bits, bias=None):
    q, scales, zeros = quantized
    weight = kernels.pack_weight(q, scales, zeros, bits=bits)
    out = torch.full((x.shape[0], q.shape[0] + 3), torch.nan, dtype=x.dtype)[:, : q.shape[0]]
    (kernels.matmul_w4a8 if bits == 4 else kernels.matmul_w8a8)(out, x, weight, bias)
    return out


CASES = [
    (4, 37, 96, 32), (4, 64, 128, 64), (4, 5, 384, 128), (4, 33, 77, 0), (4, 4, 32, 0), (8, 37, 77, 0),
    (8, 18, 96, 0), (8, 3, 1, 0), (8, 37, 96, 32), (8, 64, 128, 64), (8, 5, 384, 128), (8, 3, 32, 32),
]  # fmt: skip


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("bits", "n", "k", "group"), CASES)
def test_sums_of_products_are_exact_integers(bits, n, k, group, zero_points):
    """Scales of 1 everywhere: what comes out are the integer sums themselves."""
    q, scales, zeros = random_weight(n, k, group, bits, zero_points=zero_points, scale=1.0)
    for rows in ROWS:
        x = torch.randint(-127, 128, (rows, k)).float()
        x[:, 0] = 127  # so that a row's scale is 1
        groups = scales.shape[1]
        exact = q.double().view(n, groups, -1) - (0 if zeros is None else zeros.double()[..., None])
        expected = x.double() @ exact.view(n, k).T
        assert torch.equal(multiply(x, (q, scales, zeros), bits).double(), expected), rows


@pytest.fixture
def single_thread():
    before = kernels.get_num_threads()
    kernels.set_num_threads(1)
    yield
    kernels.set_num_threads(before)


@pytest.mark.usefixtures("single_thread")  # which takes all panels
@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("n", "k", "rows"), [(20, 16928, (2, 12, 13)), (290, 1056, (5, 64, 65, 130))])
def test_long_rows_and_many_rows_are_exact_too(bits, group, n, k, rows):
    """Features in blocks, the last of 32, for a few rows, whole tiles and more; panels that are decoded."""
    weight = random_weight(n, k, group, bits, zero_points=True, scale=1.0)
    q, scales, zeros = weight
    exact = (q.double().view(n, scales.shape[1], -1) - zeros.double()[..., None]).view(n, k)
    for count in rows:
        x = torch.randint(-3, 4, (count, k)).float()  # all sums are below 2^24
        x[:, 0] = 127  # so that a row's scale is 1
        assert torch.equal(multiply(x, weight, bits).double(), x.double() @ exact.T), count


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_products_are_those_of_the_reference(dtype, with_bias, case):
    bits, n, k, group = case
    q, scales, zeros = random_weight(n, k, group, bits, zero_points=with_bias)
    packed = reference.pack_weight(q, scales, zeros, bits=bits)
    for rows in (1, 2, 7):
        x = torch.randn(rows, k + 5).to(dtype)[:, :k]
        bias = torch.randn(n).to(dtype) if with_bias else None
        expected = torch.empty(rows, n, dtype=torch.float64)
        reference.matmul_w4a8(expected, x, packed, bias)
        # A few roundings per group in float32, of terms that may cancel; one when stored.
        size = x.abs().amax(-1, keepdim=True).double() * packed.dequantize().abs().double().sum(-1)
        bound = size * (2 * scales.shape[1] + 4) * 2**-23
        bound += expected.abs() * torch.finfo(dtype).eps + 1e-6
        assert ((multiply(x, (q, scales, zeros), bits, bias).double() - expected).abs() <= bound).all(), rows


@pytest.mark.parametrize("case", CASES)
def test_offsets_are_what_zero_points_come_to(case):
    """Bit by bit; and they need not be whole steps."""
    bits, n, k, group = case
    q, scales, zeros = random_weight(n, k, group, bits, zero_points=True)
    for shift in (0, 0.37):
        x, out, offsets = torch.randn(5, k), torch.empty(5, n), -scales * (zeros + shift)
        weight = kernels.pack_weight(q, scales, None, bits=bits, offsets=offsets)
        (kernels.matmul_w4a8 if bits == 4 else kernels.matmul_w8a8)(out, x, weight)
        assert shift or torch.equal(out, multiply(x, (q, scales, zeros), bits))
        rounded, steps = torch.empty(5, k, dtype=torch.int8), torch.empty(5)
        kernels.quantize_rows(rounded, steps, x)
        exact = scales.double().unsqueeze(-1) * q.double().view(n, scales.shape[1], -1)
        exact = (exact + offsets.double().unsqueeze(-1)).view(n, k)
        inputs = rounded.double() * steps.double()[:, None]
        size = inputs.abs() @ (exact.abs() + 2 * offsets.double().abs().amax()).T
        bound = (4 * scales.shape[1] + 3) * 2.0**-23 * size
        assert ((out.double() - inputs @ exact.T).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_a_given_scale_quantizes_all_rows(dtype, case):
    """Integers beyond 127 become 127, which also holds in kernels whose sums have no room for -128."""
    bits, n, k, group = case
    q, scales, zeros = random_weight(n, k, group, bits, zero_points=True)
    packed = reference.pack_weight(q, scales, zeros, bits=bits)
    ours = kernels.pack_weight(q, scales, zeros, bits=bits)
    for rows in (1, 2, 7):
        x = (3 * torch.randn(rows, k)).to(dtype)
        x[:, k // 2] = -1e4
        x[rows // 2] *= 1e-3
        expected = torch.empty(rows, n, dtype=torch.float64)
        reference.matmul_w4a8(expected, x, packed, x_scale=0.04)
        out = torch.empty(rows, n, dtype=dtype)
        (kernels.matmul_w4a8 if bits == 4 else kernels.matmul_w8a8)(out, x, ours, x_scale=0.04)
        groups = scales.shape[1]
        magnitudes = q.double().abs().view(n, groups, -1) + zeros.double().abs()[..., None]
        size = 127 * 0.04 * (magnitudes * scales.double()[..., None]).sum((1, 2))
        bound = 4 * (groups + 2) * 2.0**-24 * size + torch.finfo(dtype).eps * expected.abs()
        assert ((out.double() - expected).abs() <= bound + torch.finfo(dtype).tiny).all()


def test_rows_without_numbers_stay_so_with_a_given_scale():
    weight = kernels.pack_weight(*random_weight(5, 64, 32, 4, zero_points=False), bits=4)
    x = torch.randn(4, 64)
    x[0], x[1, 7], x[2, 63] = 0, torch.nan, torch.inf
    out = torch.empty(4, 5)
    kernels.matmul_w4a8(out, x, weight, x_scale=0.1)
    assert (out[0] == 0).all()
    assert out[1:3].isnan().all()
    assert out[3].isfinite().all()


@pytest.mark.parametrize("target", ["scalar", "neon", "dotprod", "sve512", "i8mm"])
@pytest.mark.parametrize("case", CASES)
def test_weights_are_packed_for_every_target(target, case):
    """By the description of layouts in csrc/include/armllm/layouts.h, element by element."""
    bits, n, k, group = case
    columns, int4_columns, run, nibbles, pairs = {
        "scalar": (16, 16, 2, 0, 0),
        "neon": (4, 4, 8, 0, 0),
        "dotprod": (4, 8, 4, 0x08, 4),
        "sve512": (16, 16, 4, 0, 0),
        "i8mm": (4, 4, 8, 0x08, 1),
    }[target]
    columns = int4_columns if bits == 4 else columns
    q, scales, zeros = random_weight(n, k, group, bits, zero_points=True)
    packed = kernels.pack_weight(q, scales, zeros, bits=bits, target=target)
    assert packed.target == target
    groups, padded, panels = scales.shape[1], -(-k // 32) * 32, -(-n // columns)
    values = torch.zeros(panels * columns, padded, dtype=torch.int64)
    values[:n, :k] = q
    if bits == 8:
        blocks = values.view(panels, columns, -1, run) & 255
    else:
        if pairs:
            high, low = values.view(panels, -1, 2, pairs, padded // run, run).unbind(2)
            high, low = high.flatten(1, 2), low.flatten(1, 2)
        else:
            low, high = values.view(panels, columns, -1, 2, run).unbind(3)
        blocks = ((low & 15) | (high & 15) << 4) ^ nibbles
    floats = torch.zeros(2, panels * columns, groups)
    floats[0, :n], floats[1, :n] = scales, -scales * zeros
    floats = floats.view(2, panels, columns, groups).permute(1, 0, 3, 2).reshape(panels, -1)
    expected = torch.cat(
        [blocks.transpose(1, 2).reshape(panels, -1).to(torch.uint8), floats.contiguous().view(torch.uint8)], 1
    )
    assert torch.equal(packed.data, expected.flatten())


TABLES = {
    "e2m1": torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=torch.int8),
    "iq4_nl": torch.tensor(
        [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.int8
    ),
}


@pytest.mark.parametrize("values", TABLES)
@pytest.mark.parametrize(("n", "k", "group"), [(37, 96, 32), (5, 384, 128), (33, 77, 0), (70, 4224, 32)])
def test_numbers_in_a_table_compute_what_their_integers_do(values, n, k, group):
    """Bit for bit, in half of the memory; also with the smallest scale of MXFP4, half of 2^-127."""
    q, scales = TABLES[values][torch.randint(16, (n, k))], torch.rand(n, k // group if group else 1) + 0.5
    if group == 32:
        scales = scales.log2().floor().exp2()
        scales[0] = 2.0**-128
    whole, small = (kernels.pack_weight(q, scales, None, bits=8, values=v) for v in ("integers", values))
    columns = 16 if whole.layout.startswith("columns16") else 4
    assert whole.nbytes - small.nbytes == -(-n // columns) * columns * (-(-k // 32) * 32) // 2
    for rows in (1, 2, 7, 33, 70):
        x, (ours, theirs) = torch.randn(rows, k) * 2**20, torch.empty(2, rows, n)
        kernels.matmul_w8a8(ours, x, small)
        kernels.matmul_w8a8(theirs, x, whole)
        assert torch.equal(ours, theirs), rows
        assert ours[:, 0].any()


@pytest.mark.parametrize("values", TABLES)
@pytest.mark.parametrize("target", ["scalar", "neon", "dotprod", "sve512", "i8mm"])
def test_numbers_stand_where_the_integers_would(target, values):
    """In every layout: those of 64 bytes in the low and then in the high halves of 32."""
    q, scales = TABLES[values][torch.randint(16, (32, 96))], torch.rand(32, 3)
    whole, small = (
        kernels.pack_weight(q, scales, None, bits=8, values=v, target=target) for v in ("integers", values)
    )
    panels = 2 if target in {"scalar", "sve512"} else 8
    integers, floats = whole.data.view(panels, -1).split((32 * 96 // panels, 32 * 3 * 4 // panels), 1)
    numbers, same = small.data.view(panels, -1).split((16 * 96 // panels, 32 * 3 * 4 // panels), 1)
    numbers = numbers.reshape(panels, -1, 32)
    looked_up = TABLES[values][torch.cat((numbers & 15, numbers >> 4), -1).int()]
    assert torch.equal(looked_up.view(panels, -1), integers.view(torch.int8))
    assert torch.equal(floats, same)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("dtype", "least"), [(torch.bfloat16, 2.0**-120), (torch.float16, 2.0**-24)])
def test_scales_of_16_bits_are_kept_so_where_that_is_exact(bits, dtype, least):
    """Catches other bits than those of float32 scales, and rounded ones."""
    n, k, groups = 37, 192, 6
    q, scales, zeros = random_weight(n, k, 32, bits, zero_points=True)
    scales = (scales + 1 / 512).to(dtype).float()
    scales[3, 1:3] = torch.tensor([0.0, least])
    weight = kernels.pack_weight(q, scales, zeros, bits=bits)
    assert weight.scales == str(dtype)
    finer = scales.clone()
    finer[-1, -1] += 2.0**-20
    wide = kernels.pack_weight(q, finer, zeros, bits=bits)
    assert wide.scales == "torch.float32"
    columns = 16 if weight.layout.startswith("columns16") else 4
    assert wide.nbytes - weight.nbytes == -(-n // columns) * columns * groups * 2
    for rows in ROWS:
        x = torch.randn(rows, k)
        ours, floats = (multiply(x, (q, kept, zeros), bits)[:, : n - 1] for kept in (scales, finer))
        assert torch.equal(ours, floats), rows


def test_the_largest_scales_of_float16():
    """65504 is one, 65536 and infinity are not, and a channel's single scale stays float32."""
    q = torch.ones(1, 64, dtype=torch.int8)
    for largest, kept in ((65504.0 - 32, "float16"), (65536.0, "bfloat16"), (65536.0 + 32, "float32")):
        weight = kernels.pack_weight(
            q, torch.tensor([[largest, 1 + 2.0**-10 * (kept == "float16")]]), None, bits=8
        )
        assert weight.scales == f"torch.{kept}"
    assert kernels.pack_weight(q, torch.ones(1, 1), None, bits=8).scales == "torch.float32"


def test_a_row_does_not_depend_on_the_rest_of_the_batch():
    q, scales, zeros = random_weight(40, 256, 32, 4, zero_points=True)
    x = torch.randn(29, 256)
    together = multiply(x, (q, scales, zeros), 4)
    threads = kernels.get_num_threads()
    kernels.set_num_threads(5)
    try:
        assert torch.equal(multiply(x, (q, scales, zeros), 4), together)
    finally:
        kernels.set_num_threads(threads)


@pytest.mark.parametrize("bits", [4, 8])
def test_extreme_rows(bits):
    q, scales, _ = random_weight(7, 64, 0, bits, zero_points=False)
    x = torch.randn(6, 64)
    x[1] = 0
    x[2, 5] = torch.nan
    x[3, 6] = -torch.inf
    x[4] *= 2.0**-120
    x[5] *= 2.0**110
    bias = torch.randn(7)
    out = multiply(x, (q, scales, None), bits, bias)
    assert out[2].isnan().all()
    assert out[3].isnan().all()
    assert torch.equal(out[1], bias)
    assert torch.equal(out[4], bias)
    assert out[[0, 5]].isfinite().all()


def test_nothing_to_multiply():
    q, scales, _ = random_weight(5, 32, 32, 4, zero_points=False)
    assert multiply(torch.empty(0, 32), (q, scales, None), 4).shape == (0, 5)
    assert multiply(torch.randn(2, 32), (q[:0], scales[:0], None), 4).shape == (2, 0)
    assert torch.equal(multiply(torch.empty(2, 0), (q[:, :0], scales, None), 4), torch.zeros(2, 5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 7), (5, 64), (2, 1025)])
def test_quantized_rows_are_those_of_the_reference(dtype, asymmetric, shape):
    x = torch.randn(shape[0], shape[1] + 2).to(dtype)[:, : shape[1]]
    x[:1] *= 0
    results = []
    for ops in (kernels, reference):
        q = torch.full((shape[0], shape[1] + 3), 99, dtype=torch.int8)
        scales = torch.full((shape[0],), 99.0)
        zeros = torch.full((shape[0],), 99, dtype=torch.int32) if asymmetric else None
        ops.quantize_rows(q[:, : shape[1]], scales, x, zeros=zeros)
        results.append((q, scales, zeros))
    for ours, theirs in zip(*results, strict=True):
        if ours is not None:
            assert torch.equal(ours, theirs)


def test_quantized_rows_stand_for_the_numbers():
    x = torch.randn(4, 100) + torch.tensor([0.0, 3, -3, 20])[:, None]
    x[3] = x[3].abs()
    for zeros in (None, torch.empty(4, dtype=torch.int32)):
        q, scales = torch.empty(4, 100, dtype=torch.int8), torch.empty(4)
        kernels.quantize_rows(q, scales, x, zeros=zeros)
        shifted = q.float() - (0 if zeros is None else zeros[:, None])
        # Half a step; at the edges of an asymmetric range a whole one, since the zero point is rounded too.
        steps = 0.501 if zeros is None else 1.001
        assert ((shifted * scales[:, None] - x).abs() <= steps * scales[:, None]).all()


def test_rows_that_are_no_numbers_have_no_scale():
    x = torch.randn(3, 9)
    x[0, 8] = torch.nan
    x[2, 0] = torch.inf
    q, scales = torch.empty(3, 9, dtype=torch.int8), torch.empty(3)
    kernels.quantize_rows(q, scales, x)
    assert scales.isnan().tolist() == [True, False, True]
    assert (q[[0, 2]] == 0).all()


def weights():
    return torch.zeros(4, 64, dtype=torch.int8), torch.ones(4, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 3}, "bits is 3"),
        ({"q": torch.zeros(4, 64)}, "q has dtype"),
        ({"q": torch.full((4, 64), 8, dtype=torch.int8)}, "q has values from 8 to 8, expected -8 to 7"),
        ({"scales": torch.ones(4, 3)}, "scales has 3 groups for 64 input features"),
        ({"scales": torch.ones(4, 4)}, "scales has 4 groups"),
        ({"scales": torch.ones(3, 2)}, "scales has shape"),
        ({"scales": torch.ones(4, 2, dtype=torch.bfloat16)}, "scales has dtype"),
        ({"scales": torch.tensor([[1, 1], [1, torch.nan], [1, 1], [1, 1]])}, r"scales\[1, 1\] is nan"),
        ({"scales": torch.full((4, 2), torch.inf)}, r"scales\[0, 0\] is inf"),
        ({"zeros": torch.zeros(4, 1, dtype=torch.int8)}, "zeros has shape"),
        ({"zeros": torch.full((4, 2), 9, dtype=torch.int8)}, "zeros has values from 9 to 9"),
        ({"bits": 8, "scales": torch.ones(4, 4)}, "scales has 4 groups"),
        ({"offsets": torch.ones(4, 1)}, "offsets has shape"),
        ({"offsets": torch.ones(4, 2, dtype=torch.float16)}, "offsets has dtype"),
        ({"offsets": torch.full((4, 2), torch.nan)}, r"offsets\[0, 0\] is nan"),
        ({"offsets": torch.ones(4, 2), "zeros": torch.ones(4, 2, dtype=torch.int8)}, "both given"),
        ({"values": "e2m1"}, "values of a table are integers of 8 bits without zero points"),
        ({"values": "e2m1", "bits": 8, "offsets": torch.ones(4, 2)}, "without zero points"),
        ({"values": "iq4_nl", "bits": 8}, r"q\[0, 0\] is 0, none of the 16 integers of iq4_nl"),
        ({"values": "nf4", "bits": 8}, "values is 'nf4', expected one of integers, e2m1, iq4_nl"),
    ],
)
def test_a_weight_that_cannot_be_is_refused_by_name(change, message):
    q, scales = weights()
    with pytest.raises(ValueError, match=message):
        kernels.pack_weight(**{"q": q, "scales": scales, "zeros": None, "bits": 4} | change)


def test_arguments_that_do_not_fit_a_weight_are_refused_by_name():
    weight = kernels.pack_weight(*weights(), None, bits=4)
    out, x = torch.empty(2, 4), torch.empty(2, 64)
    for arguments, message in (
        ((out, x[:, :63], weight), "x has shape"),
        ((out[:1], x, weight), "out has shape"),
        ((out.half(), x, weight), "out has dtype"),
        ((out, x, weight, torch.empty(3)), "bias has shape"),
        ((out, x, dataclasses.replace(weight, layout="other", target="warp9")), "packed for target warp9"),
        ((out, x, kernels.pack_weight(*weights(), None, bits=4, target="i8mm")), "packed for target i8mm"),
        ((out, x, dataclasses.replace(weight, data=weight.data[1:])), "weight.data has shape"),
        ((out, x.long(), weight), "x has dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.matmul_w4a8(*arguments)
    with pytest.raises(ValueError, match="weight has 4 bits; this product takes 8"):
        kernels.matmul_w8a8(out, x, weight)


def test_a_packed_weight_says_its_size():
    weight = kernels.pack_weight(*weights(), None, bits=4)
    assert weight.nbytes == weight.data.numel() >= 4 * 64 // 2 + 4 * 2 * 4
    assert (weight.out_features, weight.in_features, weight.group_size) == (4, 64, 32)
    assert weight.target == kernels.report()["matmul_w4a8_f32"]["target"]
    assert_close(reference.pack_weight(*weights(), None, bits=4).dequantize(), torch.zeros(4, 64))


@pytest.mark.parametrize(("bits", "values"), [(4, "integers"), (8, "integers"), (8, "e2m1")])
def test_rows_of_a_packed_weight_are_those_packed_alone(bits, values):
    q, scales = torch.randint(-8, 8, (100, 64), dtype=torch.int8), torch.rand(100, 2) + 0.5
    if values != "integers":
        q = TABLES[values][q.int() + 8]
    whole = kernels.pack_weight(q, scales, None, bits=bits, values=values)
    which = torch.cat((torch.arange(16, 48), torch.arange(80, 100)))
    part = kernels.pack_weight(q[which], scales[which], None, bits=bits, values=values)
    assert torch.equal(whole.rows(which).data, part.data)
    assert whole.rows(which).description == part.description
    for bad in (torch.arange(17, 33), torch.arange(0, 18), torch.tensor([0, 1, 2, 4])):
        with pytest.raises(ValueError, match="panels of"):
            whole.rows(bad)
