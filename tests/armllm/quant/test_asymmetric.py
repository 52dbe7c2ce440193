"""Inputs with zero points, static and per token."""

from __future__ import annotations

import pytest
import torch
from tests.armllm.convert.test_pack import logits, pack
from tests.armllm.models.reference import Spy, expected_logits, random_prompts
from tests.armllm.quant.forms import int_quantized, packed, write_quantized
from tests.armllm.quant.test_checkpoints import compressed

from armllm import LLM
from armllm.checkpoint.matrix import IntegerWeight
from armllm.errors import CheckpointError
from armllm.layers.linear import quantized

SIZES = {"hidden_size": 128, "intermediate_size": 256}
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": False}
STATIC = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": False}


def weight(bits, groups, **inputs):
    generator = torch.Generator().manual_seed(3)
    low = -(2 ** (bits - 1))
    q = torch.randint(low, -low, (21, 96), generator=generator, dtype=torch.int8)
    scales = torch.rand(21, groups, generator=generator) + 0.1
    return IntegerWeight(q=q, scales=scales, zeros=None, bits=bits, **inputs)


@pytest.mark.parametrize(("bits", "groups"), [(8, 1), (4, 3)])
@pytest.mark.parametrize("zero", [-128, 0, 77])
def test_given_zero_points_equal_sums_of_integers(bits, groups, zero):
    """Inputs from below what is held to above it; relu's zeros, at -128, stay zeros."""
    matrix = weight(bits, groups, input_scale=0.25, input_zero=zero)
    x = torch.linspace(-80, 80, 5 * 96).view(5, 96)
    x[1] = x[1].clamp_min(0)
    x[2] = 0
    q = ((x / 0.25).round() + zero).clamp(-128, 126)
    expected = 0.25 * ((q - zero).double() @ matrix.dequantize().double().T)
    bias = torch.arange(21.0)
    out = quantized(matrix, bias)(x)
    size = 0.25 * 255 * matrix.dequantize().abs().sum(1)
    assert ((out - expected - bias).abs() <= size * 2**-20).all()
    assert torch.equal(out[2], bias) or (out[2] - bias).abs().max() <= (size * 2**-20).max()


def test_each_row_has_a_range_of_its_own():
    matrix = weight(8, 1, input_zero=0)
    x = torch.randn(7, 96, generator=torch.Generator().manual_seed(1)) + torch.arange(-3.0, 4)[:, None] * 3
    x[3] = 0
    x[5, 2], x[6, 2] = torch.nan, torch.inf
    out = quantized(matrix)(x)
    assert not out[3].any()
    assert out[5:].isnan().all()
    for row in (0, 1, 2, 4):
        span = x[row].clamp_min(0).max() - x[row].clamp_max(0).min()
        exact = x[row].double() @ matrix.dequantize().double().T
        bound = span / 254 * matrix.dequantize().abs().sum(1)  # half a step, and half of the zero point's
        assert ((out[row] - exact).abs() <= bound).all()


def fake(model, rounding):
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(lambda _module, given: (rounding(given[0]), *given[1:]))
    return model


def by_tokens(x):
    low, high = x.amin(-1, keepdim=True).clamp_max(0), x.amax(-1, keepdim=True).clamp_min(0)
    scale = (high - low) / 255
    zero = (-128 - low / scale).round()
    return scale * (((x / scale).round() + zero).clamp(-128, 127) - zero)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("static", [False, True])
def test_a_checkpoint_means_what_transformers_computes_from_rounded_inputs(
    make_checkpoint, tmp_path, kind, static
):
    inputs = STATIC if static else TOKENS
    if kind == "int4":
        settings, group = compressed("pack-quantized", inputs=inputs, bits=4, group_size=32)
        plain = packed(group)
    else:
        settings, _ = compressed("int-quantized", inputs=inputs, bits=8)
        plain = int_quantized

    def form(matrix, generator):
        tensors, exact = plain(matrix, generator)
        given = {
            "input_scale": torch.tensor([0.03]),
            "input_zero_point": torch.tensor([-20], dtype=torch.int8),
        }
        return tensors | (given if static else {}), exact

    folder = tmp_path / "model"
    model = write_quantized(folder, make_checkpoint(**SIZES), settings, form)
    fake(
        model, lambda x: 0.03 * (((x / 0.03).round() - 20).clamp(-128, 127) + 20) if static else by_tokens(x)
    )
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True))
    for prompt in random_prompts((1, 36), 4):
        tokens, found = llm.generate(prompt, 6)
        expected = expected_logits(model, prompt, tokens)
        assert (found - expected).norm() / expected.norm() < 0.02
    pack(folder, tmp_path / "packed")
    assert torch.equal(logits(tmp_path / "packed"), logits(folder))


def test_a_zero_point_that_is_missing_is_named(make_checkpoint, tmp_path):
    settings, _ = compressed("int-quantized", inputs=STATIC, bits=8)

    def form(matrix, generator):
        tensors, exact = int_quantized(matrix, generator)
        return tensors | {"input_scale": torch.tensor([0.03])}, exact

    folder = tmp_path / "model"
    write_quantized(folder, make_checkpoint(**SIZES), settings, form)
    with pytest.raises(CheckpointError, match=r"input_zero_point is missing"):
        LLM(folder, dtype="float32", skip_tokenizer_init=True)
