"""`load_format="dummy"` computes every family from its config.json alone."""

from __future__ import annotations

import json
import math

import pytest
import torch
from tests.armllm.models.random_configs import FAMILIES, random_config

from armllm import LLM, SamplingParams
from armllm.checkpoint.dummy import LARGEST, DummyTensors
from armllm.engine.config import EngineConfig
from armllm.errors import RequestError
from armllm.models import FAMILIES as REGISTERED


def write_config(folder, architecture, **more):
    config = {"architectures": [architecture], **random_config(architecture, 0), **more}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def load(folder, **options):
    options = {"dtype": "float32", "num_gpu_blocks_override": 8, "max_model_len": 32, **options}
    return LLM(folder, load_format="dummy", skip_tokenizer_init=True, **options)


@pytest.mark.parametrize("architecture", sorted(set(FAMILIES) & set(REGISTERED)))
def test_a_family_needs_no_weights(tmp_path, architecture):
    """It would catch a family that asks whether an optional tensor is there after it has asked for others."""
    llm = load(write_config(tmp_path, architecture))
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=1)
    (output,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params)
    completion = output.outputs[0]
    assert len(completion.token_ids) == 3
    assert all(math.isfinite(one.logprob) for step in completion.logprobs for one in step.values())


def test_weights_can_be_rounded_and_are_the_same_every_time(tmp_path):
    llm = load(write_config(tmp_path, "LlamaForCausalLM"), quantization="int8")
    assert llm.llm_engine.runner.load_report.weight_bytes > 0
    tensors = DummyTensors(tmp_path)
    tensors.add("a", (300, 7))
    tensors.add("b", (300, 7))
    first = tensors.read("a")
    assert torch.equal(first, tensors.read("a"))
    assert not torch.equal(first, tensors.read("b"))
    assert LARGEST / 2 < first.abs().max() <= LARGEST


def test_what_has_no_floating_point_weights_is_refused(tmp_path):
    method = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
    write_config(tmp_path, "LlamaForCausalLM", quantization_config=method)
    with pytest.raises(RequestError, match="load_format dummy makes floating-point weights"):
        load(tmp_path)
    with pytest.raises(RequestError, match="calibration needs weights"):
        EngineConfig(model="x", quantization="int8", calibration="text", load_format="dummy")


def test_the_hub_is_asked_for_the_weights_that_are_read(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "armllm.engine.config.resolve_model",
        lambda *_names, options: asked.append(options.patterns) or tmp_path,
    )
    for options in ({}, {"load_format": "dummy"}, {"backend": "openvino", "block_size": 32}):
        assert EngineConfig(model="org/name", **options).model_folder == tmp_path
    assert ["*.safetensors" in patterns for patterns in asked] == [True, False, True]
    assert ["openvino_model.bin" in patterns for patterns in asked] == [False, False, True]
