"""The counters count, and broken weights are an error instead of token 0."""

from __future__ import annotations

import asyncio
import shutil

import pytest
import safetensors.torch
import torch

from armllm import LLM, AsyncLLM, SamplingParams
from armllm.engine.stats import PHASES
from armllm.errors import ModelError


def greedy(count, **params):
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **params)


def test_the_counters_count(make_checkpoint):
    llm = LLM(make_checkpoint().folder, dtype="float32", max_num_seqs=2)
    before = llm.stats()
    assert before.num_steps == before.num_generation_tokens == before.num_prefix_queries == 0
    prompts = [[number + 2] * 40 for number in range(4)]
    for number, prompt in enumerate(prompts):
        llm.llm_engine.add_request(str(number), prompt, greedy(10))
    llm.llm_engine.step()
    during = llm.stats()
    assert (during.num_running, during.num_waiting) == (2, 2)
    assert during.num_used_blocks == 6
    assert during.kv_cache_usage == 6 / during.num_blocks
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    llm.generate(prompts, greedy(10), use_tqdm=False)
    after = llm.stats()
    assert (after.num_running, after.num_waiting, after.num_used_blocks) == (0, 0, 0)
    assert after.num_prompt_tokens == 8 * 40
    assert after.num_generation_tokens == 8 * 10
    assert after.num_prefix_queries == 8 * 40
    assert after.num_prefix_hits == 4 * 32
    assert after.num_preemptions == 0
    assert after.num_steps == 40
    assert set(after.seconds) == set(PHASES)
    assert all(seconds > 0 for seconds in after.seconds.values())
    assert after.seconds["model"] > after.seconds["schedule"]


def test_what_loading_took_is_reported(make_checkpoint):
    folder = make_checkpoint().folder
    load = LLM(folder, dtype="float32").stats().load
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    assert load.weight_bytes == sum(4 * tensor.numel() for tensor in stored.values())
    assert 0 < load.seconds < 60
    assert load.peak_bytes > 50 << 20  # torch alone takes more


@pytest.fixture
def broken(make_checkpoint, tmp_path):
    """A checkpoint that computes NaN after token 7 and nowhere else."""
    folder = shutil.copytree(make_checkpoint().folder, tmp_path / "broken")
    path = folder / "model.safetensors"
    state = safetensors.torch.load_file(path)
    state["model.embed_tokens.weight"][7] = torch.nan
    safetensors.torch.save_file(state, path)
    return folder


@pytest.mark.parametrize("params", [greedy(5), SamplingParams(seed=1, max_tokens=5, top_p=0.9, n=2)])
def test_nan_is_an_error_not_token_0(broken, params):
    llm = LLM(broken, dtype="float32")
    assert len(llm.generate([5, 6], greedy(1), use_tqdm=False)) == 1
    with pytest.raises(ModelError, match="logits are nan: its weights are broken"):
        llm.generate([[5, 6], [5, 7]], params, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    llm.llm_engine.check_integrity()


def test_nan_ends_its_request_and_no_other(broken):
    engine = AsyncLLM(str(broken), dtype="float32")

    async def consume(prompt, name):
        params = SamplingParams(
            seed=3, max_tokens=12, ignore_eos=True, bad_words=[], allowed_token_ids=[5, 6]
        )
        return [output async for output in engine.generate(prompt, params, name)][-1]

    async def work():
        prompts = [[5, 6], [5, 7], [6, 6], [7]]
        clients = [consume(prompt, str(number)) for number, prompt in enumerate(prompts)]
        return await asyncio.gather(*clients, return_exceptions=True)

    try:
        good, bad, also_good, also_bad = asyncio.run(work())
        assert isinstance(bad, ModelError)
        assert isinstance(also_bad, ModelError)
        assert len(good.outputs[0].token_ids) == len(also_good.outputs[0].token_ids) == 12
        assert not engine.errored
        while engine.llm_engine.has_unfinished_requests():
            pass
        engine.llm_engine.check_integrity()
    finally:
        engine.shutdown()
