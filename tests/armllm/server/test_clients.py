"""The engine is told who asks, so that each client gets its share."""

from __future__ import annotations

import pytest

BODIES = {
    "/v1/completions": {"prompt": ["A", "B"], "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "A"}], "max_tokens": 1, "stream": True},
    "/v1/responses": {"input": "A", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "A"},
    "/score": {"text_1": "A", "text_2": "B"},
}


def clients_of(server, monkeypatch, path, **headers):
    """Whose sequences a request has the scheduler run."""
    found = set()
    scheduler = server.engine.llm_engine.scheduler
    add = scheduler.add

    def record(sequence):
        found.add(sequence.caller)
        add(sequence)

    monkeypatch.setattr(scheduler, "add", record)
    answer = server.post(path, BODIES[path], headers=headers)
    assert answer.status_code == 200, answer.text
    monkeypatch.undo()
    assert len(found) == 1  # of all prompts
    return {caller.client for caller in found}


@pytest.mark.parametrize("path", BODIES)
def test_a_client_is_an_address_or_the_network_of_one(served, monkeypatch, path):
    """A proxy on this machine is believed; uvicorn sees to that."""
    for address, client in (("192.0.2.7", "192.0.2.7"), ("2001:db8::1:2", "2001:db8::/64")):
        assert clients_of(served, monkeypatch, path, **{"X-Forwarded-For": address}) == {client}
    assert clients_of(served, monkeypatch, path) == {"127.0.0.1"}


def test_one_key_for_all_tells_nobody_apart_but_several_do(serving, monkeypatch):
    """It would catch keys that reach the engine, too."""
    path = "/v1/completions"
    with serving({}, api_keys=("red",)) as server:
        assert clients_of(server, monkeypatch, path, Authorization="Bearer red") == {"127.0.0.1"}
    with serving({}, api_keys=("red", "blue")) as server:
        red, blue = (
            clients_of(server, monkeypatch, path, Authorization=f"Bearer {key}") for key in ("red", "blue")
        )
    assert len(red | blue) == 2
    assert not any("red" in client or "blue" in client or "127" in client for client in red | blue)
