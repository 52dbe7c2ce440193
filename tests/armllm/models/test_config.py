"""config.json is read in both spellings, and what can't be honoured is refused by name."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

from armllm import LLM
from armllm.errors import CheckpointError
from armllm.layers.rotary import RotaryEmbedding
from armllm.models.config import ConfigReader

LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture
def folder(make_checkpoint, tmp_path):
    return shutil.copytree(make_checkpoint().folder, tmp_path / "model")


def write(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "architecture 'FalconForCausalLM' is not supported"),
        ({"architectures": ["LlamaModel"]}, "'LlamaModel'"),
        ({"architectures": []}, "architectures must be a list"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list"),
        ({"architectures": ..., "model_type": "falcon"}, "'falcon'"),
        ({"architectures": ..., "model_type": ...}, "neither architectures nor model_type"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type 'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor is missing"),
        ({"rope_scaling": {**LLAMA3, "rope_type": "llama3", "factor": "x"}}, "rope_scaling.factor must be a"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "rope_theta must be a positive"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, "mrope_section"),
        ({"rope_scaling": 8}, "rope_scaling must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config (gptq)"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a positive integer, not '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer"),
        ({"vocab_size": True}, "vocab_size must be a positive integer"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"attention_bias": 1}, "attention_bias must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
    ],
)
def test_what_cannot_be_honoured_is_named(folder, changes, words):
    write(folder, **changes)
    with pytest.raises(CheckpointError) as caught:
        LLM(folder, dtype="float32")
    assert words in str(caught.value)
    assert str(folder / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [("", "not JSON"), ("{", "not JSON"), ("[1]", "JSON object"), (None, "no config.json")],
)
def test_a_config_that_is_not_json_is_refused(folder, content, words):
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=words):
        LLM(folder, dtype="float32")


def test_a_model_that_is_not_a_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not a folder"):
        LLM(str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        LLM(str(tmp_path))


@pytest.mark.parametrize("file_name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_broken_companions_are_named(folder, file_name):
    (folder / file_name).write_text("{broken")
    with pytest.raises(CheckpointError, match=file_name):
        LLM(folder, dtype="float32")


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize(
    "form",
    [
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}},
        {"rope_theta": 20000.0},
        {"rope_theta": 20000.0, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}},
        {},
    ],
)
def test_rotary_tables_equal_those_of_transformers(tmp_path, form, head_dim):
    positions = 4096
    rope = ConfigReader(dict(form), tmp_path).rope(131072)
    ours = RotaryEmbedding(rope, rotary_dim=head_dim, max_positions=positions, device="cpu").cos_sin_cache
    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=131072,
        **form,
    )
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    cos, sin = module(torch.zeros(1), torch.arange(positions).unsqueeze(0))
    torch.testing.assert_close(ours, torch.cat((cos[0, :, : head_dim // 2], sin[0, :, : head_dim // 2]), -1))
