"""An engine in another process answers as it does in this one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from armllm import AsyncLLM, PoolingParams, SamplingParams
from armllm.engine.prompts import as_prompt
from armllm.errors import CheckpointError, EngineError, RequestError
from armllm.progress import progress
from armllm.sampling_params import RequestOutputKind
from armllm.server import engine_process
from armllm.server.engine_process import EngineProcess

PROMPT = [7, 3, 9, 4] * 20
PARAMS = (
    SamplingParams(temperature=0, max_tokens=6),
    SamplingParams(seed=1, n=2, max_tokens=5, logprobs=2, output_kind=RequestOutputKind.DELTA),
    SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=1),
    SamplingParams(temperature=0, max_tokens=2, output_kind=RequestOutputKind.FINAL_ONLY),
)


@pytest.fixture(scope="module")
def process(folder):
    engine = EngineProcess(str(folder), dtype="float32")
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def in_loop(process):
    """in_loop(coroutine): its result, in the event loop to which the engine was connected."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(process.connect())
    yield loop.run_until_complete
    process.shutdown()
    loop.run_until_complete(process._reading)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def merged(outputs, kind):
    """What a reader has at the end: slow readers get fewer outputs with more in each."""
    last, completions = outputs[-1], {}
    for output in outputs if kind is RequestOutputKind.DELTA else [last]:
        for one in output.outputs:
            text, ids, logprobs = completions.get(one.index, ("", [], []))
            completions[one.index] = text + one.text, ids + one.token_ids, logprobs + (one.logprobs or [])
    return last.prompt_token_ids, completions, last.prompt_logprobs, last.finished


async def ask(engine, params):
    return [output async for output in engine.generate(as_prompt(PROMPT), params, "x")]


def test_outputs_and_embeddings_are_those_of_an_engine_in_this_process(process, in_loop, folder):
    engine = AsyncLLM(folder, dtype="float32")
    try:
        for params in PARAMS:
            expected = merged(asyncio.run(ask(engine, params)), params.output_kind)
            assert merged(in_loop(ask(process, params)), params.output_kind) == expected
        expected = asyncio.run(engine.encode(PROMPT, PoolingParams(), "x"))
        assert in_loop(process.encode(PROMPT, PoolingParams(), "x")) == expected
        assert process.facts.vocab_size == engine.facts.vocab_size
        assert process.facts.tokenizer.encode("Hello") == engine.get_tokenizer().encode("Hello")
    finally:
        engine.shutdown()


def test_the_engine_has_a_session_and_so_a_share_of_the_cores(process):
    """Linux gives each session the same share: else twenty busy clients of this machine leave a tenth."""
    assert os.getsid(process._process.pid) == process._process.pid != os.getsid(0)


def test_the_session_of_the_engine_has_the_priority_that_the_server_was_started_with(folder, monkeypatch):
    """Else `nice armllm serve` changes nothing beside other sessions."""
    monkeypatch.setattr(engine_process, "COMMAND", ["nice", "-n", "7", *engine_process.COMMAND])
    process = EngineProcess(str(folder), dtype="float32")
    try:
        autogroup = Path(f"/proc/{process._process.pid}/autogroup")
        if not autogroup.exists():
            pytest.skip("this kernel shares the cores without regard to sessions")
        assert autogroup.read_text().split()[1:] == ["nice", str(os.nice(0) + 7)]
    finally:
        process.shutdown()


def test_errors_have_their_types_and_words(process, in_loop, folder):
    with pytest.raises(RequestError, match="not in the vocabulary"):
        in_loop(ask(process, SamplingParams(stop_token_ids=[10**6])))
    with pytest.raises(RequestError, match="dimensions"):
        in_loop(process.encode(PROMPT, PoolingParams(dimensions=10**6), "x"))
    with pytest.raises(CheckpointError, match="nowhere"):
        EngineProcess(str(folder / "nowhere"))


def test_who_goes_leaves_nothing_behind_and_may_come_back_at_once(process, in_loop):
    async def come_and_go():
        for _ in range(20):
            async with contextlib.aclosing(
                process.generate(PROMPT, SamplingParams(ignore_eos=True), "again")
            ) as outputs:
                await anext(outputs)
        for _ in range(600):
            await asyncio.sleep(0.05)
            if not process.stats().num_running and not process.stats().num_used_blocks:
                break
        assert not process.stats().num_running
        assert not process.stats().num_used_blocks

    in_loop(come_and_go())
    assert not process._streams


def test_an_answer_that_cannot_be_read_ends_all_requests(folder, monkeypatch):
    """It would catch clients that wait for ever while /health says that all is well."""

    async def fail(_reader):
        raise MemoryError

    async def wait(engine):
        await engine.connect()
        with pytest.raises(EngineError, match="can't be read: MemoryError"):
            await ask(engine, SamplingParams(ignore_eos=True))
        assert engine.errored

    engine = EngineProcess(str(folder), dtype="float32")
    monkeypatch.setattr(engine, "_hand_out_all", fail)
    asyncio.run(wait(engine))
    engine.shutdown()


def test_a_model_that_becomes_shorter_is_named(folder, tmp_path):
    """Weights are mapped: who may write to the file can end the engine, and must find out why."""
    model = shutil.copytree(folder, tmp_path / "model")

    async def shorten(engine):
        await engine.connect()
        os.truncate(model / "model.safetensors", 100)
        with pytest.raises(EngineError, match="a file of the model became shorter while it was in use"):
            await ask(engine, PARAMS[0])

    engine = EngineProcess(str(model), dtype="bfloat16")
    asyncio.run(shorten(engine))
    engine.shutdown()


def test_a_request_after_the_end_is_an_error(folder):
    async def late(engine):
        await engine.connect()
        engine._process.kill()
        with pytest.raises(EngineError, match="signal 9"):
            await ask(engine, SamplingParams(ignore_eos=True))
        with pytest.raises(EngineError, match="signal 9"):
            await ask(engine, PARAMS[0])
        assert engine.errored

    engine = EngineProcess(str(folder), dtype="float32")
    asyncio.run(late(engine))
    engine.shutdown()


def test_an_engine_that_is_stopped_counts_as_failed(folder, monkeypatch):
    monkeypatch.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "0.5")
    monkeypatch.setattr(engine_process, "BEAT_SECONDS", 0.1)

    async def stop(engine):
        engine._process.send_signal(signal.SIGSTOP)
        await engine.connect()
        with pytest.raises(EngineError, match=r"its process did not answer within 0\.5 seconds"):
            await ask(engine, SamplingParams(ignore_eos=True))
        assert engine.errored

    engine = EngineProcess(str(folder), dtype="float32")
    asyncio.run(stop(engine))
    assert engine._process.wait() == -signal.SIGKILL


def test_an_idle_engine_says_that_it_is_there(process, in_loop, monkeypatch):
    """Else its server would end it, as one that is stopped. What it says is no news then."""
    heard, read = [], engine_process.read_message

    async def read_message(reader):
        heard.append(await read(reader))
        return heard[-1]

    def beats():
        return sum(one == other for one, other in itertools.pairwise(heard))

    async def listen():
        for _ in range(600):
            await asyncio.sleep(0.05)
            if beats() >= 3:
                break

    monkeypatch.setattr(engine_process, "read_message", read_message)
    in_loop(listen())
    assert beats() >= 3
    assert process._silence <= engine_process.LEAST_BEATS


SLOW_READER = """
import sys, time
import armllm.progress as module
from armllm.checkpoint.weights import LoadingWeights
from armllm.server.engine_host import main
module.PIPE_SECONDS = 0.01
read = LoadingWeights.read
LoadingWeights.read = lambda weights, name: time.sleep(0.05) or read(weights, name)
main(int(sys.argv[1]))
"""


def test_what_the_engine_logs_is_seen_as_what_the_server_logs_is(folder, capfd):
    """It would catch a choice of the dtype that nobody hears of, since it is made in another process."""
    EngineProcess(str(folder), dtype="auto").shutdown()
    logged = capfd.readouterr().err
    assert re.search(r"^[-0-9]+ [:,0-9]+ INFO armllm\.engine\.config: dtype auto: ", logged, re.MULTILINE)


@pytest.mark.parametrize("visible", [True, False])
def test_whoever_waits_for_the_server_sees_which_layer_is_loaded(folder, monkeypatch, capfd, visible):
    monkeypatch.setattr(progress, "visible", visible)
    monkeypatch.setattr(engine_process, "COMMAND", [sys.executable, "-c", SLOW_READER])
    EngineProcess(str(folder), dtype="float32").shutdown()
    said = capfd.readouterr().err
    shown = re.search(r"^loading weights of \d+ layers, model\.layers\.1\.[a-z_.]+, 0 s$", said, re.MULTILINE)
    assert bool(shown) == visible, said
    assert bool(re.search(r"^loading /.*, \d+ s$", said, re.MULTILINE)) == visible, said
