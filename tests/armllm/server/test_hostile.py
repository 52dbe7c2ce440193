"""While strangers try to wear the server out, everybody else is served, and afterwards nothing is left."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import threading
import time

import httpx2
import psutil
import pytest
from tests.armllm.server.conftest import wait_until

pytestmark = pytest.mark.slow

NUM_HOSTILE = 20
HEADERS = {"Content-Type": "application/json"}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GOOD = {"prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}


def completion(**fields):
    return json.dumps({"prompt": "Hello", "max_tokens": 1, **fields}).encode()


BODIES = {
    "floats": b'{"prompt":[' + b"1.5," * 1_000_000 + b"1]}",
    "lists": b'{"prompt":[' + b"[]," * 1_300_000 + b"[]]}",
    "few lists": b'{"prompt":[' + b"[]," * 100_000 + b"[]]}",
    "bad words": completion(bad_words=[f"w{index}" for index in range(300_000)]),
    "biases": completion(logit_bias={str(index): 1 for index in range(200_000)}),
    "duplicates": completion(allowed_token_ids=[5] * 65_536, n=2, max_tokens=4),
    "stop": completion(stop=[f"{index:05d}" for index in range(1000)], n=2, max_tokens=4),
    "nonsense": b"[" * 2_000_000,
    "unknown": completion(**{f"f{index}": 1 for index in range(100_000)}),
    "text": completion(prompt="ab " * 300_000),
    "tail": completion(prompt="ab " * 1_000_000, truncate_prompt_tokens=5),
    "grammar": completion(guided_json={"type": "integer", "multipleOf": 9_999_991}),
}


def send_forever(server, content, stop):
    """One request after the other; what is answered does not matter."""
    with httpx2.Client(base_url=server.url, headers=HEADERS, timeout=300) as client:
        while not stop.is_set():
            with contextlib.suppress(httpx2.HTTPError):
                client.post("/v1/completions", content=content)


def connect_forever(server, sent, stop):
    """One connection after the other, on which data comes without end."""
    while not stop.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 5) as one:
            for _ in range(50):
                one.sendall(sent)


@contextlib.contextmanager
def hostile(server):
    """Twenty clients, each with an attack of its own or of those that come from the start again."""
    stop = threading.Event()
    attacks = [(send_forever, content) for content in BODIES.values()]
    attacks += [
        (connect_forever, b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000),
        (connect_forever, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3000),
        (connect_forever, POST + b"Content-Length: 4000000\r\n\r\n{"),
    ]
    threads = [
        threading.Thread(
            target=attacks[index % len(attacks)][0], args=(server, attacks[index % len(attacks)][1], stop)
        )
        for index in range(NUM_HOSTILE)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def generate(server):
    """Tokens per second of a stream, from its first event on."""
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=GOOD, timeout=300) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        next(lines)
        started = time.monotonic()
        count = sum(1 for _ in lines)
    return count / (time.monotonic() - started)


def health(server, stop, seconds):
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        while not stop.is_set():
            started = time.monotonic()
            assert client.get("/health").status_code == 200
            seconds.append(time.monotonic() - started)
            time.sleep(0.05)


def test_a_good_client_is_served_beside_twenty_hostile_ones(start, folder):
    process = start(folder, "--dtype", "float32", "--disable-uvicorn-access-log")
    url = process.wait_ready()

    class Server:
        port = int(url.rsplit(":", 1)[1])

    Server.url = url
    generate(Server)
    idle = generate(Server)
    seconds, stop = [], threading.Event()
    watcher = threading.Thread(target=health, args=(Server, stop, seconds))
    with hostile(Server):
        time.sleep(1)
        watcher.start()
        busy = generate(Server)
        memory = psutil.Process(process.popen.pid).memory_info().rss >> 20
        stop.set()
        watcher.join()
    print(
        f"idle {idle:.1f} tokens/s, beside hostile clients {busy:.1f}; slowest answer of /health"
        f" {max(seconds):.3f} s of {len(seconds)}; {memory} MiB"
    )
    assert memory < 2048
    assert process.popen.poll() is None
    assert generate(Server) > 0


def test_thousands_of_requests_leave_no_memory_behind(serving):
    with serving({"max_model_len": 64}) as server:
        rss = psutil.Process().memory_info
        sizes = []
        with httpx2.Client(base_url=server.url, headers=HEADERS, timeout=60) as client:
            for index in range(10_000):
                good = completion(prompt=f"Hello {index}", max_tokens=2, stop=[str(index)])
                bad = completion(prompt=f"Hello {index}", temperature=1e39, user=str(index))
                client.post("/v1/completions", content=good if index % 2 else bad)
                if index % 1000 == 999:
                    gc.collect()
                    sizes.append(rss().rss)
        wait_until(lambda: server.engine.stats().num_running == 0)
        server.assert_idle()
    # the first two thousand fill caches
    assert sizes[-1] - sizes[1] < 16 << 20, [size >> 20 for size in sizes]
