"""The engine behind event loops: streams say what batches say, and who leaves or fails leaves no trace."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time

import pytest

from armllm import LLM, AsyncLLM, RequestOutputKind, SamplingParams
from armllm.errors import CheckpointError, EngineError, RequestError

PATIENCE = 60  # seconds after which something hangs


@pytest.fixture(scope="module")
def folder(make_checkpoint):
    return make_checkpoint().folder


@pytest.fixture(scope="module")
def engine(folder):
    engine = AsyncLLM(str(folder), dtype="float32", max_num_batched_tokens=64)
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def offline(folder):
    return LLM(folder, dtype="float32")


def run(work):
    return asyncio.run(asyncio.wait_for(work, PATIENCE))


async def idle(engine):
    """Wait until the engine has nothing left, and check that every block is back."""
    while engine.llm_engine.has_unfinished_requests() or engine._streams:  # noqa: ASYNC110 - of a thread
        await asyncio.sleep(0.001)  # a reader that is collected leaves in the loop's next turn
    assert not engine._keys
    assert engine.llm_engine.blocks.num_free_blocks == engine.llm_engine.blocks.num_blocks
    engine.llm_engine.check_integrity()


def greedy(max_tokens=20, **params):
    return SamplingParams(**{"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True} | params)


def collect(engine, prompt, params, request_id="r"):
    async def work():
        outputs = [output async for output in engine.generate(prompt, params, request_id)]
        await idle(engine)
        return outputs

    return run(work())


def test_cumulative_outputs_grow_to_what_the_offline_engine_says(engine, offline):
    prompt = "The quick brown"
    outputs = collect(engine, prompt, greedy(logprobs=1))
    (expected,) = offline.generate(prompt, greedy(logprobs=1), use_tqdm=False)
    counts = [len(output.outputs[0].token_ids) for output in outputs]
    assert counts == sorted(set(counts))
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].outputs[0] == expected.outputs[0]
    assert outputs[-1].prompt_token_ids == expected.prompt_token_ids
    assert {output.request_id for output in outputs} == {"r"}
    for output in outputs:
        (said,) = output.outputs
        assert expected.outputs[0].token_ids[: len(said.token_ids)] == said.token_ids
        assert expected.outputs[0].text.startswith(said.text)
        assert len(said.logprobs) == len(said.token_ids)


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("n", [1, 3])
def test_deltas_add_up_to_the_final_output(engine, offline, n, temperature):
    if n > 1 and not temperature:
        temperature = 1.0
    params = greedy(30, temperature=temperature, n=n, seed=3, logprobs=0)
    (expected,) = offline.generate("Grüße 東京 😀", params, use_tqdm=False)
    params.output_kind = RequestOutputKind.DELTA
    said = {index: ("", [], []) for index in range(n)}
    for output in collect(engine, "Grüße 東京 😀", params):
        for part in output.outputs:
            text, ids, logprobs = said[part.index]
            said[part.index] = (text + part.text, ids + part.token_ids, logprobs + part.logprobs)
    assert said == {c.index: (c.text, c.token_ids, c.logprobs) for c in expected.outputs}


def test_a_final_only_request_has_one_output(engine, offline):
    (output,) = collect(engine, [5, 6, 7], greedy(output_kind=RequestOutputKind.FINAL_ONLY))
    (expected,) = offline.generate([5, 6, 7], greedy(), use_tqdm=False)
    assert output.outputs == expected.outputs


def test_no_part_of_a_stop_string_is_streamed(engine, offline):
    """A client that has shown the beginning of a stop string can't take it back."""
    (whole,) = offline.generate("Once", greedy(40), use_tqdm=False)
    text = whole.outputs[0].text
    for start in range(5, len(text) - 6, 3):
        stop = text[start : start + 5]
        params = greedy(40, stop=[stop, "zz" + stop])
        (expected,) = offline.generate("Once", params, use_tqdm=False)
        for output in collect(engine, "Once", params):
            assert expected.outputs[0].text.startswith(output.outputs[0].text)
        assert output.outputs[0].text == expected.outputs[0].text
        assert output.outputs[0].stop_reason == stop
        params.output_kind = RequestOutputKind.DELTA
        deltas = "".join(part.text for o in collect(engine, "Once", params) for part in o.outputs)
        assert deltas == expected.outputs[0].text


def test_a_slow_reader_gets_everything_in_fewer_outputs(engine, offline):
    (expected,) = offline.generate([9, 8], greedy(60), use_tqdm=False)

    async def work():
        ids = []
        outputs = 0
        async for output in engine.generate([9, 8], greedy(60, output_kind=RequestOutputKind.DELTA), "s"):
            outputs += 1
            ids += output.outputs[0].token_ids
            while engine.llm_engine.has_unfinished_requests():  # noqa: ASYNC110 - it is in another thread
                await asyncio.sleep(0.01)
        return outputs, ids

    outputs, ids = run(work())
    assert outputs <= 3
    assert ids == expected.outputs[0].token_ids


def test_crowds_get_their_own_answers_while_others_hang_up(engine, offline):
    rng = random.Random(0)  # noqa: S311 - test data
    prompts = [[rng.randrange(2, 400) for _ in range(rng.randrange(1, 100))] for _ in range(30)]
    params = [greedy(rng.randrange(1, 30), temperature=rng.choice([0, 1.0]), seed=seed) for seed in range(30)]
    expected = offline.generate(prompts, params, use_tqdm=False)
    patience = [rng.choice([None, None, 0, 1, 4]) for _ in prompts]

    async def client(number):
        last = None
        stream = engine.generate(prompts[number], params[number], f"client {number}")
        try:
            if patience[number] == 0:
                task = asyncio.ensure_future(
                    consume(engine, prompts[number], params[number], f"quitter {number}")
                )
                await asyncio.sleep(0)
                task.cancel()
                return None
            seen = 0
            async for output in stream:
                last, seen = output, seen + 1
                if seen == patience[number]:
                    break
        finally:
            await stream.aclose()
        return last

    async def crowd():
        said = await asyncio.gather(*map(client, range(30)))
        await idle(engine)
        return said

    for number, said in enumerate(run(crowd())):
        if patience[number] is None:
            assert said.outputs == expected[number].outputs
            assert said.finished


@pytest.mark.parametrize("where", ["queue", "prefill", "decode"])
def test_a_dropped_request_gives_its_blocks_back_wherever_it_is(folder, where):
    engine = AsyncLLM(str(folder), dtype="float32", max_num_seqs=1, max_num_batched_tokens=4)
    try:
        reached, go = threading.Event(), threading.Event()
        step = engine.llm_engine._step

        def gated(**options):
            if all(s.num_output_tokens >= (where == "decode") for s in engine.llm_engine.scheduler.running):
                reached.set()
                go.wait(PATIENCE)
            return step(**options)

        engine.llm_engine._step = gated

        async def work():
            tasks = [
                asyncio.ensure_future(consume(engine, [*range(2, 42)], greedy(50), name)) for name in "ab"
            ]
            await asyncio.to_thread(reached.wait, PATIENCE)
            tasks[where == "queue"].cancel()
            await asyncio.gather(*tasks[(where == "queue") :][:1], return_exceptions=True)
            engine.abort("a")
            engine.abort("b")
            go.set()
            rest = await asyncio.gather(*tasks, return_exceptions=True)
            await idle(engine)
            return rest

        results = run(work())
        assert sorted(type(result).__name__ for result in results) == ["CancelledError", "RequestOutput"]
        (aborted,) = [result for result in results if not isinstance(result, BaseException)]
        assert aborted.finished
        assert aborted.outputs[0].finish_reason == "abort"
    finally:
        engine.shutdown()


async def consume(engine, prompt, params, request_id):
    last = None
    async for output in engine.generate(prompt, params, request_id):
        last = output
    return last


def test_an_abort_while_the_prompt_is_tokenized_is_not_lost(engine, monkeypatch):
    tokenizing, go = threading.Event(), threading.Event()
    make = type(engine.llm_engine.processor).make_request

    def slow(self, *args, **kwargs):
        tokenizing.set()
        go.wait(PATIENCE)
        return make(self, *args, **kwargs)

    monkeypatch.setattr(type(engine.llm_engine.processor), "make_request", slow)

    async def work():
        task = asyncio.ensure_future(consume(engine, [2] * 3000, greedy(), "long"))
        await asyncio.to_thread(tokenizing.wait, PATIENCE)
        monkeypatch.setattr(engine.llm_engine.processor, "max_model_len", 4000)
        engine.abort("long")
        go.set()
        output = await task
        await idle(engine)
        return output

    assert run(work()).outputs[0].finish_reason == "abort"


def test_every_form_of_prompt(engine, offline):
    ids = offline.get_tokenizer().encode("one")
    (expected,) = offline.generate("one", greedy(), use_tqdm=False)
    for prompt in ("one", ids, {"prompt": "one"}, {"prompt_token_ids": ids}):
        assert collect(engine, prompt, greedy())[-1].outputs == expected.outputs
    with pytest.raises(RequestError, match="a prompt must be"):
        collect(engine, 5, greedy())


def test_breaking_out_of_the_loop_is_hanging_up(engine):
    async def work():
        async for _ in engine.generate([3, 4], greedy(200), "left"):
            break
        gc.collect()
        await idle(engine)

    run(work())


def test_an_id_can_be_used_again_at_once_but_not_twice(engine, offline):
    async def work():
        for _ in range(5):
            stream = engine.generate([3, 4], greedy(200), "same")
            await stream.__anext__()
            with pytest.raises(RequestError, match="'same' is in use"):
                await engine.generate([7], greedy(), "same").__anext__()
            await stream.aclose()
        return await consume(engine, [7], greedy(), "same")

    (expected,) = offline.generate([7], greedy(), use_tqdm=False)
    assert run(work()).outputs == expected.outputs


def test_bad_requests_are_refused_and_forgotten(engine):
    for prompt, params, words in [
        ([400], greedy(), "400 is not in the vocabulary"),
        ("", greedy(stop_token_ids=[500]), "stop_token_ids"),
        ("x" * 3000, greedy(), "max_model_len"),
        ([], greedy(), "empty"),
    ]:
        with pytest.raises(RequestError, match=words):
            collect(engine, prompt, params)
    run(idle(engine))


def test_a_failing_step_reaches_everyone_who_waits_and_everyone_who_comes(folder, monkeypatch):
    engine = AsyncLLM(str(folder), dtype="float32")
    real = type(engine.llm_engine.runner).run
    calls = []

    def fail(self, sequences, alone):
        calls.append(len(sequences))
        if sum(calls) > 20:
            raise RuntimeError("broken\nin two lines")
        return real(self, sequences, alone)

    monkeypatch.setattr(type(engine.llm_engine.runner), "run", fail)

    async def work():
        clients = [consume(engine, [number + 2], greedy(100), str(number)) for number in range(5)]
        results = await asyncio.gather(*clients, return_exceptions=True)
        with pytest.raises(EngineError, match=r"RuntimeError: broken$"):
            await consume(engine, [2], greedy(), "late")
        return results

    results = run(work())
    assert all(isinstance(result, EngineError) for result in results)
    assert len({id(result) for result in results}) == 5
    assert engine.errored
    assert isinstance(engine.dead_error.__cause__, RuntimeError)
    engine.shutdown()


def test_a_forked_process_hears_that_it_has_no_engine(engine, monkeypatch):
    """It waited for a thread that only its parent has."""
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(EngineError, match="a forked process has no thread of this engine"):
        collect(engine, "x", greedy())


def test_shutdown_ends_those_who_wait(folder):
    engine = AsyncLLM(str(folder), dtype="float32")

    async def work():
        stream = engine.generate([5], greedy(250), "long")
        await stream.__anext__()
        await asyncio.to_thread(engine.shutdown)
        with pytest.raises(EngineError, match="shut down"):
            [output async for output in stream]
        with pytest.raises(EngineError, match="shut down"):
            await consume(engine, [5], greedy(), "late")

    run(work())
    assert not engine._thread.is_alive()
    engine.shutdown()  # once more is harmless


def test_several_event_loops_may_ask(engine, offline):
    (expected,) = offline.generate([11, 12], greedy(), use_tqdm=False)
    said = []

    def client(name):
        said.append(run(consume(engine, [11, 12], greedy(), name)).outputs)

    threads = [threading.Thread(target=client, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [expected.outputs] * 4


def test_a_reader_whose_loop_has_gone_is_dropped(engine):
    loop = asyncio.new_event_loop()
    stream = engine.generate([5, 6], greedy(240), "gone")
    loop.run_until_complete(stream.__anext__())
    loop.close()
    deadline = time.monotonic() + PATIENCE
    while engine.llm_engine.has_unfinished_requests():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    asyncio.run(stream.aclose())
    run(idle(engine))


def test_what_is_wrong_with_the_model_is_raised_where_the_engine_is_made(tmp_path):
    with pytest.raises(CheckpointError, match="not a folder"):
        AsyncLLM(str(tmp_path / "nothing"))
    with pytest.raises(TypeError, match="'speed'"):
        AsyncLLM(str(tmp_path), speed=11)
