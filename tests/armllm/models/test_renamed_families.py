"""Families that transformers does not have: with other names they are models that it has."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import Spy, check_logits, random_prompts, save_reference
from tests.armllm.models.rope_configs import head_dim_of

from armllm import LLM
from armllm.errors import RequestError

# config.json as it is published, sizes cut down, by the model's name
PUBLISHED = json.loads(Path(__file__).with_name("renamed_configs.json").read_text())
INTERNLM2 = {
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "embed_tokens": "tok_embeddings",
    "lm_head": "output",
}
EXAONE = {
    "self_attn.o_proj": "attn.attention.out_proj",
    "self_attn": "attn.attention",
    "gate_proj": "c_fc_0",
    "up_proj": "c_fc_1",
    "down_proj": "c_proj",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "model.embed_tokens": "transformer.wte",
    "model.layers": "transformer.h",
    "model.norm": "transformer.ln_f",
}


def renamed(tensors, names):
    """Each tensor by the new names of its parts."""
    pattern = re.compile("|".join(map(re.escape, names)))
    return {pattern.sub(lambda part: names[part[0]], name): tensor for name, tensor in tensors.items()}


def internlm2(tensors, config):
    """Query, key and value in one: the heads of queries, then their key and value."""
    kv_heads, head_dim = config["num_key_value_heads"], head_dim_of(config)
    found = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            parts = [
                tensors[name.replace("q_proj", part)].unflatten(0, (kv_heads, -1, head_dim))
                for part in ("q_proj", "k_proj", "v_proj")
            ]
            found[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(parts, 1).flatten(0, 2)
        elif "k_proj" not in name and "v_proj" not in name:
            found[name] = tensor
    values = config | {"bias": config["attention_bias"]}
    del values["attention_bias"], values["mlp_bias"]
    return renamed(found, INTERNLM2), values


def exaone(tensors, config):
    values = dict(config)
    for old, new in (
        ("num_hidden_layers", "num_layers"),
        ("hidden_act", "activation_function"),
        ("rms_norm_eps", "layer_norm_epsilon"),
    ):
        values[new] = values.pop(old)
    return renamed(tensors, EXAONE), values


def minicpm(tensors, config):
    """Granite's factors by depth and width."""
    values = dict(config)
    values["scale_emb"] = values.pop("embedding_multiplier")
    values["scale_depth"] = values.pop("residual_multiplier") * values["num_hidden_layers"] ** 0.5
    values["dim_model_base"] = round(values["hidden_size"] / values.pop("logits_scaling"))
    del values["attention_multiplier"], values["mlp_bias"]
    return tensors, values


FAMILIES = {
    "InternLM2ForCausalLM": ("LlamaForCausalLM", internlm2),
    "ExaoneForCausalLM": ("LlamaForCausalLM", exaone),
    "MiniCPMForCausalLM": ("GraniteForCausalLM", minicpm),
}


def config_of(architecture, seed):
    """A random configuration of the model that it is made of."""
    rng = random.Random(seed)  # noqa: S311 - test data
    config = random_config(FAMILIES[architecture][0], seed) | {"mlp_bias": False}
    if architecture == "ExaoneForCausalLM":
        config["attention_bias"] = False
    if architecture == "MiniCPMForCausalLM":
        config["attention_multiplier"] = head_dim_of(config) ** -0.5
        config["logits_scaling"] = config["hidden_size"] / rng.choice([4, 16])
    return config


def published_config(published):
    """The same for a published one."""
    config = dict(published)
    if "num_layers" in config:
        config["num_hidden_layers"] = config.pop("num_layers")
        config["hidden_act"] = config.pop("activation_function")
        config["rms_norm_eps"] = config.pop("layer_norm_epsilon")
    factors = {}
    if "scale_emb" in config:
        factors = {
            "embedding_multiplier": config.pop("scale_emb"),
            "residual_multiplier": config.pop("scale_depth") * config["num_hidden_layers"] ** -0.5,
            "logits_scaling": config["hidden_size"] / config.pop("dim_model_base"),
            "attention_multiplier": head_dim_of(config) ** -0.5,
        }
        config.setdefault("tie_word_embeddings", True)
    biases = {"attention_bias": config.pop("bias", False), "mlp_bias": False}
    return config | biases | factors | {"model_type": "granite" if factors else "llama"}


def save_renamed(folder, architecture, config, published=None):
    """The model of ``config`` as the family stores it; the model in transformers."""
    model = save_reference(folder, config, 0)
    tensors, values = FAMILIES[architecture][1](load_file(folder / "model.safetensors"), config)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    values |= {"architectures": [architecture], "model_type": "other"}
    (folder / "config.json").write_text(json.dumps(published or values))
    return model


def check_model(folder, model, config, seed):
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True, max_num_batched_tokens=50))
    check_logits(llm, model, random_prompts((1, 62), seed), 6, config)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("architecture", FAMILIES)
def test_logits_are_those_of_the_model_it_is_made_of(tmp_path, architecture, seed):
    config = config_of(architecture, seed)
    check_model(tmp_path, save_renamed(tmp_path, architecture, config), config, seed)


def test_a_head_beside_a_tied_one_is_used_by_its_own_name(tmp_path):
    """Catches other tokens without a word: the rule of lm_head is that of InternLM2's output."""
    architecture = "InternLM2ForCausalLM"
    config = config_of(architecture, 0) | {"tie_word_embeddings": True}
    model = save_renamed(tmp_path, architecture, config)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    head = tensors["model.tok_embeddings.weight"].flip(0).contiguous()
    save_file(tensors | {"output.weight": head}, path)
    model.lm_head.weight = torch.nn.Parameter(head)
    check_model(tmp_path, model, config, 0)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_loads(tmp_path, name):
    """Catches a key of a published file that is refused, or taken for something else."""
    published = PUBLISHED[name]
    config = published_config(published)
    model = save_renamed(tmp_path, published["architectures"][0], config, published)
    check_model(tmp_path, model, config, 0)


def test_minicpm_4_is_dense_up_to_its_dense_len(tmp_path):
    """Catches a text for which its authors' class would leave out keys."""
    published = PUBLISHED["MiniCPM4.1-8B"]
    save_renamed(tmp_path, "MiniCPMForCausalLM", published_config(published), published)
    options = {"dtype": "float32", "skip_tokenizer_init": True}
    assert LLM(tmp_path, **options).llm_engine.runner.max_model_len == 71
    with pytest.raises(RequestError, match=r"72 is above 71, .* or sparse_config"):
        LLM(tmp_path, max_model_len=72, **options)
    dense = LLM(tmp_path, hf_overrides={"sparse_config": None}, **options)
    assert dense.llm_engine.runner.max_model_len == 128
