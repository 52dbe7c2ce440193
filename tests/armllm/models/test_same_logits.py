"""Logits are those of transformers, step by step, for random configurations of every family."""

from __future__ import annotations

import json

import pytest
import torch
from tests.armllm.models.random_configs import FAMILIES, VARIANTS, random_config
from tests.armllm.models.reference import (
    MOST_OF_ROUNDINGS,
    Spy,
    check_logits,
    expected_logits,
    random_prompts,
    rounding_noise,
    save_reference,
)

from armllm import LLM, SamplingParams
from armllm.checkpoint.config import ConfigReader
from armllm.models import read_model_config

SEEDS = range(5)
PROMPT_LENGTHS = (1, 13, 36, 62)
NUM_TOKENS = 8
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_fp32_logits_are_those_of_transformers(tmp_path, architecture, seed):
    config = random_config(architecture, seed)
    model = save_reference(tmp_path, config, seed)
    llm = Spy(LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, max_num_batched_tokens=50))
    check_logits(llm, model, random_prompts(PROMPT_LENGTHS, seed), NUM_TOKENS, config)


@pytest.mark.parametrize(("architecture", "option"), VARIANTS)
def test_options_that_are_rarely_set_have_the_same_logits(tmp_path, architecture, option):
    config = random_config(architecture, 0) | option
    model = save_reference(tmp_path, config, 0)
    llm = Spy(LLM(tmp_path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((13, 40), 0), 2, config)


# Why no configuration sets them, for keys that may have several values.
UNSET = {
    "head_dim": "it follows from other sizes in transformers",
    "layer_types": "one kind of layer, or what else says where windows are: test_families.py",
    "layers_block_type": "another name of layer_types",
    "no_rope_layers": "layer_types and it say the same in Llama 4",
    "norm_weights_are_offset": "GGUF",
    "num_experts": "another name of num_local_experts",
    "num_local_experts": "another name of num_experts or n_routed_experts",
    "num_mtp_layers": "layers that are not computed",
    "num_nextn_predict_layers": "layers that are not computed",
    "original_max_position_embeddings": "rope_configs.py has it where the kind of rope reads it",
    "partial_rotary_factor": "refused where transformers does not read it: test_config.py",
    "per_layer_config": "Gemma 4 with layers of several sizes: refused",
    "qk_nope_head_dim": "of latent attention, which Hunyuan does not have",
    "qk_rope_head_dim": "of latent attention, which Hunyuan does not have",
    "rope_parameters": "by kind of layer, or what rope_scaling says otherwise",
    "rope_percent": "Nemotron, whose class in transformers does not read it: test_families.py",
    "sliding_window_size": "GGUF",
}


def test_every_option_is_set_by_a_configuration(tmp_path, monkeypatch):
    """What a family reads, and may have several values, is compared with transformers above."""
    readers, fixed = [], set()
    create, only = ConfigReader.__init__, ConfigReader.only

    def created(self, *arguments, **options):
        create(self, *arguments, **options)
        readers.append(self)

    def limited(self, name, *allowed):
        if not self.prefix:
            fixed.add(name)
        only(self, name, *allowed)

    monkeypatch.setattr(ConfigReader, "__init__", created)
    monkeypatch.setattr(ConfigReader, "only", limited)
    unset, excused = {}, set()
    for architecture in FAMILIES:
        asked, given = set(), set()
        fixed.clear()
        for seed in SEEDS:
            config = random_config(architecture, seed)
            (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
            readers.clear()
            read_model_config(tmp_path)
            given.update(config)
            asked.update(*(reader.asked for reader in readers if not reader.prefix))
        given.update(*(option for name, option in VARIANTS if name == architecture))
        missing = asked - given - fixed
        excused |= missing & UNSET.keys()
        if missing - UNSET.keys():
            unset[architecture] = missing - UNSET.keys()
    assert unset == {}
    assert excused == UNSET.keys()


@pytest.mark.parametrize("architecture", ["DeepseekV2ForCausalLM", "MiniCPM3ForCausalLM"])
def test_latent_values_of_one_element_have_the_same_logits(tmp_path, architecture):
    """Catches a product or a choice of rows that is given every eighth element of the padded values."""
    config = random_config(architecture, 0) | {"v_head_dim": 1}
    model = save_reference(tmp_path, config, 0)
    llm = Spy(LLM(tmp_path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((1, 20), 0), 3, config)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_gives_the_same_tokens_in_a_batch_and_in_chunks(tmp_path, architecture):
    config = random_config(architecture, 200)
    save_reference(tmp_path, config, 200)
    prompts = random_prompts((40, 3, 17, 64, 1), 200)
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    whole, cut = (
        LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, **options)
        for options in ({}, {"max_num_batched_tokens": 11, "max_num_seqs": 3})
    )
    alone = [whole.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids for prompt in prompts]
    for llm in (whole, cut):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == alone, config


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_half_precision_logits_are_as_near_as_their_roundings(tmp_path, architecture, dtype):
    """Against fp32 arithmetic on the same rounded weights; a router with no choice can't tip over."""
    config = random_config(architecture, 100)
    if architecture == "PhimoeForCausalLM":
        config["num_local_experts"] = 2  # of which it always takes two
    if "moe_k" in config:
        config["moe_k"] = config["moe_num_experts"]
    for name in EXPERTS:
        if name in config:
            config["top_k_experts" if "top_k_experts" in config else "num_experts_per_tok"] = config[name]
    if "n_group" in config:
        config["topk_group"] = config["n_group"]
    model = save_reference(tmp_path, config, 100)
    llm = Spy(LLM(tmp_path, dtype=dtype, skip_tokenizer_init=True))
    model.to(dtype).float()
    for prompt in random_prompts((1, 30), 100):
        tokens, logits = llm.generate(prompt, 4)
        expected = expected_logits(model, prompt, tokens)
        bound = MOST_OF_ROUNDINGS * rounding_noise(model, prompt, tokens, dtype)
        assert (logits - expected).norm() / expected.norm() < bound, config
