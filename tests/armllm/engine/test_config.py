"""Options that depend on the use and on the CPU."""

from __future__ import annotations

import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from armllm import LLM
from armllm.engine import config
from armllm.engine.config import EngineConfig
from armllm.errors import RequestError


@pytest.fixture
def folders(make_checkpoint, tmp_path):
    """The same weights in three types; only the tensors say so."""
    state = load_file(make_checkpoint().folder / "model.safetensors")
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        folder = tmp_path / str(dtype)
        folder.mkdir()
        save_file({name: tensor.to(dtype) for name, tensor in state.items()}, folder / "model.safetensors")
        found[dtype] = folder
    return found


@pytest.mark.parametrize(
    ("bf16", "fp16", "expected"),
    [
        (True, True, (torch.bfloat16, torch.bfloat16, torch.float16)),
        (True, False, (torch.bfloat16, torch.bfloat16, torch.bfloat16)),
        (False, True, (torch.float32, torch.bfloat16, torch.float16)),
        (False, False, (torch.float32, torch.bfloat16, torch.bfloat16)),
    ],
)
def test_auto_reads_no_weight_in_twice_its_bytes(  # noqa: PLR0917
    folders, monkeypatch, caplog, bf16, fp16, expected
):
    monkeypatch.setattr(config, "cpu_computes_bfloat16", lambda: bf16)
    monkeypatch.setattr(config, "cpu_computes_float16", lambda: fp16)
    for folder, dtype in zip(folders.values(), expected, strict=True):
        caplog.clear()
        with caplog.at_level(logging.INFO, "armllm"):
            options = EngineConfig.of(folder, {})
            assert [options.torch_dtype, options.torch_dtype] == [dtype, dtype]
        (record,) = caplog.records  # once, however often it is asked for
        assert str(dtype).removeprefix("torch.") in record.getMessage()


def test_a_type_that_is_asked_for_needs_no_files():
    assert EngineConfig.of("/nowhere", {"dtype": torch.float16}).torch_dtype is torch.float16
    assert EngineConfig.of("/nowhere", {"dtype": "half"}).cache_dtype is torch.float16
    with pytest.raises(RequestError, match="float8"):
        EngineConfig.of("/nowhere", {"dtype": "float8"})


@pytest.mark.parametrize(("usage", "seqs", "tokens"), [("offline", 256, 4096), ("server", 128, 2048)])
def test_defaults_depend_on_the_use(usage, seqs, tokens):
    options = EngineConfig.of("m", {"max_num_seqs": None}, usage)
    assert (options.max_num_seqs, options.max_num_batched_tokens) == (seqs, tokens)
    assert EngineConfig.of("m", {"max_num_seqs": 7}, usage).max_num_seqs == 7


@pytest.mark.parametrize(("bf16", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_fp8_is_read_as_it_is_stored(tmp_path, monkeypatch, bf16, expected):
    """On a CPU without products in bf16, those in fp32 decode it, and others would double its bytes."""
    tensors = {"a": torch.ones(8, 8).to(torch.float8_e4m3fn), "b": torch.ones(8, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.setattr(config, "cpu_computes_bfloat16", lambda: bf16)
    assert EngineConfig.of(tmp_path, {}).torch_dtype is expected


def test_the_engine_uses_the_type(make_checkpoint, monkeypatch):
    monkeypatch.setattr(config, "cpu_computes_bfloat16", lambda: False)
    llm = LLM(make_checkpoint().folder)
    assert llm.llm_engine.runner.dtype is torch.float32
