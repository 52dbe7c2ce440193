"""Rounding to nearest, packing, and the forms that kernels have."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from compressed_tensors.compressors.pack_quantized import pack_to_int32, unpack_from_int32

from armllm.checkpoint.matrix import IntegerWeight, stack
from armllm.checkpoint.scheme import SCHEMES, Scheme, check_scheme, scheme_for
from armllm.errors import RequestError
from armllm.quant.bit_packing import pack_signed, unpack_signed
from armllm.quant.integers import pack
from armllm.quant.rounding import fit, from_float


def normal(rows, inputs, seed=0, dtype=torch.float32):
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SCHEMES)
def test_no_weight_is_further_than_half_a_step(name, dtype):
    """Half a step, and what rounding the scale to the checkpoint's dtype adds to the largest weight."""
    matrix = normal(9, 384, dtype=dtype)
    scheme = scheme_for(name, 384)
    weight = from_float(matrix, scheme)
    assert weight.scales.shape == (9, scheme.num_groups(384))
    step = weight.scales.repeat_interleave(384 // weight.num_groups, 1)
    greatest = 2 ** (scheme.bits - 1)
    bound = step * (0.5 + greatest * torch.finfo(dtype).eps)
    assert ((weight.dequantize() - matrix.float()).abs() <= bound).all()


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_counts_the_bytes_that_a_packed_matrix_takes(name, symmetric):
    """Where nothing is padded; memory is planned by it before any weight is read."""
    scheme = scheme_for(name, 384)
    matrix = from_float(normal(16, 384), scheme)
    zeros = None if symmetric else torch.ones(matrix.scales.shape, dtype=torch.int8)
    packed = pack(dataclasses.replace(matrix, zeros=zeros)).weight
    assert packed.nbytes == dataclasses.replace(scheme, symmetric=symmetric).num_bytes(16, 384)


@pytest.mark.parametrize("name", SCHEMES)
def test_groups_of_zeros_stay_zero(name):
    weight = from_float(torch.zeros(4, 256), scheme_for(name, 256))
    assert (weight.dequantize() == 0).all()
    assert weight.scales.isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("scheme", [Scheme(bits=8), Scheme(bits=4, group_size=32)], ids=str)
def test_what_is_no_number_is_refused(value, scheme):
    matrix = normal(3, 64)
    matrix[2, 33] = value
    with pytest.raises(ValueError, match="NaN or infinite"):
        from_float(matrix, scheme)


@pytest.mark.parametrize(("inputs", "size"), [(256, 128), (192, 64), (96, 32), (100, 0)], ids=str)
def test_int4_takes_the_largest_groups_that_divide(inputs, size):
    assert scheme_for("int4", inputs) == Scheme(bits=4, group_size=size)


def test_a_group_size_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="groups of 128 don't divide its 192 inputs; int4 takes what does"):
        scheme_for("int4-g128", 192)
    with pytest.raises(ValueError, match="groups of 64 don't divide its 96 inputs; int8 has one scale per"):
        scheme_for("int8-g64", 96)
    with pytest.raises(RequestError, match="'int3' is not supported, only int8"):
        check_scheme("quantization", "int3")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(3, 64), (5, 33), (1, 7)])
def test_words_are_those_of_compressed_tensors(bits, shape):
    greatest = 2 ** (bits - 1)
    values = torch.randint(-greatest, greatest, shape, generator=torch.Generator().manual_seed(1))
    values = values.to(torch.int8)
    words = pack_to_int32(values, bits)
    assert torch.equal(pack_signed(values, bits), words)
    assert torch.equal(unpack_signed(words, bits)[:, : shape[1]], values)
    assert torch.equal(unpack_from_int32(words, bits, torch.Size(shape)), values)


def integers(bits, groups, *, zeros, inputs=256, rows=6):
    generator = torch.Generator().manual_seed(2)
    greatest = 2 ** (bits - 1)
    drawn = torch.randint(-greatest, greatest, (rows, groups), generator=generator)
    return IntegerWeight(
        q=torch.randint(-greatest, greatest, (rows, inputs), generator=generator).to(torch.int8),
        scales=torch.rand(rows, groups, generator=generator) + 0.5,
        zeros=drawn.to(torch.int8) if zeros else None,
        bits=bits,
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_large_groups_are_cut_without_a_change(bits, zeros):
    weight = integers(bits, 1, zeros=zeros)
    whole, error = fit(weight)
    assert error is None
    assert whole.num_groups == 1
    wide = integers(bits, 2, zeros=zeros, inputs=512)
    cut, error = fit(wide)
    assert error is None
    assert cut.num_groups == 4
    assert torch.equal(cut.dequantize(), wide.dequantize())


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_8_bits_are_kept_as_they_are(groups, zeros):
    weight = integers(8, groups, zeros=zeros)
    kept, error = fit(weight)
    assert error is None
    assert torch.equal(kept.q, weight.q)
    assert torch.equal(kept.scales, weight.scales)
    assert not zeros or torch.equal(kept.zeros, weight.zeros)


def test_groups_of_16_are_rounded_anew_within_half_a_step_of_the_row():
    weight = integers(8, 16, zeros=False)
    rounded, error = fit(weight)
    assert rounded.num_groups == 1
    exact = weight.dequantize()
    # 127.5 steps to the greatest weight of a row, half a step at most, both with fp32 roundings
    assert ((rounded.dequantize() - exact).abs() <= exact.abs().amax(1, keepdim=True) / 254.9).all()
    assert error == pytest.approx(float((rounded.dequantize() - exact).norm() / exact.norm()))


def test_zero_points_that_are_all_zero_are_dropped():
    weight, error = fit(
        IntegerWeight(
            q=torch.ones(2, 32, dtype=torch.int8),
            scales=torch.ones(2, 1),
            zeros=torch.zeros(2, 1, dtype=torch.int8),
            bits=8,
        )
    )
    assert weight.zeros is None
    assert error is None


def test_offsets_follow_their_groups():
    """Cut, stacked, and never joined with a matrix that has none."""
    plain = integers(4, 2, zeros=False, inputs=512)
    weight = dataclasses.replace(plain, offsets=torch.arange(12.0).view(6, 2))
    assert torch.equal(weight.dequantize()[:, 256:], plain.dequantize()[:, 256:] + weight.offsets[:, 1:])
    cut, error = fit(weight)
    assert error is None
    assert torch.equal(cut.dequantize(), weight.dequantize())
    assert torch.equal(stack([cut, cut]).dequantize(), torch.cat([weight.dequantize()] * 2))
    assert not weight.joins(plain)
    with pytest.raises(ValueError, match="nothing is rounded to int4-g32 with zero points"):
        from_float(normal(2, 64), Scheme(bits=4, group_size=32, symmetric=False))


def test_columns_in_another_order_are_put_back():
    weight = integers(4, 8, zeros=True)
    columns = torch.randperm(256, generator=torch.Generator().manual_seed(4))

    moved = dataclasses.replace(weight, columns=columns)
    assert torch.equal(moved.dequantize()[:, columns], weight.dequantize())
    assert not moved.joins(weight)
    assert torch.equal(stack([moved, moved]).dequantize(), torch.cat([moved.dequantize()] * 2))
