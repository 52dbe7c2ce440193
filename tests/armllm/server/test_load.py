"""Hundreds of clients, a third of which hang up: every answer is right, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import random

import psutil
import pytest
from tests.armllm.server.conftest import DEADLINE

from armllm.smoke.passages import load_passages

PASSAGES = load_passages()
MALFORMED = (
    b"",
    b"{",
    b'{"prompt": "\xff"}',
    b'{"prompt": "x", "foo": 1}',
    b'{"prompt": "x", "temperature": -1}',
    b'{"prompt": [99999999]}',
    b'{"max_tokens": 1}',
)


def good_body(rng):
    """A request for a part of a passage, and the token ids that must come."""
    passage = rng.choice(PASSAGES)
    given = rng.randrange(len(passage.token_ids) - 1)
    rest = passage.token_ids[given:]
    wanted = rng.randrange(1, 40)
    body = {
        "prompt": [*passage.prompt_token_ids, *passage.token_ids[:given]],
        "max_tokens": wanted,
        "temperature": 0,
        "return_token_ids": True,
        "stream": rng.random() < 0.5,
    }
    return body, list(rest[:wanted])


class Client:
    """One connection, one request; what comes back is read until the server closes."""

    def __init__(self, port, rng):
        self.port = port
        self.rng = rng

    async def run(self):
        kind = self.rng.random()
        if kind < 1 / 3:
            await self.hang_up()
            return "gone"
        if kind < 0.45:
            status, _ = await self.ask(self.rng.choice(MALFORMED))
            assert status == 400
            return "refused"
        body, expected = good_body(self.rng)
        status, answer = await self.ask(json.dumps(body).encode())
        assert status == 200, answer
        assert token_ids(answer, stream=body["stream"]) == expected
        return "answered"

    async def ask(self, content):
        reader, writer = await self.send(content)
        try:
            answer = await asyncio.wait_for(reader.read(), DEADLINE)
        finally:
            writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        return status, dechunked(rest) if b"chunked" in head.lower() else rest

    async def hang_up(self):
        body, _ = good_body(self.rng)
        content = json.dumps(body | {"max_tokens": 300, "ignore_eos": True}).encode()
        moment = self.rng.choice(("in the request", "at once", "later", "in the answer"))
        cut = self.rng.randrange(len(content)) if moment == "in the request" else None
        reader, writer = await self.send(content, cut)
        if moment == "later":
            await asyncio.sleep(self.rng.random())
        elif moment == "in the answer":
            await asyncio.wait_for(reader.read(self.rng.randrange(1, 2000)), DEADLINE)
        writer.transport.abort()

    async def send(self, content, cut=None):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}"
        )
        writer.write(head.encode() + b"\r\n\r\n" + content[:cut])
        await writer.drain()
        return reader, writer


def dechunked(body):
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        found, body = found + body[:length], body[length + 2 :]
    return found


def token_ids(answer, *, stream):
    if not stream:
        return json.loads(answer)["choices"][0]["token_ids"]
    events = answer.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    pieces = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]
    assert [piece["finish_reason"] is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    return [token for piece in pieces for token in piece["token_ids"]]


async def get(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), DEADLINE)
    writer.close()
    return answer


async def storm(port, seed, count):
    """Run clients, asking for the server's health all the while; return how many ended how."""
    rng = random.Random(seed)  # noqa: S311 - test data
    answers, slowest = 0, 0.0
    done = asyncio.Event()

    async def watch():
        nonlocal answers, slowest
        clock = asyncio.get_running_loop().time
        while not done.is_set():
            started = clock()
            assert (await get(port, "/health")).startswith(b"HTTP/1.1 200")
            answers, slowest = answers + 1, max(slowest, clock() - started)
            await asyncio.sleep(0.05)

    watching = asyncio.ensure_future(watch())
    seeds = [rng.random() for _ in range(count)]
    clients = [Client(port, random.Random(one)).run() for one in seeds]  # noqa: S311 - test data
    ended = await asyncio.wait_for(asyncio.gather(*clients), 2 * DEADLINE)
    done.set()
    await watching
    assert answers > 3
    print(f"health: {answers} answers, the slowest after {slowest:.3f} s")
    return {kind: ended.count(kind) for kind in set(ended)}


async def settled(port):
    """The metrics of a server once it has nothing to do."""
    for _ in range(int(DEADLINE / 0.05)):
        text = (await get(port, "/metrics")).decode()
        values = dict(
            line.rsplit(" ", 1)
            for line in text.splitlines()
            if line.startswith(("vllm:num_requests", "vllm:kv"))
        )
        if all(float(value) == 0 for value in values.values()):
            assert len(values) == 3
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"requests or blocks are left: {values}")


@pytest.mark.slow
def test_200_clients_get_their_own_answers_and_leave_no_memory_behind(start, folder):
    server = start(folder, "--dtype", "float32", "--max-num-seqs", "64", "--disable-uvicorn-access-log")
    port = int(server.wait_ready().rsplit(":", 1)[1])
    process = psutil.Process(server.popen.pid)
    sizes = []
    for seed in range(4):
        ended = asyncio.run(storm(port, seed, 200))
        assert ended["gone"] > 40
        assert ended["answered"] > 80
        assert ended["refused"] > 10
        asyncio.run(settled(port))
        sizes.append(process.memory_info().rss >> 20)
    # the allocator's own slack comes with the first rounds
    assert sizes[-1] - sizes[1] < 16, sizes
    assert server.popen.poll() is None
    assert "Traceback" not in server.stderr


def test_a_cache_for_two_sequences_serves_fifty_clients(serving):
    longest = max(len(passage.prompt_token_ids) + len(passage.token_ids) for passage in PASSAGES)
    blocks = 2 * -(-longest // 16)
    with serving({"num_gpu_blocks_override": blocks, "max_model_len": longest}) as server:

        async def clients():
            await asyncio.gather(*(one(seed) for seed in range(50)))

        async def one(seed):
            body, expected = good_body(random.Random(seed))  # noqa: S311 - test data
            status, answer = await Client(server.port, None).ask(json.dumps(body).encode())
            assert status == 200
            assert token_ids(answer, stream=body["stream"]) == expected

        asyncio.run(clients())
        server.assert_idle()
