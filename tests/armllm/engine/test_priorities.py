"""Lower priorities are served first, where the engine was made for it, and that changes nobody's tokens."""

from __future__ import annotations

import asyncio
import random

import pytest

from armllm import LLM, AsyncLLM, SamplingParams
from armllm.errors import RequestError


def greedy(count):
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def finish_order(llm, prompts, priorities, count=4):
    """Request numbers in the order in which they finish."""
    for number, (prompt, priority) in enumerate(zip(prompts, priorities, strict=True)):
        llm.llm_engine.add_request(str(number), prompt, greedy(count), priority=priority)
    order = []
    while llm.llm_engine.has_unfinished_requests():
        order += [int(output.request_id) for output in llm.llm_engine.step() if output.finished]
        llm.llm_engine.check_integrity()
    return order


def test_the_lowest_goes_first_then_the_first_to_come(make_checkpoint):
    llm = LLM(make_checkpoint().folder, dtype="float32", max_num_seqs=1, scheduling_policy="priority")
    prompts = [[number + 2] * 5 for number in range(6)]
    assert finish_order(llm, prompts, [5, 0, 5, -3, 0, 9]) == [3, 1, 4, 0, 2, 5]
    assert finish_order(llm, prompts, [0] * 6) == [0, 1, 2, 3, 4, 5]


def test_the_last_in_rank_is_preempted_and_no_token_changes(make_checkpoint):
    checkpoint = make_checkpoint()
    prompts = [list(prompt) for prompt in checkpoint.prompts((30, 20, 25, 40, 3, 1), 40)]
    expected = [checkpoint.greedy(prompt, 40) for prompt in prompts]
    options = {"num_gpu_blocks_override": 7, "max_model_len": 96, "scheduling_policy": "priority"}
    for seed in range(4):
        llm = LLM(checkpoint.folder, dtype="float32", **options)
        ranks = random.Random(seed).sample(range(6), 6)  # noqa: S311 - test data
        outputs = llm.generate(prompts, greedy(40), use_tqdm=False, priority=ranks)
        assert [output.outputs[0].token_ids for output in outputs] == expected
        assert llm.stats().num_preemptions > 0
        llm.llm_engine.check_integrity()


def test_priorities_reach_the_scheduler_of_a_server(make_checkpoint):
    engine = AsyncLLM(
        str(make_checkpoint().folder), dtype="float32", max_num_seqs=1, scheduling_policy="priority"
    )
    order = []

    async def client(name, priority):
        async for _ in engine.generate([5, 6], greedy(30), name, priority=priority):
            pass
        order.append(name)

    async def work():
        first = asyncio.ensure_future(client("running", 9))
        while not engine.stats().num_running:  # noqa: ASYNC110 - it is in another thread
            await asyncio.sleep(0)
        await asyncio.gather(first, client("last", 2), client("first", 1))

    try:
        asyncio.run(work())
    finally:
        engine.shutdown()
    assert order.index("first") < order.index("last")


def test_a_priority_that_would_be_ignored_is_refused(make_checkpoint):
    llm = LLM(make_checkpoint().folder, dtype="float32")
    with pytest.raises(RequestError, match=r"priority 1 needs .* scheduling_policy 'priority'"):
        llm.generate([[5], [6]], greedy(2), use_tqdm=False, priority=[0, 1])
    with pytest.raises(RequestError, match="2 prompts but 1 priorities"):
        llm.generate([[5], [6]], greedy(2), use_tqdm=False, priority=[0])
    with pytest.raises(RequestError, match="priority must be an integer"):
        llm.generate([[5]], greedy(2), use_tqdm=False, priority=["high"])
    with pytest.raises(RequestError, match="scheduling_policy must be"):
        LLM(make_checkpoint().folder, dtype="float32", scheduling_policy="lifo")
