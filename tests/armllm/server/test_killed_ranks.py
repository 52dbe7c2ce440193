"""One of several processes is killed or stopped, at any moment: an error names it, and nothing is left."""

from __future__ import annotations

import contextlib
import signal
import socket
import uuid
from pathlib import Path

import httpx2
import psutil
import pytest
from tests.armllm.server.conftest import DEADLINE, wait_until
from tests.armllm.server.test_process import reading

AIMED = Path(__file__).with_name("aimed.py")
LOADING, PROMPT, DECODING, LOGITS = "loading", "computing-a-prompt", "decoding", "making-logits"
HOUR = "3600"  # seconds without an answer: only its end can tell that a process has ended

pytestmark = pytest.mark.slow


def left(mark):
    """The processes with a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is another user's
            if process.environ().get("MARK") == mark:
                found.append(process)
    return found


@pytest.fixture
def aimed(start, folder):
    """aimed(by, moment, victim, name of a signal, seconds): a server with two ranks."""

    def begin(by, moment, victim, name, seconds):
        return start(
            folder,
            "--dtype=float32",
            f"--{by}-parallel-size=2",
            code=AIMED,
            AIM=f"{moment} {victim} {name}",
            MARK=uuid.uuid4().hex,
            VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=seconds,
        )

    return begin


def assert_it_has_ended(server, words, moment):
    assert server.wait() == 70
    assert words in server.lines[-1]
    assert "Traceback" not in server.stderr
    assert f"is {moment}" in server.stderr, "the signal was sent at another moment"
    wait_until(lambda: not left(server.environment["MARK"]))


@pytest.mark.parametrize(
    ("by", "victim", "moment"),
    [
        *(
            ("tensor", victim, moment)
            for victim in ("rank0", "rank1")
            for moment in (PROMPT, DECODING, LOGITS)
        ),
        *(("pipeline", "rank1", moment) for moment in (PROMPT, DECODING)),
    ],
)
def test_a_rank_that_is_killed_in_a_step_is_named(aimed, by, victim, moment):
    server, results = aimed(by, moment, victim, "SIGKILL", HOUR), {}
    url = server.wait_ready()
    thread = reading(url, results)
    statuses = set()
    with httpx2.Client(timeout=DEADLINE) as client:
        wait_until(lambda: statuses.add(client.get(f"{url}/health").status_code) or statuses - {200})
    assert statuses <= {200, 503}
    words = f"rank {victim[-1]} was ended by signal 9 (Killed)"
    thread.join(DEADLINE)
    assert words.encode() in results["bytes"]
    server.popen.send_signal(signal.SIGTERM)  # it would say that it has failed for another minute
    assert_it_has_ended(server, words, moment)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])))


@pytest.mark.parametrize("victim", ["rank0", "rank1"])
def test_a_rank_that_is_killed_while_loading_is_named(aimed, victim):
    server = aimed("tensor", LOADING, victim, "SIGKILL", HOUR)
    assert_it_has_ended(server, f"rank {victim[-1]} was ended by signal 9 (Killed)", LOADING)


@pytest.mark.parametrize(
    ("by", "victim", "moment"),
    [("tensor", "rank0", DECODING), ("tensor", "rank1", LOGITS), ("pipeline", "rank1", PROMPT)],
)
def test_a_rank_that_is_stopped_is_ended_after_some_seconds(aimed, by, victim, moment):
    server, results = aimed(by, moment, victim, "SIGSTOP", "5"), {}
    thread = reading(server.wait_ready(), results)
    words = f"rank {victim[-1]} did not answer within 5 seconds"
    assert_it_has_ended(server, words, moment)
    thread.join(DEADLINE)
    assert words.encode() in results["bytes"]


def test_a_rank_that_is_stopped_while_loading_is_ended(aimed):
    server = aimed("tensor", LOADING, "rank1", "SIGSTOP", "5")
    assert_it_has_ended(server, "rank 1 did not load the model in time", LOADING)


@pytest.mark.parametrize("moment", [LOADING, DECODING])
def test_nothing_outlives_a_server_that_is_killed(aimed, moment):
    server, results = aimed("tensor", moment, "serve", "SIGKILL", HOUR), {}
    if moment == DECODING:
        reading(server.wait_ready(), results).join(DEADLINE)
        assert results["end"] != "done"
    assert server.wait() == -signal.SIGKILL
    wait_until(lambda: not left(server.environment["MARK"]))
