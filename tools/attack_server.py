#!/usr/bin/env python3
"""Measure what a well-behaved client gets of a server while hostile ones try to wear it out.

    python tools/attack_server.py MODEL

Starts `armllm serve MODEL` on this machine. The rate of a stream and the time of `/health` are measured
before, during and after the attack, with the CPUs that each part used. Every hostile client is a process,
and takes CPU time of this machine as the server does. `--nice 19` gives them the lowest priority, as if each
were a machine of its own. `--addresses` gives each its own address, 127.0.0.2 and on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANY = 100_000
DEADLINE = 120.0  # seconds for one answer


def completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": "Hello", "max_tokens": 1, **fields}).encode()


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
PATH_OF = {"chat": "/v1/chat/completions", "tokenize": "/tokenize", "detokenize": "/detokenize"}
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
STREAMS = {
    "long header": b"GET / HTTP/1.1\r\nX: " + b"a" * MANY,
    "pipelined": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3000,
    "half bodies": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 4000000\r\n\r\n{",
}


def connect(port: int, address: str = "127.0.0.1") -> socket.socket:
    """A connection from one of this machine's own addresses."""
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE, source_address=(address, 0))


def post(port: int, path: str, body: bytes, address: str = "127.0.0.1") -> socket.socket:
    """A connection on which the request was sent."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close"]
    one = connect(port, address)
    with contextlib.suppress(OSError):  # it may be refused before it is read
        one.sendall("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    return one


@dataclasses.dataclass(frozen=True)
class Hostile:
    """What all hostile clients share: when to stop, how nice they are, and how much they have sent."""

    stop: Any
    nice: int
    sent: Any  # connections


def attack(port: int, kind: str, address: str, hostile: Hostile) -> None:
    """One request after the other, or connections on which data comes without end."""
    os.nice(hostile.nice)
    body = BODIES[kind]() if kind in BODIES else b""
    path = PATH_OF.get(kind.split(" ", maxsplit=1)[0], "/v1/completions")
    while not hostile.stop.is_set():
        with hostile.sent.get_lock():
            hostile.sent.value += 1
        with contextlib.suppress(OSError):
            if kind in STREAMS:
                with connect(port, address) as one:
                    for _ in range(50):
                        one.sendall(STREAMS[kind])
            else:
                with post(port, path, body, address) as one:
                    while one.recv(1 << 16):
                        pass


@contextlib.contextmanager
def under_attack(
    port: int, kinds: list[str], clients: int, nice: int, *, addresses: bool = False
) -> Iterator[tuple[list[int], Hostile]]:
    """While the body runs, ``clients`` processes attack, each in one of the ways."""
    context = multiprocessing.get_context("fork")
    hostile = Hostile(context.Event(), nice, context.Value("l", 0))
    processes = [
        context.Process(
            target=attack,
            args=(port, kind, f"127.0.0.{2 + index % 250 if addresses else 1}", hostile),
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


def stream(port: int, tokens: int) -> float:
    """Tokens per second of a streamed answer, from its first event on."""
    fields = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    with post(port, "/v1/completions", completion(**fields)) as one, one.makefile("rb") as lines:
        events = (line for line in lines if line.startswith(b"data: {"))
        next(events)
        started = time.monotonic()
        count = sum(b'"text":' in line for line in events)
    return count / (time.monotonic() - started)


def watch_health(port: int, stop: threading.Event, seconds: list[float]) -> None:
    while not stop.is_set():
        started = time.monotonic()
        with connect(port) as one:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if not one.makefile("rb").readline().startswith(b"HTTP/1.1 200"):
                raise SystemExit("/health does not answer 200")
        seconds.append(time.monotonic() - started)
        time.sleep(0.05)


def cpu_seconds(pids: list[int], fields: int = 2) -> float:
    """What processes have used until now; of four ``fields``, their children that ended have too."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(psutil.Process(pid).cpu_times()[:fields])
    return total


def cpu_of_parts(server: int, clients: list[int]) -> dict[str, float]:
    """What each part has used until now."""
    engine, *helpers = sorted(children(server))
    parts = {"engine": cpu_seconds([engine]), "server": cpu_seconds([server])}
    whole = cpu_seconds([server, engine, *helpers], 4)
    return {**parts, "helpers": whole - sum(parts.values()), "hostile": cpu_seconds(clients)}


def children(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@dataclasses.dataclass(frozen=True)
class Figures:
    """Tokens per second, the seconds that /health took, the CPUs that each part used, hostile requests."""

    rate: float
    health: list[float]
    cpus: dict[str, float]
    requests: float  # per second


def measure(
    port: int, tokens: int, server: int, clients: list[int] | None = None, hostile: Hostile | None = None
) -> Figures:
    """What a well-behaved client gets now."""
    sent = hostile.sent.value if hostile else 0
    before, began = cpu_of_parts(server, clients or []), time.monotonic()
    seconds: list[float] = []
    stop = threading.Event()
    watcher = threading.Thread(target=watch_health, args=(port, stop, seconds))
    watcher.start()
    try:
        rate = stream(port, tokens)
    finally:
        stop.set()
        watcher.join()
    elapsed = time.monotonic() - began
    after = cpu_of_parts(server, clients or [])
    cpus = {name: (after[name] - before[name]) / elapsed for name in after}
    return Figures(rate, seconds, cpus, ((hostile.sent.value - sent) / elapsed) if hostile else 0.0)


@contextlib.contextmanager
def serving(model: str) -> Iterator[tuple[int, int]]:
    """The port and the process of a server on a model."""
    command = [sys.executable, "-m", "armllm", "serve", model, "--port", "0", "--disable-uvicorn-access-log"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None  # noqa: S101 - a pipe
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"on http://\S+:(\d+)$", line):
            break
    else:
        raise SystemExit("".join(lines))
    rest = threading.Thread(target=process.stderr.read)
    rest.start()
    try:
        yield int(found.group(1)), process.pid
        if process.poll() is not None:
            raise SystemExit(f"the server has ended with status {process.returncode}")
    finally:
        process.kill()
        process.wait()
        rest.join()


def show(name: str, figures: Figures) -> None:
    times = sorted(figures.health)
    median, slowest = statistics.median(times), times[-1]
    print(
        f"{name:10} {figures.rate:7.1f} tokens/s   /health: median {median:.3f} s, slowest {slowest:.3f} s\n"
        f"{'':10} CPUs: {', '.join(f'{part} {used:.2f}' for part, used in figures.cpus.items())};"
        f" {figures.requests:.0f} hostile requests/s;"
        f" engine {1000 * figures.cpus['engine'] / figures.rate:.1f} ms of CPU per token",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, help="default: one of each kind")
    parser.add_argument("--tokens", type=int, default=300, help="of the answers that are measured")
    parser.add_argument(
        "--nice", type=int, default=0, help="how much lower the priority of hostile clients is"
    )
    parser.add_argument("--addresses", action="store_true", help="each hostile client has its own")
    parser.add_argument("--attack", choices=[*BODIES, *STREAMS], action="append", help="only these")
    arguments = parser.parse_args()
    kinds = arguments.attack or [*BODIES, *STREAMS]
    with serving(arguments.model) as (port, server):
        stream(port, 20)
        idle = measure(port, arguments.tokens, server)
        show("idle", idle)
        clients = arguments.clients or len(kinds)
        attack = under_attack(port, kinds, clients, arguments.nice, addresses=arguments.addresses)
        with attack as (processes, hostile):
            time.sleep(2)
            busy = measure(port, arguments.tokens, server, processes, hostile)
        show("attacked", busy)
        show("after", measure(port, arguments.tokens, server))
    print(f"attacked / idle: {busy.rate / idle.rate:.2f}")


if __name__ == "__main__":
    main()
