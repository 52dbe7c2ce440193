"""What hostile clients send to a server, and the processes that send it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import random
import socket
from typing import TYPE_CHECKING, Any

from armllm.helper_process import give_session_the_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANY = 100_000
DEADLINE = 120.0  # seconds for one answer
IP_BIND_ADDRESS_NO_PORT = 24
LONG_PROMPT = 1900  # tokens


def request(path: str, body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": "Hello", "max_tokens": 1, **fields}).encode()


def token_ids(count: int = LONG_PROMPT) -> list[int]:
    """A prompt that nobody has sent before."""
    return [random.randrange(100, 5000) for _ in range(count)]  # noqa: S311 - not a secret


def chat(*messages: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"messages": messages, "max_tokens": 1, **fields}).encode()


def nested(depth: int) -> Any:
    """A schema in a schema in a schema."""
    schema: dict[str, Any] = {"type": "string"}
    for level in range(depth):
        schema = {"type": "object", "properties": {f"p{level}": schema, "q": {"enum": [level, "x" * 20]}}}
    return schema


USER = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": nested(20)}}
PATH_OF = {
    "chat": "/v1/chat/completions",
    "tokenize": "/tokenize",
    "detokenize": "/detokenize",
    "embeddings": "/v1/embeddings",
    "score": "/score",
}
BODIES: dict[str, Callable[[], bytes]] = {
    "floats": lambda: b'{"prompt":[' + b"1.5," * 1_000_000 + b"1]}",
    "few floats": lambda: b'{"prompt":[' + b"1.5," * MANY + b"1]}",
    "lists": lambda: b'{"prompt":[' + b"[]," * 1_300_000 + b"[]]}",
    "few lists": lambda: b'{"prompt":[' + b"[]," * MANY + b"[]]}",
    "bad words": lambda: completion(bad_words=[f"w{index}" for index in range(50_000)]),
    "biases": lambda: completion(logit_bias={str(index): 1 for index in range(MANY)}),
    "duplicates": lambda: completion(allowed_token_ids=[5] * 65_536, n=2, max_tokens=4),
    "stop": lambda: completion(stop=[f"{index:05d}" for index in range(1000)], n=2, max_tokens=4),
    "brackets": lambda: b"[" * 2_000_000,
    "unknown": lambda: completion(**{f"f{index}": 1 for index in range(MANY)}),
    "text": lambda: completion(prompt="ab " * 300_000),
    "tail": lambda: completion(prompt="ab " * 1_000_000, truncate_prompt_tokens=5),
    "small tails": lambda: completion(prompt="ab " * 20_000, truncate_prompt_tokens=5),
    "slow grammar": lambda: completion(guided_json={"type": "integer", "multipleOf": 9_999_991}),
    "large grammar": lambda: completion(guided_regex="(a|b)?" * 5000),
    "chat messages": lambda: chat(*[USER] * 20_000),
    "chat tools": lambda: chat(USER, tools=[TOOL] * 400, tool_choice="none"),
    "chat parts": lambda: chat({"role": "user", "content": [{"type": "text", "text": "ab"}] * 20_000}),
    "tokenize": lambda: json.dumps({"prompt": "x\u00e9 " * 20_000, "return_token_strs": True}).encode(),
    "detokenize": lambda: json.dumps({"tokens": [5] * 200_000}).encode(),
}
# Another one for each request, so that nothing is cached. The engine computes them: they are valid.
VALID: dict[str, Callable[[], bytes]] = {
    "long prompts": lambda: completion(prompt=token_ids()),
    "short prompts": lambda: completion(prompt=token_ids(8)),
    "choices": lambda: completion(n=128, max_tokens=64, ignore_eos=True),
    "answers": lambda: completion(max_tokens=1000, ignore_eos=True),
    "grammars": lambda: completion(guided_regex=f"({'|'.join(map(str, token_ids(200)))})+", max_tokens=8),
    "log-probabilities": lambda: completion(prompt=token_ids(), echo=True, logprobs=20),
    "embeddings": lambda: json.dumps({"input": [token_ids(200) for _ in range(16)]}).encode(),
    "score": lambda: json.dumps(
        {"text_1": "ab " * 200, "text_2": [f"{n} " * 200 for n in token_ids(8)]}
    ).encode(),
}
# What is sent on one connection, and how many bytes of the answer are read before the client goes.
LEAVING = {
    "nothing": (b"", 0),
    "new connections": (b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 1),
    "metrics": (b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 1),
    "half header": (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n", 0),
    "not JSON": (request("/v1/completions", b'{"prompt": "Hello"'), 1),
    "streams": (request("/v1/completions", completion(stream=True, max_tokens=1000)), 1),
    "left answers": (request("/v1/completions", completion(max_tokens=1000)), 0),
}
STREAMS = {
    "long header": b"GET / HTTP/1.1\r\nX: " + b"a" * MANY,
    "pipelined": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3000,
    "half bodies": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 4000000\r\n\r\n{",
}
COMPUTING = "computing"
KINDS = [*BODIES, *STREAMS, *LEAVING, *VALID, "slow readers", COMPUTING]


def connect(port: int, address: str = "127.0.0.1") -> socket.socket:
    """A connection from one of this machine's own addresses."""
    one = socket.socket()
    one.settimeout(DEADLINE)
    one.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)  # else the kernel looks for one for long
    one.bind((address, 0))
    try:
        one.connect(("127.0.0.1", port))
    except OSError:
        one.close()
        raise
    return one


def post(port: int, path: str, body: bytes, address: str = "127.0.0.1") -> socket.socket:
    """A connection on which the request was sent."""
    one = connect(port, address)
    with contextlib.suppress(OSError):  # it may be refused before it is read
        one.sendall(request(path, body))
    return one


@dataclasses.dataclass(frozen=True)
class Hostile:
    """What all hostile clients share: when to stop, how nice they are, and how much they have sent."""

    stop: Any
    nice: int
    sent: Any  # connections


def attack(port: int, kind: str, address: str, hostile: Hostile) -> None:
    """One request after the other, or connections on which data comes without end."""
    if hostile.nice:
        os.setsid()  # else the nice value counts only beside others of this session
        os.nice(hostile.nice)
        give_session_the_priority()
    make = VALID.get(kind) or functools.cache(BODIES.get(kind, bytes))
    path = PATH_OF.get(kind.split(" ", maxsplit=1)[0], "/v1/completions")
    while not hostile.stop.is_set():
        with hostile.sent.get_lock():
            hostile.sent.value += 1
        with contextlib.suppress(OSError):
            if kind in STREAMS:
                with connect(port, address) as one:
                    for _ in range(50):
                        one.sendall(STREAMS[kind])
            elif kind in LEAVING:
                sent, read = LEAVING[kind]
                with connect(port, address) as one:
                    one.sendall(sent)
                    one.recv(read)
            elif kind == "slow readers":
                with post(port, path, completion(stream=True, max_tokens=1000, n=8), address):
                    hostile.stop.wait(5)
            elif kind == COMPUTING:
                sum(range(1_000_000))
            else:
                with post(port, path, make(), address) as one:
                    while one.recv(1 << 16):
                        pass


@contextlib.contextmanager
def under_attack(
    port: int, kinds: list[str], clients: int, nice: int, *, addresses: int = 0
) -> Iterator[tuple[list[int], Hostile]]:
    """While the body runs, ``clients`` processes attack, each in one of the ways."""
    context = multiprocessing.get_context("fork")
    hostile = Hostile(context.Event(), nice, context.Value("l", 0))
    processes = [
        context.Process(
            target=attack,
            args=(port, kind, f"127.0.0.{2 + index % addresses if addresses else 1}", hostile),
            daemon=True,
        )
        for index, kind in enumerate(itertools.islice(itertools.cycle(kinds), clients))
    ]
    for process in processes:
        process.start()
    try:
        yield [process.pid for process in processes if process.pid is not None], hostile
    finally:
        hostile.stop.set()
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
