"""Damaged and incomplete checkpoints are refused in one or two lines that name what is wrong."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from armllm import LLM, SamplingParams
from armllm.errors import CheckpointError

INDEX = "model.safetensors.index.json"


@pytest.fixture
def single(make_checkpoint, tmp_path):
    return shutil.copytree(make_checkpoint().folder, tmp_path / "single")


@pytest.fixture
def sharded(make_checkpoint, tmp_path):
    return shutil.copytree(make_checkpoint(shards=3).folder, tmp_path / "sharded")


def refused(folder, *words):
    with pytest.raises(CheckpointError) as caught:
        LLM(folder, dtype="float32")
    message = str(caught.value)
    assert str(folder) in message
    assert message.count("\n") == 0
    assert len(message) < 400
    for word in words:
        assert word in message


def rewrite(folder, change):
    """Apply a change to the tensors of model.safetensors."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file(tensors, path)


def test_missing_tensors_are_named_and_counted(single):
    def drop(tensors):
        del tensors["model.layers.1.mlp.up_proj.weight"]
        del tensors["lm_head.weight"]

    rewrite(single, drop)
    refused(single, "model.layers.1.mlp.up_proj.weight is missing", "and 1 more problem")


def test_a_wrong_shape_is_named_with_both_shapes(single):
    def reshape(tensors):
        tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(33, 64)

    rewrite(single, reshape)
    refused(single, "model.layers.0.self_attn.k_proj.weight", "[33, 64]", "[32, 64]")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fn, torch.int64])
def test_an_unexpected_dtype_is_named(single, dtype):
    def convert(tensors):
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(dtype)

    rewrite(single, convert)
    refused(single, "model.norm.weight", "dtype")


def test_tensors_that_the_config_does_not_explain_are_refused(single):
    def add(tensors):
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(64)

    rewrite(single, add)
    refused(single, "model.layers.0.self_attn.q_proj.bias is not part of the model")


def test_tables_and_tied_heads_are_no_surprise(single, make_checkpoint):
    def add(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    rewrite(single, add)
    LLM(single, dtype="float32")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 5000, -1])
def test_a_truncated_file_is_refused(single, keep):
    path = single / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1 if keep == -1 else keep)
    refused(single, "model.safetensors", "truncated")


def test_a_file_that_is_something_else_is_refused(single):
    (single / "model.safetensors").write_bytes(b"PK\x03\x04" + bytes(10_000))
    refused(single, "can't be read as safetensors")


def test_only_pickles_are_refused_unread(single):
    (single / "model.safetensors").unlink()
    (single / "pytorch_model.bin").write_bytes(b"never looked at")
    refused(single, "pytorch_model.bin", "can run code", "armllm convert")


def test_no_weights_at_all(single):
    (single / "model.safetensors").unlink()
    refused(single, "no weights")


def test_a_single_file_of_any_name_is_found(single):
    (single / "model.safetensors").rename(single / "weights.safetensors")
    LLM(single, dtype="float32")


def test_a_missing_shard_is_named(sharded):
    (sharded / "model-00002-of-00003.safetensors").unlink()
    refused(sharded, "model-00002-of-00003.safetensors is missing")


def test_an_index_that_does_not_match_its_files_is_refused(sharded):
    path = sharded / INDEX
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = "model-00001-of-00003.safetensors"
    if index["weight_map"] == json.loads(path.read_text())["weight_map"]:
        index["weight_map"]["model.norm.weight"] = "model-00002-of-00003.safetensors"
    path.write_text(json.dumps(index))
    refused(sharded, "model.norm.weight", "but it does not")
    index["weight_map"] = {"x" * 100_000: "model-00001-of-00003.safetensors"}
    path.write_text(json.dumps(index))
    refused(sharded, "holds xxx", "but it does not")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": 3}',
        '{"weight_map": {}}',
        '{"weight_map": {"a": "../evil.safetensors"}}',
        '{"weight_map": {"a": "model.bin"}}',
        '{"weight_map": {"a": null}}',
        '{"weight_map": {"a": "/tmp/a.safetensors"}}',
        '{"weight_map": {"a": "\\u0000.safetensors"}}',
        '{"weight_map": {"a": "\\ud800.safetensors"}}',
        '{"weight_map": {"a": "\\u001b[2J.safetensors"}}',
        '{"weight_map": {"a": "' + "../" * 100_000 + '.safetensors"}}',
    ],
)
def test_a_broken_index_is_refused(sharded, content):
    """Some of these names raise ValueError or UnicodeEncodeError where a file is opened."""
    (sharded / INDEX).write_text(content)
    refused(sharded, INDEX)


def test_a_shard_whose_name_no_file_can_have_is_refused(sharded):
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"a": "x" * 300 + ".safetensors"}}))
    with pytest.raises(CheckpointError, match="can't be read: File name too long"):
        LLM(sharded, dtype="float32")


def test_the_same_tensor_in_two_files_is_refused(single):
    (single / "model.safetensors").rename(single / "a.safetensors")
    shutil.copy(single / "a.safetensors", single / "b.safetensors")
    refused(single, "a.safetensors", "b.safetensors")


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_other_floating_dtypes_are_converted(single, stored):
    def convert(tensors):
        for name in tensors:
            tensors[name] = tensors[name].to(stored)

    rewrite(single, convert)
    llm = LLM(single, dtype="float32")
    weight = llm.llm_engine.runner.model.norm.weight
    original = load_file(single / "model.safetensors")["model.norm.weight"]
    assert weight.dtype is torch.float32
    assert torch.equal(weight, original.float())
    assert len(llm.generate([3, 4], SamplingParams(max_tokens=3), use_tqdm=False)) == 1


def test_weights_of_the_right_dtype_stay_mapped(single):
    llm = LLM(single, dtype="float32")
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [line[0].split("-") for line in maps if line[-1] == str(single / "model.safetensors")]
    address = llm.llm_engine.runner.model.embed_tokens.weight.data_ptr()
    assert any(int(start, 16) <= address < int(end, 16) for start, end in spans)
