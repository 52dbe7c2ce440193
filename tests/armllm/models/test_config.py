"""config.json is read in both spellings, and what can't be honored is refused by name."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

from armllm import LLM
from armllm.checkpoint.config import ConfigReader
from armllm.errors import CheckpointError
from armllm.layers.rotary import RotaryEmbedding
from armllm.models.rope import read_rope

LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
HARMLESS = {
    "attention_dropout": 0.1,
    "_attn_implementation": "sdpa",
    "attn_implementation": "eager",
    "max_window_layers": 28,
    "rope_interleaved": False,
    "sliding_window": None,
    "use_flash_attention": True,
    "output_attentions": True,
    "router_aux_loss_coef": 0.01,
    "pretraining_tp": 4,
    "transformers.js_config": {"dtype": "q4"},
    "my_note": "any key that says nothing about the computation",
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
        ({"architectures": ["BloomForCausalLM"]}, "architecture 'BloomForCausalLM' is not supported"),
        ({"architectures": ["Glm4Model"]}, "'Glm4Model'"),
        ({"architectures": []}, "architectures must be a list"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list"),
        ({"architectures": ..., "model_type": "bloom"}, "'bloom'"),
        ({"architectures": ..., "model_type": ...}, "neither architectures nor model_type"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ({"hidden_act": ["silu"]}, "hidden_act ['silu'] is not supported"),
        ({"rope_scaling": {"rope_type": "axial"}}, "rope_type 'axial' is not supported"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope_type ['yarn'] is not supported"),
        ({"rope_scaling": {"type": "dynamic", "alpha": 4.0}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "alpha": 4.0}}, "rope_scaling.alpha is not"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor must be a positive number"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}}, "beta_fast"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": 1}}, "truncate must be true or"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": "x", "mscale_all_dim": 1}}, "mscale"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}, "list of 8"),
        ({"rope_scaling": {**LONG, "long_factor": [1.0] * 7 + [-1]}}, "long_factor must be a positive"),
        ({"rope_scaling": {**LONG, "short_factor": 3}}, "short_factor must be a list of 8 numbers, not 3"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor is missing"),
        ({"rope_scaling": {**LLAMA3, "rope_type": "llama3", "factor": "x"}}, "rope_scaling.factor must be a"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.short_factor is missing"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention is not supp"),
        ({"logit_scale": 0.0625}, "logit_scale 0.0625 is not known"),
        ({"attention_multiplier": 2}, "attention_multiplier 2 is not known"),
        ({"sliding_window": 64}, "sliding_window 64 is not known"),
        ({"query_pre_attn_scalar": 8}, "query_pre_attn_scalar 8 is not known"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types other than one kind"),
        ({"layer_types": ["full_attention"]}, "layer_types must be a list of 2 kinds"),
        ({"layer_types": ["full_attention", ["x"]]}, "layer_types ['x'] is not supported"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "rope_theta must be a positive"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, "mrope_section"),
        ({"rope_scaling": 8}, "rope_scaling must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config (bitsandbytes)"),
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
def test_what_cannot_be_honored_is_named(folder, changes, words):
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


def test_keys_that_change_nothing_are_no_reason_to_refuse(folder):
    write(folder, **HARMLESS)
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
        {"rope_scaling": {"type": "linear", "factor": 3}},
        {"rope_scaling": {"type": "dynamic", "factor": 3}},
        {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}},
        {
            "rope_scaling": {
                "type": "yarn",
                "factor": 16,
                "original_max_position_embeddings": 4096,
                "finetuned": True,
            }
        },
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4,
                "beta_fast": 8,
                "mscale": 1,
                "mscale_all_dim": 0.5,
            }
        },
        {"original_max_position_embeddings": 8192, "rope_scaling": {"rope_type": "yarn", "factor": 4}},
        {},
    ],
)
def test_rotary_tables_equal_those_of_transformers(tmp_path, form, head_dim):
    positions = 4096
    rope = read_rope(
        ConfigReader(dict(form), tmp_path), {"head_dim": head_dim, "max_position_embeddings": 131072}
    )
    rotary = RotaryEmbedding(rope, max_positions=positions)
    every = torch.arange(positions)
    assert torch.equal(rotary.rows(every, torch.full((positions,), positions)), every)
    ours = rotary.cos_sin_cache
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
