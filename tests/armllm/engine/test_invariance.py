"""In fp32 a request has the same tokens whatever the engine is made of and whatever else it does."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armllm import LLM, AsyncLLM, RequestOutputKind, SamplingParams

NUM_TOKENS = 24
LENGTHS = (1, 7, 16, 33, 60, 100)


@pytest.fixture(scope="module")
def cases(make_checkpoint):
    """The folder, and prompts (half of them begin alike) with what transformers says to each."""
    checkpoint = make_checkpoint()
    found = checkpoint.prompts(LENGTHS, NUM_TOKENS)
    longest = max(found, key=len)
    for tail in range(20):
        prompt = (*longest[:50], *(tail + 2 for _ in range(5)))
        expected = checkpoint.greedy(prompt, NUM_TOKENS)
        if expected is not None:
            found[prompt] = expected
        if len(found) == 2 * len(LENGTHS):
            break
    return checkpoint.folder, [(list(prompt), tokens) for prompt, tokens in found.items()]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    budget=st.sampled_from([1, 3, 16, 50, 2048]),
    max_num_seqs=st.sampled_from([1, 2, 5, 256]),
    block_size=st.sampled_from([16, 32]),
    blocks=st.sampled_from([None, 0, 3]),
    caching=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    seed=st.integers(0, 1 << 30),
)
def test_greedy_tokens_depend_on_nothing_else(  # noqa: PLR0917 - hypothesis names them
    cases, budget, max_num_seqs, block_size, blocks, caching, policy, seed
):
    folder, pairs = cases
    rng = random.Random(seed)  # noqa: S311 - test data
    options = {}
    if blocks is not None:  # as few as one sequence needs, and some more: everyone else is thrown out
        options["num_gpu_blocks_override"] = -(-128 // block_size) + blocks
    llm = LLM(
        folder,
        dtype="float32",
        max_model_len=128,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        enable_prefix_caching=caching,
        scheduling_policy=policy,
        **options,
    )
    chosen = [rng.choice(pairs) for _ in range(rng.randrange(1, 8))]
    noise = [[rng.randrange(2, 400) for _ in range(rng.randrange(1, 90))] for _ in range(3)]
    requests = [(prompt, expected, True) for prompt, expected in chosen] + [(p, None, False) for p in noise]
    rng.shuffle(requests)
    said, kinds = {}, {}
    waiting = list(enumerate(requests))
    while waiting or llm.llm_engine.has_unfinished_requests():
        while waiting and rng.random() < 0.6:  # they come while others run
            number, (prompt, _, steady) = waiting.pop(0)
            kinds[number] = kind = rng.choice(list(RequestOutputKind))
            params = SamplingParams(
                temperature=0.0 if steady else 1.3,
                n=1 if steady else rng.choice([1, 3]),
                max_tokens=NUM_TOKENS,
                ignore_eos=True,
                output_kind=kind,
                prompt_logprobs=rng.choice([None, None, 1]),
                repetition_penalty=1.0 if steady else 1.2,
            )
            priority = rng.randrange(3) if policy == "priority" else 0
            llm.llm_engine.add_request(str(number), prompt, params, priority=priority)
            said[number] = []
        if not llm.llm_engine.has_unfinished_requests():
            continue
        for output in llm.llm_engine.step():
            number, ids = int(output.request_id), output.outputs[0].token_ids
            said[number] = said[number] + ids if kinds[number] is RequestOutputKind.DELTA else ids
        llm.llm_engine.check_integrity()
        victim = rng.choice([None] * 30 + [str(n) for n, r in enumerate(requests) if not r[2]])
        if victim is not None:
            llm.llm_engine.abort([victim])
    for number, (_, expected, steady) in enumerate(requests):
        if steady:
            assert said[number] == expected
    assert llm.llm_engine.blocks.num_free_blocks == llm.llm_engine.blocks.num_blocks


def test_streamed_or_not(cases):
    folder, pairs = cases
    engine = AsyncLLM(str(folder), dtype="float32", max_num_batched_tokens=40)

    async def client(number, kind):
        prompt, _ = pairs[number]
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, output_kind=kind)
        said = []
        async for output in engine.generate(prompt, params, f"{number} {kind}"):
            ids = output.outputs[0].token_ids
            said = said + ids if kind is RequestOutputKind.DELTA else ids
        return said

    async def work():
        return await asyncio.gather(
            *(client(n, kind) for n in range(len(pairs)) for kind in RequestOutputKind)
        )

    try:
        assert asyncio.run(work()) == [tokens for _, tokens in pairs for _ in RequestOutputKind]
    finally:
        engine.shutdown()
