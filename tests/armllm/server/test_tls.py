"""HTTPS: wrong files are said before a model is loaded, and who never agrees on TLS is let go."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import tracemalloc
from types import SimpleNamespace

import httpx2
import pytest
from tests.armllm.server.conftest import DEADLINE, wait_until

from armllm.errors import RequestError
from armllm.server import connection, limits
from armllm.server.tls import tls_context

SHORT = 0.2  # seconds


def write_pair(folder, name, *options):
    """A certificate and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-days", "1", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += [*(options or ["-nodes"]), "-out", certificate, "-keyout", key]
    subprocess.run(command, check=True, capture_output=True)
    return str(certificate), str(key)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    names = {"one": (), "other": (), "encrypted": ("-passout", "pass:secret")}
    return {name: write_pair(folder, name, *options) for name, options in names.items()}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"key": ("one", 1)}, "TLS needs --ssl-certfile"),
        ({"cert": "/nowhere.pem"}, "--ssl-certfile /nowhere.pem: No such file"),
        ({"cert": "/"}, "--ssl-certfile /: Is a directory"),
        ({"cert": __file__}, "it has no certificate in PEM form"),
        ({"cert": ("one", 0)}, "it has no private key in PEM form"),
        ({"cert": ("one", 0), "key": "/nowhere.pem"}, "--ssl-keyfile /nowhere.pem: No such file"),
        ({"cert": ("one", 0), "key": ("one", 0)}, "it has no private key in PEM form"),
        ({"cert": ("one", 1), "key": ("one", 0)}, "it has no certificate in PEM form"),
        ({"cert": ("one", 0), "key": ("other", 1)}, "the key is not that of the certificate"),
        ({"cert": ("encrypted", 0), "key": ("encrypted", 1)}, "the key is encrypted"),
        ({"cert": ("one", 0), "key": ("one", 1), "ca_certs": __file__}, "--ssl-ca-certs"),
        ({"cert": ("one", 0), "key": ("one", 1), "cert_reqs": 2}, "--ssl-cert-reqs 2 needs --ssl-ca-certs"),
        ({"cert": ("one", 0), "key": ("one", 1), "ciphers": "NONE"}, "--ssl-ciphers 'NONE'"),
    ],
)
def test_wrong_files_are_said_in_a_line(pairs, files, message):
    names = {"cert": "ssl_certfile", "key": "ssl_keyfile"}
    options = {
        names.get(name, f"ssl_{name}"): pairs[value[0]][value[1]] if isinstance(value, tuple) else value
        for name, value in files.items()
    }
    with pytest.raises(RequestError) as caught:
        tls_context(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_key_is_said_before_the_model_is_loaded(start, pairs):
    process = start("/nowhere", "--ssl-certfile", pairs["one"][0], "--ssl-keyfile", pairs["other"][1])
    assert process.wait() == 2
    assert process.stderr.count("\n") == 1
    assert "--ssl-keyfile" in process.stderr


def test_a_connection_has_a_small_buffer(pairs):
    """Thousands may be open that send nothing."""
    certificate, key = pairs["one"]
    context = tls_context(ssl_certfile=certificate, ssl_keyfile=key)
    inner = SimpleNamespace(loop=asyncio.new_event_loop(), leave=lambda: None)
    tracemalloc.start()
    held = [connection.LimitedTLS(inner, context) for _ in range(20)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for one in held:
        one.connection_lost(None)
    inner.loop.close()
    assert taken < 32 * 1024 * len(held)


def test_it_serves_over_tls(start, folder, pairs):
    """It would catch certificates that are checked and then not used."""
    certificate, key = pairs["one"]
    process = start(folder, "--ssl-certfile", certificate, "--ssl-keyfile", key, "--root-path", "/llm")
    url = process.wait_ready()
    assert url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(certificate))
    for prefix in ("", "/llm"):
        answer = httpx2.get(f"{url}{prefix}/v1/models", verify=trusted, timeout=DEADLINE)
        assert answer.status_code == 200
    with pytest.raises(httpx2.HTTPError):
        httpx2.get(f"{url}/v1/models", timeout=DEADLINE)


@pytest.fixture(scope="module")
def secure(serving, pairs):
    with serving(
        {"max_num_seqs": 4}, tls=tls_context(ssl_certfile=pairs["one"][0], ssl_keyfile=pairs["one"][1])
    ) as one:
        yield one


def open_to(server):
    return contextlib.closing(socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE))


def ended(one):
    with contextlib.suppress(ConnectionError):
        return one.recv(1) == b""
    return True


def health(server, pairs):
    trusted = ssl.create_default_context(cafile=pairs["one"][0])
    return httpx2.get(f"{server.url}/health".replace("http:", "https:"), verify=trusted, timeout=DEADLINE)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_who_does_not_agree_on_tls_is_let_go(secure, pairs, monkeypatch, sent):
    monkeypatch.setattr(connection, "HEADER_SECONDS", SHORT)
    with open_to(secure) as one:
        one.sendall(sent)
        while not ended(one):
            pass
    wait_until(lambda: not secure.service.limits.open)
    assert not secure.service.limits.idle
    assert health(secure, pairs).status_code == 200


def test_half_a_header_over_tls_is_let_go(secure, pairs, monkeypatch):
    monkeypatch.setattr(connection, "HEADER_SECONDS", 2 * SHORT)
    context = ssl.create_default_context(cafile=pairs["one"][0])
    with open_to(secure) as one, context.wrap_socket(one, server_hostname="127.0.0.1") as wrapped:
        wrapped.sendall(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ssl.SSLError):
            assert ended(wrapped)
    wait_until(lambda: not secure.service.limits.open)


def test_connections_count_before_they_agree(secure, pairs, monkeypatch):
    """It would catch a server whose files are used up by connections that say nothing."""
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 3)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(open_to(secure)) for _ in range(8)]
        assert health(secure, pairs).status_code == 200
        assert all(ended(one) for one in silent[:5])
        assert len(secure.service.limits.open) <= 3
