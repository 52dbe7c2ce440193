"""An image's server is a stranger's: it may answer anything, in any time."""

import json
import time

import pytest
from tests.armbuild import servers
from tests.armbuild.servers import drips, sends

from armbuild.errors import CheckFailed
from armbuild.image import client

OK = b"HTTP/1.1 200 OK\r\n"
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def asking(monkeypatch):
    """Give a client of a server that answers so; its limits are small."""
    monkeypatch.setattr(client, "LIMIT", 1 << 20)
    monkeypatch.setattr(client, "HEALTH_SECONDS", 1.0)
    monkeypatch.setattr(client, "ANSWER_SECONDS", 1.0)
    with servers.serving() as start:
        yield lambda answer: client.Client(start(answer), "model")


def body(value):
    return OK + b"\r\n" + json.dumps(value).encode()


def streamed(*lines):
    return OK + b"\r\n" + b"".join(b"data: %s\n\n" % line for line in lines)


def test_what_is_right_is_read(asking):
    choices = {"choices": [{"text": "ab"}]}
    assert asking(sends(body(choices))).healthy()
    assert asking(sends(body(choices))).complete("x") == "ab"
    pieces = [json.dumps(choices).encode()] * 2
    assert asking(sends(streamed(*pieces, b"[DONE]"))).stream("x")[0] == "abab"


ODD = {
    "nothing": sends(b""),
    "no HTTP": sends(b"hello\r\n\r\n"),
    "too much": sends(OK + b"\r\n", *[b"data: " * 20_000] * 20),
    "a line without end": sends(OK + b"\r\n", *[bytes(1 << 16)] * 40),
    "no object": sends(streamed(b"[]"), b"[]"),
    "a number for a text": sends(streamed(b'{"choices": [{"text": 5}]}')),
    "a number in the answer": sends(body({"choices": [{"text": 5}]})),
    "nested": sends(OK + b"\r\ndata: " + b"[" * 100_000),
    "status": sends(b"HTTP/1.1 500 No\r\n\r\n"),
    "slow": drips(OK + b"\r\n"),
    "slow headers": drips(OK + b"X: "),
    "goes on and on": drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("ask", ["complete", "stream"])
def test_whatever_else_comes_is_a_failed_check_in_bounded_time(asking, kind, ask):
    start = time.monotonic()
    with pytest.raises(CheckFailed) as caught:
        getattr(asking(ODD[kind]), ask)("x")
    assert time.monotonic() - start < 8
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", ["nothing", "no HTTP", "status", "goes on and on"])
def test_a_server_that_does_not_say_yes_is_not_healthy(asking, kind):
    assert not asking(ODD[kind]).healthy()
