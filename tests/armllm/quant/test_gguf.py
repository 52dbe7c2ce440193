"""Quantized GGUF files: blocks as gguf-py reads them, and what becomes of them in the kernels' form."""

from __future__ import annotations

import copy

import gguf
import numpy as np
import pytest
import torch
from tests.armllm.checkpoint.gguf_files import KINDS, gguf_name, gguf_writer, permuted
from tests.armllm.models.reference import Spy, check_logits, random_prompts

from armllm import LLM
from armllm.checkpoint import gguf_blocks
from armllm.checkpoint.gguf_blocks import INTEGERS, SHIFTED
from armllm.checkpoint.scheme import Scheme
from armllm.engine.inspection import inspect_checkpoint
from armllm.errors import CheckpointError
from armllm.quant.gguf_format import SCHEMES
from armllm.quant.integers import pack
from armllm.quant.rounding import fit, from_float, relative_error

KEPT = ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4", *SHIFTED)
SIZES = {"hidden_size": 256, "intermediate_size": 512, "max_position_embeddings": 64}


# where the blocks have their scales, and how large those are for weights of about 0.1
PLACES = {"Q6_K": [208], "Q3_K": [108], "Q2_K": [80, 82]}
SPREADS = {"Q8_0": 6e-4, "Q4_K": 3e-4, "Q5_K": 1.5e-4, "Q6_K": 3e-5, "Q3_K": 2e-3, "Q2_K": 3e-3}
SPREADS |= {"IQ4_NL": 1e-3, "IQ4_XS": 6e-5}


def random_blocks(kind: str, rows: int, inputs: int, seed: int = 3) -> np.ndarray:
    """Bytes of valid blocks: all bits at random, but scales in fp16 near 0.01."""
    rng = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[KINDS[kind]]
    octets = rng.integers(0, 256, (rows, inputs // block, size), dtype=np.uint8)
    if kind == "MXFP4":
        octets[..., 0] = rng.integers(118, 122, octets.shape[:2])
        return octets.reshape(rows, -1)
    places = PLACES.get(kind, [0] if kind in INTEGERS else [0, 2])
    spread = SPREADS.get(kind, 0.01)
    for place in places:
        sign = -8 if kind in {"Q4_1", "Q5_1"} and place else 1  # their least weight is added, not subtracted
        scales = (sign * spread * rng.uniform(0.5, 1.5, octets.shape[:2])).astype(np.float16)
        octets[..., place : place + 2] = scales[..., None].view(np.uint8)
    return octets.reshape(rows, -1)


@pytest.mark.parametrize("kind", sorted(SCHEMES))
def test_blocks_are_read_as_gguf_py_reads_them(kind):
    octets = random_blocks(kind, 6, 512)
    block, size = gguf_blocks.BLOCKS[kind]
    assert gguf.GGML_QUANT_SIZES[KINDS[kind]] == (block, size)
    ours = gguf_blocks.dequantize(kind, torch.from_numpy(octets).view(6, 512 // block, size))
    expected = gguf.dequantize(octets, KINDS[kind])
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_is_equal_bit_for_bit(kind):
    """To llama.cpp's d * q, in the form that is packed; with minima, but for a sum that fp32 rounds."""
    octets = random_blocks(kind, 6, 512)
    block, size = gguf_blocks.BLOCKS[kind]
    weight, error = fit(gguf_blocks.integers(kind, torch.from_numpy(octets).view(6, 512 // block, size)))
    assert error is None
    assert weight.num_groups == 512 // 32
    ours, theirs = weight.dequantize().numpy(), gguf.dequantize(octets, KINDS[kind])
    if kind in SHIFTED:
        bound = 3 * 2.0**-24 * float(weight.offsets.abs().max())
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)
    else:
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("kind", "bits"), [("Q4_0", 4.5), ("IQ4_NL", 4.5), ("IQ4_XS", 5), ("MXFP4", 4.5), ("Q5_0", 8.5)]
)
def test_bits_of_a_weight_in_memory(kind, bits):
    """With its scale. docs/quantization.md has these figures."""
    block, size = gguf_blocks.BLOCKS[kind]
    octets = torch.from_numpy(random_blocks(kind, 16, 512)).view(16, 512 // block, size)
    assert pack(gguf_blocks.integers(kind, octets)).weight.nbytes == bits / 8 * 16 * 512


def write_gguf(path, source, kind):
    """A Llama as llama.cpp's quantize writes it: all matrices in blocks, norms in fp32."""
    model = source.model
    config = model.config
    meant = {}
    with gguf_writer(path, "llama", config.to_dict()) as writer:
        for seed, (name, parameter) in enumerate(model.named_parameters()):
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
            heads = next((count for part, count in heads.items() if part in name), None)
            if parameter.ndim == 1:
                writer.add_tensor(gguf_name(name, "llama"), parameter.numpy())
                continue
            octets = random_blocks(kind, *parameter.shape, seed)
            meant[name] = torch.from_numpy(gguf.dequantize(octets, KINDS[kind]).copy())
            stored = octets if heads is None else np.ascontiguousarray(permuted(octets, heads))
            writer.add_tensor(gguf_name(name, "llama"), stored, raw_dtype=KINDS[kind])
    return meant


@pytest.fixture
def source(make_checkpoint):
    checkpoint = make_checkpoint(**SIZES)
    for parameter in checkpoint.model.parameters():
        parameter.requires_grad_(False)
    return checkpoint


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("kind", sorted(SCHEMES))
def test_a_file_means_what_gguf_py_reads_from_it(source, tmp_path, kind):
    """`KEPT` exactly; of the others, the matrices that are rounded again, as `from_float` rounds them."""
    path = tmp_path / "model.gguf"
    meant = write_gguf(path, source, kind)
    model = copy.deepcopy(source.model)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            parameter.data = meant[name]
            if "embed" not in name and kind not in KEPT:
                parameter.data = from_float(meant[name], SCHEMES[kind]).dequantize()
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((1, 36), 4), 4)
    anew = "" if kind in KEPT else f" ({kind} rounded again to int8, about 0.9% off)"
    assert inspect_checkpoint(str(path))["quantization"] == f"gguf{anew}"


def test_rounding_anew_costs_what_the_page_says():
    """Weights as models have them: normal. docs/quantization.md has this figure."""
    matrix = torch.randn(64, 2048, generator=torch.Generator().manual_seed(0))
    # gguf-py has no writer for Q6_K: groups of 16 with six bits are as fine
    grouped = matrix.view(64, 128, 16)
    scale = grouped.abs().amax(-1, keepdim=True) / 32
    stored = ((grouped / scale).round().clamp(-32, 31) * scale).view(64, 2048)
    error = relative_error(from_float(stored, Scheme(bits=8)).dequantize(), stored)
    assert 0.005 < error < 0.015


@pytest.mark.usefixtures("exact_products")
def test_a_file_in_blocks_may_be_rounded_to_another_scheme(source, tmp_path):
    """By the numbers that the blocks stand for."""
    path = tmp_path / "model.gguf"
    meant = write_gguf(path, source, "Q4_K")
    model = copy.deepcopy(source.model)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            left = "embed" in name or "lm_head" in name
            parameter.data = meant[name] if left else from_float(meant[name], Scheme(bits=8)).dequantize()
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True, quantization="int8"))
    check_logits(llm, model, random_prompts((20,), 4), 4)


def test_what_rounding_anew_cost_is_logged(source, tmp_path, caplog):
    path = tmp_path / "model.gguf"
    write_gguf(path, source, "Q6_K")
    llm = LLM(path, dtype="float32", skip_tokenizer_init=True)
    report = llm.llm_engine.runner.load_report
    assert 0 < report.rounding_error < 0.02
    assert "had to be rounded again" in caplog.text


@pytest.mark.parametrize(
    ("kind", "words"), [("Q4_0", "NaN or infinite"), ("Q8_0", "NaN or inf"), ("Q4_K", "NaN")]
)
def test_scales_that_are_no_numbers_are_named(source, tmp_path, monkeypatch, kind, words):
    path = tmp_path / "model.gguf"
    drawn = random_blocks

    def broken(kind, rows, inputs, seed):
        octets = drawn(kind, rows, inputs, seed)
        octets[0, :2] = [0, 0x7E]  # the first block's scale
        return octets

    monkeypatch.setitem(globals(), "random_blocks", broken)
    write_gguf(path, source, kind)
    monkeypatch.undo()
    with pytest.raises(CheckpointError) as caught:
        LLM(path, dtype="float32", skip_tokenizer_init=True)
    assert "_proj.weight " in str(caught.value)
    assert words in str(caught.value)


def test_rows_of_broken_blocks_are_refused(source, tmp_path):
    path = tmp_path / "model.gguf"
    with gguf_writer(path, "llama") as writer:
        writer.add_tensor("token_embd.weight", np.zeros((8, 18), np.uint8), raw_dtype=KINDS.Q4_0)
    content = bytearray(path.read_bytes())
    place = content.index((32).to_bytes(8, "little"))
    content[place : place + 8] = (33).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"token_embd\.weight of type Q4_0 has rows that are not whole"):
        LLM(path, dtype="float32")
