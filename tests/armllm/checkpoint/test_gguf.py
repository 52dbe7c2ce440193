"""GGUF files give the logits of the original."""

from __future__ import annotations

import os
import random
import shutil

import numpy as np
import pytest
import torch
from tests.armllm.checkpoint.gguf_files import (
    CASES,
    KINDS,
    add_tensor,
    gguf_writer,
    reference,
    refused,
    write_gguf,
)
from tests.armllm.models.reference import Spy, check_logits, random_prompts

from armllm import LLM
from armllm.checkpoint.gguf_header import TYPES
from armllm.engine.inspection import inspect_checkpoint
from armllm.errors import CheckpointError
from armllm.tokenizer import Tokenizer


def test_tensor_types_have_the_numbers_that_gguf_py_gives_them():
    assert TYPES.items() >= {int(kind): kind.name for kind in KINDS}.items()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [KINDS.F32, KINDS.F16, KINDS.BF16])
def test_gguf_files_have_the_logits_of_the_original(tmp_path, case, kind):
    arch, model = reference(tmp_path / "hf", case)
    rounded = {KINDS.F32: torch.float32, KINDS.F16: torch.float16, KINDS.BF16: torch.bfloat16}[kind]
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = parameter.data.to(rounded).float()
    write_gguf(tmp_path / "model.gguf", arch, model, kind)
    llm = Spy(LLM(tmp_path / "model.gguf", dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((1, 36), 4), 6)


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_without_a_type_divides_positions(tmp_path, key):
    """As in files of 2023; catches a file whose tokens would lie at wrong places without a word."""
    arch, model = reference(tmp_path / "hf", "llama-linear")
    path = tmp_path / "model.gguf"

    def fill(writer):
        for name in ("type", "factor"):
            del writer.kv_data[0][f"llama.rope.scaling.{name}"]
        writer.add_float32(f"llama.{key}", 3.0)

    write_gguf(path, arch, model, KINDS.F32, fill)
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((1, 36), 4), 6)


def test_what_makes_no_difference_for_text_is_no_reason_to_refuse(llama_file):
    """Catches files of other converters that would no longer load."""
    path, arch, model = llama_file

    def fill(writer):
        writer.add_float32("llama.rope.scaling.attn_factor", 1.0)
        writer.add_uint32("llama.expert_group_count", 1)
        writer.add_uint32("llama.mm.tokens_per_image", 256)
        writer.add_uint32("llama.vision.block_count", 27)
        writer.add_float32("llama.attention.layer_norm_epsilon", 1e-5)

    write_gguf(path, arch, model, KINDS.F32, fill)
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((20,), 4), 4)


def test_parts_of_gguf_split_are_one_file(llama_file):
    path, arch, model = llama_file
    tensors = len(model.state_dict()) + 1  # and rope_freqs
    write_gguf(path, arch, model, KINDS.F32, split_max_tensors=-(-tensors // 3))
    first, second, third = sorted(path.parent.glob("*.gguf"))
    assert first.name == "model-00001-of-00003.gguf"
    llm = Spy(LLM(first, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((20,), 4), 6)
    refused(second, "is part 2 of 3: name the first, which ends in -00001-of-00003.gguf")
    shutil.copy(second, third)
    refused(first, "its parts hold", "tensors, and it says")
    third.unlink()
    with pytest.raises(CheckpointError) as caught:
        LLM(first, dtype="float32")
    assert f"{third} can't be read as GGUF" in str(caught.value)


def test_weights_of_the_right_dtype_stay_mapped(llama_file):
    path, arch, model = llama_file
    write_gguf(path, arch, model, KINDS.F32)
    llm = LLM(path, dtype="float32", skip_tokenizer_init=True)
    with open("/proc/self/maps") as lines:  # noqa: PTH123
        spans = [line.split()[0].split("-") for line in lines if line.rstrip().endswith(str(path))]
    address = llm.llm_engine.runner.model.embed_tokens.weight.data_ptr()
    assert any(int(start, 16) <= address < int(end, 16) for start, end in spans)


@pytest.mark.parametrize("kind", [KINDS.TQ1_0, KINDS.TQ2_0])
def test_quantized_tensors_are_refused_by_their_type(llama_file, kind):
    path, arch, _ = llama_file
    with gguf_writer(path, arch) as writer:
        add_tensor(writer, "token_embd.weight", np.ones((8, 256), np.float32), kind)
    refused(
        path,
        f"tensors of type {kind.name} are not supported, only F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0",
    )


def test_an_architecture_that_is_not_here_is_named(llama_file):
    path, _, model = llama_file
    write_gguf(path, "falcon", model, KINDS.F32)
    refused(path, "'falcon' is not supported, only falcon-h1, gemma2")


def test_olmo_3_under_the_name_of_olmo_2_is_refused(tmp_path):
    """Catches windows and scaled layers that are computed as OLMo 2's."""
    arch, model = reference(tmp_path / "hf", "olmo2")
    path = tmp_path / "model.gguf"
    write_gguf(path, arch, model, KINDS.F32, lambda writer: writer.add_sliding_window(8))
    refused(path, "attention.sliding_window of olmo2 (OLMo 3) is not supported")


@pytest.mark.parametrize("keep", [0, 3, 100, 2000, -1])
def test_a_truncated_file_is_refused(llama_file, keep):
    path, arch, model = llama_file
    write_gguf(path, arch, model, KINDS.F32)
    os.truncate(path, path.stat().st_size // 2 if keep == -1 else keep)
    refused(path, "can't be read as GGUF", "truncated", skip_tokenizer_init=True)


def test_damaged_headers_end_in_one_line(llama_file):
    """Bytes of the header changed at random: what still reads must be refused later, or be harmless."""
    path, arch, model = llama_file

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(["a", "b", "ab"])
        writer.add_token_types([1, 1, 1])
        writer.add_token_merges(["a b"])

    write_gguf(path, arch, model, KINDS.F32, fill)
    whole = path.read_bytes()
    rng = random.Random(0)  # noqa: S311 - test data
    for number in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 1, 3])):
            damaged[rng.randrange(2500)] = rng.choice([0, 1, 255, rng.randrange(256)])
        path = path.with_name(f"{number}.gguf")
        path.write_bytes(damaged)
        try:
            Tokenizer(path)
            inspect_checkpoint(str(path))
        except CheckpointError as error:
            assert "\n" not in str(error)  # noqa: PT017 - most are refused, not all
        path.unlink()


def test_a_missing_tensor_is_named(llama_file):
    path, arch, model = llama_file
    write_gguf(path, arch, model, KINDS.F32, lambda writer: writer.add_tensor("odd.weight", np.ones(3)))
    refused(path, "tensors of type F64")
