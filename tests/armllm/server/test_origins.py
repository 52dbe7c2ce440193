"""A web page can't use a server on its reader's machine, not even by a name that points there."""

from __future__ import annotations

import socket

import httpx2
import pytest

from armllm.server.origins import is_private

BODY = {"prompt": "Hello", "max_tokens": 1}


@pytest.fixture(scope="module")
def server(serving):
    with serving(allowed_hosts=("llm.example.org",), allowed_origins=("https://chat.example.org",)) as server:
        yield server


def ask(server, **headers):
    return httpx2.post(f"{server.url}/v1/completions", json=BODY, headers=headers, timeout=60)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "LLM.example.org:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "armllm:8000"}, 200),
        ({"Host": "armllm.models.svc.cluster.local"}, 200),
        ({"Host": "attacker.example"}, 403),
        ({"Host": "127.0.0.1.attacker.example"}, 403),
        ({"Host": "localhost.attacker.example:80"}, 403),
        ({"Host": "attacker.example", "Origin": "http://attacker.example"}, 403),
        ({"Host": "[nonsense.x"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
        ({"Host": "localhost:8000", "Origin": "http://localhost:3000"}, 403),
        ({"Origin": "https://chat.example.org"}, 200),
        ({"Origin": "https://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "", "Origin": "http://"}, 403),
    ],
)
def test_pages_of_other_sites_are_refused(server, headers, status):
    answer = ask(server, **headers)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert "--allowed-" in answer.json()["error"]["message"]


def test_every_path_is_guarded(server):
    for path in ("/", "/health", "/metrics", "/v1/models", "/openapi.json"):
        assert httpx2.get(server.url + path, headers={"Host": "attacker.example"}).status_code == 403
    preflight = httpx2.options(
        f"{server.url}/v1/completions",
        headers={"Origin": "https://attacker.example", "Access-Control-Request-Method": "POST"},
    )
    assert "access-control-allow-origin" not in preflight.headers


def test_a_key_makes_names_and_origins_irrelevant(serving):
    with serving(api_keys=("secret",)) as server:
        key = {"Authorization": "Bearer secret"}
        assert ask(server, Host="llm.example", Origin="https://x.example", **key).status_code == 200
        assert ask(server, Host="llm.example").status_code == 401


def test_names_that_anybody_can_register_are_not_private():
    assert all(map(is_private, ("localhost", "10.0.0.7", "::1", "box", "box.local", "a.b.internal", "x.svc")))
    assert not any(map(is_private, ("a.dev", "local.com", "127.0.0.1.nip.io", "xlocal.x", "svc.io", "1.2.3")))


@pytest.mark.parametrize("name", ["Host", "Origin"])
def test_of_two_names_none_is_taken(server, name):
    """One program looks at the first, another one at the last."""
    both = f"{name}: http://attacker.example\r\n{name}: localhost\r\n"
    version = "1.0" if name == "Host" else "1.1\r\nHost: localhost"  # which takes one Host only
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as one:
        one.sendall(f"GET /health HTTP/{version}\r\n{both}Connection: close\r\n\r\n".encode())
        answer = one.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"one header each" in answer
