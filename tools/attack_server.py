#!/usr/bin/env python3
"""Measure what a well-behaved client gets of a server while hostile ones try to wear it out.

    python tools/attack_server.py MODEL

Starts `armllm serve MODEL` on this machine. The rate of a stream and the time of `/health` are measured
before, during and after the attack, with the CPUs that each part used. Every hostile client is a process,
and takes CPU time of this machine as the server does. `--nice 19` gives them the lowest priority, as if each
were a machine of its own. `--addresses N` gives them N addresses, 127.0.0.2 and on: with 1 they are another
client for the server, with 20 each of 20 is one. `--each` lets all clients attack in one way, then in the
next one, and prints a table. An idle rate is measured before each. `--data-parallel-size N` measures a router
in front of N replicas. `--attack computing` sends nothing: it shows what is left beside as many programs that
only compute.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANY = 100_000
DEADLINE = 120.0  # seconds for one answer
STREAM_SECONDS = 20.0
IP_BIND_ADDRESS_NO_PORT = 24
LONG_PROMPT = 1900  # tokens
PARDON_SECONDS = 8.0  # then the server no longer lets an address wait that was refused


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
CLIENTS = 20


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
    os.nice(hostile.nice)
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


def stream(port: int, tokens: int) -> float:
    """Tokens per second of a streamed answer, the wait for the first included, for a while at most.

    An event may have several tokens.
    """
    fields = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    counted = {"include_usage": True, "continuous_usage_stats": True}
    started = time.monotonic()
    with (
        post(port, "/v1/completions", completion(**fields, stream_options=counted)) as one,
        one.makefile("rb") as lines,
    ):
        count = 0
        for line in lines:
            if found := re.search(rb'"completion_tokens":(\d+)', line):
                count = int(found[1])
            if time.monotonic() - started > STREAM_SECONDS:
                break
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


@dataclasses.dataclass(frozen=True)
class Served:
    """A server: its port, its process, and how many replicas are behind it; 0: it has the engine itself."""

    port: int
    pid: int
    replicas: int

    def parts(self) -> dict[str, list[int]]:
        """The processes of each part."""
        below = psutil.Process(self.pid)
        servers = sorted(one.pid for one in below.children()) if self.replicas else [self.pid]
        engines = [min(found) for one in servers if (found := children(one))]
        known = {self.pid, *servers, *engines}
        helpers = sorted(one.pid for one in below.children(recursive=True) if one.pid not in known)
        router = {"router": [self.pid]} if self.replicas else {}
        return {"engine": engines, "server": servers, **router, "helpers": helpers}

    def cpu_seconds(self, clients: list[int]) -> dict[str, float]:
        """What each part has used until now; helpers that have ended are counted."""
        parts = self.parts()
        used = {name: cpu_seconds(pids) for name, pids in parts.items() if name != "helpers"}
        whole = cpu_seconds([pid for pids in parts.values() for pid in pids], 4)
        return {**used, "helpers": whole - sum(used.values()), "hostile": cpu_seconds(clients)}

    def memory(self) -> int:
        """Bytes of the process that clients talk to."""
        rss: int = psutil.Process(self.pid).memory_info().rss
        return rss


def children(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@dataclasses.dataclass(frozen=True)
class Figures:
    """Tokens per second, the seconds that /health took, and what each part used."""

    rate: float
    health: list[float]
    cpus: dict[str, float]
    requests: float  # hostile ones per second
    memory: int  # bytes of the process that clients talk to


def measure(
    served: Served, tokens: int, clients: list[int] | None = None, hostile: Hostile | None = None
) -> Figures:
    """What a well-behaved client gets now."""
    sent = hostile.sent.value if hostile else 0
    before, began = served.cpu_seconds(clients or []), time.monotonic()
    seconds: list[float] = []
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(watch_health, served.port, stop, seconds)
        try:
            rate = stream(served.port, tokens)
        finally:
            stop.set()
        watcher.result()  # raises what it ended with
    elapsed = time.monotonic() - began
    after = served.cpu_seconds(clients or [])
    cpus = {name: (after[name] - before[name]) / elapsed for name in after}
    requests = ((hostile.sent.value - sent) / elapsed) if hostile else 0.0
    return Figures(rate, seconds, cpus, requests, served.memory())


@contextlib.contextmanager
def serving(model: str, replicas: int = 0) -> Iterator[Served]:
    """A server on a model, or a router in front of ``replicas``."""
    command = [sys.executable, "-m", "armllm", "serve", model, "--port", "0", "--disable-uvicorn-access-log"]
    command += ["--data-parallel-size", str(replicas)] if replicas else []
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
        yield Served(int(found.group(1)), process.pid, replicas)
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
        f" engine {1000 * figures.cpus['engine'] / figures.rate:.1f} ms of CPU per token;"
        f" {figures.memory >> 20} MiB",
        flush=True,
    )


def in_turn(served: Served, kinds: list[str], arguments: argparse.Namespace) -> None:
    """One kind after the other, and the idle rate before each."""
    parts = ", ".join([*served.parts(), "clients"])
    print(f"| kind | of the idle rate | slowest /health | CPUs of {parts} | requests/s | MiB |")
    for kind in kinds:
        idle = measure(served, arguments.tokens)
        attack = under_attack(
            served.port, [kind], arguments.clients or CLIENTS, arguments.nice, addresses=arguments.addresses
        )
        with attack as (processes, hostile):
            time.sleep(2)
            busy = measure(served, arguments.tokens, processes, hostile)
        cpus = ", ".join(f"{used:.2f}" for used in busy.cpus.values())
        print(
            f"| {kind} | {busy.rate / idle.rate:.0%} | {max(busy.health):.2f} s"
            f" | {cpus} | {busy.requests:.0f} | {busy.memory >> 20} |",
            flush=True,
        )
        time.sleep(PARDON_SECONDS)


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
    parser.add_argument("--addresses", type=int, default=0, help="of hostile clients, at most 250")
    parser.add_argument("--attack", choices=KINDS, action="append", help="only these")
    parser.add_argument("--each", action="store_true", help="one kind after the other, by 20 clients")
    parser.add_argument("--data-parallel-size", type=int, default=0, help="replicas behind a router")
    arguments = parser.parse_args()
    kinds = arguments.attack or (KINDS if arguments.each else [*BODIES, *STREAMS])
    with serving(arguments.model, arguments.data_parallel_size) as served:
        stream(served.port, 20)
        if arguments.each:
            in_turn(served, kinds, arguments)
            return
        idle = measure(served, arguments.tokens)
        show("idle", idle)
        clients = arguments.clients or len(kinds)
        attack = under_attack(served.port, kinds, clients, arguments.nice, addresses=arguments.addresses)
        with attack as (processes, hostile):
            time.sleep(2)
            busy = measure(served, arguments.tokens, processes, hostile)
        show("attacked", busy)
        show("after", measure(served, arguments.tokens))
    print(f"attacked / idle: {busy.rate / idle.rate:.2f}")


if __name__ == "__main__":
    main()
