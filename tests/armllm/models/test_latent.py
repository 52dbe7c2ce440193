"""Latent attention: what the cache holds, and the three ways to attend to it."""

from __future__ import annotations

import pytest
import torch
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import (
    Spy,
    check_logits,
    random_prompts,
    save_reference,
)

from armllm import LLM, SamplingParams
from armllm.models import latent
from armllm.models.latent import LatentHeads

FAMILIES = [
    f"{name}ForCausalLM" for name in ("DeepseekV2", "DeepseekV3", "DeepseekV32", "Glm4MoeLite", "MiniCPM3")
]


def load(folder, **options):
    return LLM(folder, dtype="float32", skip_tokenizer_init=True, **options)


def attentions(llm):
    return [layer.self_attn.attention for layer in llm.llm_engine.runner.model.layers]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_cache_holds_one_vector_for_all_heads(tmp_path, architecture):
    config = random_config(architecture, 3)
    save_reference(tmp_path, config, 3)
    length = -(-(config["kv_lora_rank"] + config["qk_rope_head_dim"]) // 8) * 8
    for attention in attentions(load(tmp_path)):
        assert (attention.num_kv_heads, attention.head_dim) == (1, length)
        assert attention.layout.block_bytes == 2 * attention.layout.block_size * length * 4


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("way", ["new", "continued", "expanded"])
def test_each_way_to_attend_has_the_logits_of_transformers(tmp_path, monkeypatch, architecture, way):
    """Prompts in one step, prompts in pieces, and a cache of expanded keys and values."""
    config = random_config(architecture, 4)
    model = save_reference(tmp_path, config, 4)
    calls = {"_absorb": 0, "_expand": 0}
    for name in calls:
        original = getattr(LatentHeads, name)

        def counted(self, query, *others, name=name, original=original):
            calls[name] += len(query)
            return original(self, query, *others)

        monkeypatch.setattr(LatentHeads, name, counted)
    if way == "expanded":
        monkeypatch.setattr(latent, "LARGEST_HEAD_DIM", 0)
    options = {"max_num_batched_tokens": 6, "max_num_seqs": 3} if way == "continued" else {}
    llm = load(tmp_path, enforce_eager=True, **options)
    layers = len(attentions(llm))
    calls.update(_absorb=0, _expand=0)
    check_logits(Spy(llm), model, random_prompts((30, 5, 9, 17), 4), 4, config)
    if way == "expanded":
        assert calls == {"_absorb": 0, "_expand": 0}
    elif way == "new":  # decodes are replayed, and counted where they were recorded at most
        assert calls["_expand"] == layers * (30 + 5 + 9 + 17)
    else:  # the first 6 tokens of a prompt are new
        assert calls["_absorb"] >= layers * 24


def test_the_prompts_of_a_step_are_looked_for_once(tmp_path, monkeypatch):
    """Not in every layer."""
    config = random_config("DeepseekV2ForCausalLM", 7) | {"num_hidden_layers": 3}
    save_reference(tmp_path, config, 7)
    llm = load(tmp_path, enforce_eager=True)
    calls = {"nonzero": 0, "_expand": 0}
    for owner, name in ((torch, "nonzero"), (LatentHeads, "_expand")):
        original = getattr(owner, name)

        def counted(*arguments, name=name, original=original):
            calls[name] += 1
            return original(*arguments)

        monkeypatch.setattr(owner, name, counted)
    prompts = [{"prompt_token_ids": prompt} for prompt in random_prompts((30, 5, 9), 7)]
    llm.generate(prompts, SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    assert calls == {"nonzero": 1, "_expand": 3}


def test_adapters_and_calibration_need_the_expanded_cache(tmp_path):
    """They change or look at the product that latent vectors are expanded by."""
    config = random_config("DeepseekV2ForCausalLM", 5)
    save_reference(tmp_path, config, 5)
    llm = load(tmp_path, enable_lora=True)
    assert {attention.num_kv_heads for attention in attentions(llm)} == {config["num_attention_heads"]}


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounded_weights_give_nearly_the_same_in_both_ways(tmp_path, quantization):
    """Absorbed weights are decoded; expanded vectors are rounded, too, by at most half of a 127th."""
    config = random_config("DeepseekV3ForCausalLM", 6) | {"kv_lora_rank": 64}
    save_reference(tmp_path, config, 6)
    llm = load(tmp_path, quantization=quantization, enforce_eager=True)
    heads = llm.llm_engine.runner.model.layers[0].self_attn.heads
    torch.manual_seed(6)
    query = torch.randn(9, config["num_attention_heads"], heads.config.plain_dim + heads.config.rotary_dim)
    vectors, shared = torch.randn(9, 64), torch.randn(9, 1, heads.config.rotary_dim)
    plain, rotated = query.split_with_sizes((heads.config.plain_dim, heads.config.rotary_dim), 2)
    absorbed = torch.cat([heads.to_latent(plain), rotated], 2) @ torch.cat([vectors, shared[:, 0]], 1).T
    expanded = latent.expand(heads.kv_b_proj, heads.config, vectors, shared, config["num_attention_heads"])[0]
    wanted = torch.einsum("thd,shd->ths", query, expanded[..., : query.shape[2]])
    assert (absorbed - wanted).abs().max() <= 0.02 * wanted.abs().max()
