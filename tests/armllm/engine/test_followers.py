"""A rank that fails or ends is named, and takes the others with it."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.armllm.engine.test_ranks import SECONDS, ThreadFollowers, in_threads, loaded  # noqa: F401

from armllm import LLM, AsyncLLM, SamplingParams
from armllm.api import llm_engine
from armllm.engine import followers, ranks
from armllm.engine.messages import Link
from armllm.errors import EngineError

MODEL = Path(llm_engine.__file__).parents[1] / "smoke/model"


@pytest.mark.usefixtures("in_threads")
def test_a_step_that_fails_at_rank_0_stops_all(make_checkpoint, monkeypatch):
    with loaded(make_checkpoint().folder, 2, dtype="float32") as llm:
        params = SamplingParams(max_tokens=2)
        layer = llm.llm_engine.runner.model.layers[1]

        def fail(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(layer, "mlp", fail)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[5]], params, use_tqdm=False)
        started = time.monotonic()
        with pytest.raises(EngineError):
            llm.generate([[5]], params, use_tqdm=False)
        assert time.monotonic() - started < SECONDS / 2


class EndingFollowers(ThreadFollowers):
    """One ends when all have loaded."""

    def wait(self):
        super().wait()
        self.group.fail(2)


@pytest.mark.usefixtures("in_threads")
def test_a_rank_that_ends_before_anyone_listens_is_noticed(make_checkpoint, monkeypatch):
    """An idle engine would say that it is well."""
    monkeypatch.setattr(followers, "Followers", EndingFollowers)

    async def start():
        engine = AsyncLLM(make_checkpoint().folder, dtype="float32", tensor_parallel_size=2)
        started = time.monotonic()
        while not engine.errored:
            assert time.monotonic() - started < SECONDS, "it waits for a request"
            await asyncio.sleep(0.01)
        engine.shutdown()
        engine.llm_engine.followers.close()

    asyncio.run(start())


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


BOTH = pytest.mark.parametrize("by", ["tensor", "pipeline"])


@BOTH
@pytest.mark.slow
def test_a_killed_rank_is_named_while_idle_and_in_a_step(monkeypatch, by):
    options = {f"{by}_parallel_size": 2}
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    params = SamplingParams(max_tokens=400, ignore_eos=True)

    async def idle():
        engine = AsyncLLM(str(MODEL), **options)
        (process,) = engine.llm_engine.followers._shared.processes
        async for output in engine.generate([5, 6], SamplingParams(max_tokens=3), "a"):
            assert output.outputs
        process.send_signal(signal.SIGKILL)
        started = time.monotonic()
        while not engine.errored:
            assert time.monotonic() - started < SECONDS
            await asyncio.sleep(0.02)
        assert "rank 1 was ended by signal 9 (Killed)" in str(engine.dead_error)
        engine.shutdown()

    asyncio.run(idle())
    llm = LLM(str(MODEL), **options)
    (process,) = llm.llm_engine.followers._shared.processes
    threading.Timer(0.3, process.kill).start()
    with pytest.raises(EngineError, match=r"rank 1 was ended by signal 9 \(Killed\)"):
        llm.generate([[5, 6]] * 2000, params, use_tqdm=False)
    with pytest.raises(EngineError, match="rank 1 was ended by signal 9"):
        llm.generate([[5, 6]], params, use_tqdm=False)


@BOTH
@pytest.mark.slow
def test_a_stopped_rank_is_too_late_and_ended(monkeypatch, by):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    monkeypatch.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "1.5")
    llm = LLM(str(MODEL), **{f"{by}_parallel_size": 2})
    (process,) = llm.llm_engine.followers._shared.processes
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(EngineError, match=r"rank 1 did not answer within 1\.5 seconds"):
        llm.generate([[5, 6]], SamplingParams(max_tokens=4), use_tqdm=False)
    assert gone([process.pid])


@BOTH
@pytest.mark.slow
def test_followers_end_with_rank_0(by):
    code = f"""
from armllm import LLM
llm = LLM({str(MODEL)!r}, {by}_parallel_size=2)
print(*llm.llm_engine.followers.pids, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 1
        assert all(map(alive, pids))
        parent.kill()
    assert gone(pids)


@pytest.mark.slow
def test_servers_whose_processes_are_killed_at_random_moments_leave_nothing():
    """The soak itself is longer: its tool has the checks."""
    root = Path(__file__).parents[3]
    command = [
        sys.executable,
        str(root / "tools" / "soak_ranks.py"),
        str(MODEL),
        "--kills",
        "4",
        "--seed",
        "3",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kills, 0 failures, left in /dev/shm: nothing" in done.stdout


def test_a_limit_on_files_is_named_where_ranks_share_memory():
    """It would catch a traceback of OSError."""
    code = f"""
import resource
from armllm import LLM
from armllm.errors import EngineError
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    LLM({str(MODEL)!r}, tensor_parallel_size=2)
except EngineError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(
        r"the ranks get no \d+ MiB of shared memory: File too large; .*, or use one process\n", done.stdout
    )


def test_a_forked_process_that_exits_leaves_the_ranks_to_its_parent(monkeypatch):
    """It would shut down the connection, which is one for both."""
    near, far = socket.socketpair()
    shared = followers.Shared(SimpleNamespace(), links=[Link(near)])
    parent = os.getpid()
    with far:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        shared.close()
        far.send(b"x")
        monkeypatch.setattr(os, "getpid", lambda: parent)
        shared.close()
        with pytest.raises(BrokenPipeError):
            far.send(b"x")


def test_a_message_that_cannot_be_read_ends_the_process_of_a_rank(monkeypatch, capsys):
    """Else the rank would wait for the next one, which nobody reads, after rank 0 has gone."""
    near, far = socket.socketpair()
    ended = []
    with near, far:
        link = Link(far)
        monkeypatch.setattr(link, "receive", lambda: {}["kind"])
        ranks.receive(link, queue.SimpleQueue(), lambda: ended.append(1))
    assert ended
    assert "KeyError: 'kind'" in capsys.readouterr().err
