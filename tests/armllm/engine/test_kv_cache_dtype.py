"""An int8 KV cache: how large it is, who says so, and that requests in company get what they get alone."""

from __future__ import annotations

import pytest
import torch

from armllm import LLM, SamplingParams
from armllm.engine.memory import readable
from armllm.errors import RequestError
from armllm.server.greeting import engine_lines
from armllm.server.metrics import EngineCollector
from armllm.smoke.cases import Recitation, batches, default_cases, recitations
from armllm.smoke.passages import MODEL, load_passages
from armllm.smoke.recite import run

INT8 = {"kv_cache_dtype": "int8"}


def make(dtype="float32", **options) -> LLM:
    return LLM(str(MODEL), dtype=dtype, num_gpu_blocks_override=64, **options)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_its_blocks_hold_a_byte_per_element_and_a_float_per_head_vector(dtype, size):
    heads_of_a_block = 3 * 2 * 16 * 2  # layers, KV heads, tokens, keys and values
    plain, rounded = (make(dtype, **options).llm_engine.runner for options in ({}, INT8))
    assert plain.cache_bytes == 64 * heads_of_a_block * 32 * size
    assert rounded.cache_bytes == 64 * heads_of_a_block * (32 + 4)
    held = sum(layer.cache.numel() for layer in rounded.model.attention_layers)
    assert held == rounded.cache_bytes


def test_the_same_memory_holds_more_blocks(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.01")
    plain, rounded = (
        LLM(str(MODEL), dtype="bfloat16", **options).llm_engine.runner for options in ({}, INT8)
    )
    assert plain.num_blocks * 64 // 36 <= rounded.num_blocks <= plain.num_blocks * 64 // 36 + 2
    assert rounded.cache_bytes <= 0.01 * 2**30


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3", "bfloat16", "int4", 8])
def test_another_dtype_is_refused_by_name(name):
    with pytest.raises(RequestError, match=f"kv_cache_dtype must be 'auto' or 'int8', not {name!r}"):
        make(kv_cache_dtype=name)


def test_the_server_says_what_the_cache_holds():
    llm = make("bfloat16", **INT8)
    assert llm.llm_engine.stats().cache_dtype == "int8"
    assert make("bfloat16").llm_engine.stats().cache_dtype == "bfloat16"

    (info,) = (
        sample.labels
        for family in EngineCollector(llm.llm_engine, "smoke").collect()
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    )
    assert (info["cache_dtype"], info["num_gpu_blocks"]) == ("int8", "64")

    lines = engine_lines(llm.llm_engine)
    size = readable(llm.llm_engine.runner.cache_bytes)
    assert f"  KV cache: {size} of int8, 1024 tokens; 256 requests at a time" in lines


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunks_and_preemption_change_no_token(dtype):
    """Keys and values are rounded once, when written, so a request's are the same whatever else is done."""
    for case in (*default_cases(load_passages(), INT8), *batches(load_passages(), [7], INT8)):
        result = run(case, dtype, MODEL)
        assert result.ok, result.problem
        assert result.kv_cache_dtype == "int8"
        assert result.preemptions > 0 or case.name == "alone"


def test_cached_prefixes_change_no_token():
    recitation = Recitation(passage=load_passages()[0], num_given=200)
    rest = list(recitation.expected)
    llm = make(**INT8)
    params = SamplingParams(temperature=0.0, max_tokens=len(rest))
    first, again = (llm.generate(recitation.prompt, params, use_tqdm=False)[0] for _ in range(2))
    assert llm.llm_engine.stats().num_prefix_hits >= 192
    assert list(first.outputs[0].token_ids) == list(again.outputs[0].token_ids) == rest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_stay_close(dtype, monkeypatch):
    """The error's root mean square is at most 3% of the logits' own (0.9% and 1.3% are usual)."""
    logits = {}
    for name in ("auto", "int8"):
        llm = make(dtype, kv_cache_dtype=name)
        seen = []
        compute = llm.llm_engine.runner.run
        monkeypatch.setattr(
            llm.llm_engine.runner, "run", lambda *given, c=compute, s=seen: s.append(c(*given)) or s[-1]
        )
        prompts = [recitation.prompt for recitation in recitations(load_passages(), 24)]
        llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=8), use_tqdm=False)
        logits[name] = torch.cat(seen)
    error = logits["int8"] - logits["auto"]
    assert error.square().mean().sqrt() <= 0.03 * logits["auto"].std()
