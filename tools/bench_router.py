#!/usr/bin/env python3
"""Measure the router's choice of a server: two servers behind `armllm route`, by each policy.

    python tools/bench_models.py build/bench --size 90m
    python tools/bench_router.py build/bench/90m

Each server has one thread. The loads:

- conversations: 12 of 5 turns, whose turns come in a random order, 4 at a time. A turn repeats all before it.
- hot prefix: 64 prompts with a common beginning of 1200 characters, 4 at a time.
- one client: a conversation of 8 turns, one after the other.

Prints seconds, the prompt tokens that were computed and not found in a prefix cache, and how many requests
each server had. Of several `--rounds` these are medians with the range, and the requests of each round.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TOKENS = 16  # of an answer
READY = 180.0
COMPUTED = ("vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total")


def ask(url: str, prompt: str) -> str:
    """The text of an answer."""
    body = {"model": "model", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - our own server
        return str(json.load(answer)["choices"][0]["text"])


class Conversation:
    """Each turn sends all texts so far."""

    def __init__(self, seed: int, characters: int = 600) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.text = self.random_text(characters)
        self.lock = threading.Lock()  # one turn at a time

    def random_text(self, characters: int) -> str:
        """Random words."""
        return " ".join(self.random.randbytes(3).hex() for _ in range(characters // 7))

    def turn(self, url: str) -> None:
        """Ask, and go on with the answer."""
        with self.lock:
            self.text += ask(url, self.text)[:40] + self.random_text(100)


def conversations(url: str) -> None:
    """Several, in turns."""
    all_of_them = [Conversation(seed) for seed in range(12)]
    turns = all_of_them * 5
    random.Random(0).shuffle(turns)  # noqa: S311 - no secret
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: one.turn(url), turns))


def hot_prefix(url: str) -> None:
    """Many prompts that begin alike."""
    beginning = Conversation(99, 1200).text
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: ask(url, f"{beginning} {number} " + "x" * 100), range(64)))


def one_client(url: str) -> None:
    """A single conversation."""
    conversation = Conversation(7)
    for _ in range(8):
        conversation.turn(url)


POLICIES = ("cache_aware", "round_robin")
LOADS: dict[str, Callable[[str], None]] = {
    "conversations": conversations,
    "hot prefix": hot_prefix,
    "one client": one_client,
}


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[str]:
    """The URL of `armllm ARGUMENTS…`, until the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    command = [sys.executable, "-m", "armllm", *arguments, "--port", str(port)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + READY
            while True:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"bench_router: {' '.join(arguments)} does not answer")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def counts(url: str) -> tuple[float, list[int]]:
    """Prompt tokens that were computed, and the requests of each server."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:  # noqa: S310 - our own server
        page = answer.read().decode()

    def values(name: str) -> list[float]:
        return [float(value) for value in re.findall(rf"^{name}{{.*}} (\S+)$", page, re.MULTILINE)]

    every, hits = (sum(values(name)) for name in COMPUTED)
    return every - hits, [int(value) for value in values("armllm:router_requests_total")]


def main() -> None:
    """Print a table, a row per load and policy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    serve = ("serve", arguments.model, "--served-model-name", "model", "--dtype", "bfloat16")
    found: dict[tuple[str, str], list[tuple[float, float, list[int]]]] = {}
    for _ in range(arguments.rounds):  # policies take turns, so that all see what else the machine does
        for name, load in LOADS.items():
            for policy in POLICIES:
                with (
                    running(*serve) as first,
                    running(*serve) as second,
                    running("route", first, second, "--policy", policy) as url,
                ):
                    started = time.monotonic()
                    load(url)
                    seconds = time.monotonic() - started
                    found.setdefault((name, policy), []).append((seconds, *counts(url)))
    print("| load | policy | seconds | prompt tokens computed | requests of each |")
    print("| --- | --- | ---: | ---: | --- |")
    for (name, policy), rounds in found.items():
        times, computed, requests = zip(*rounds, strict=True)
        each = "; ".join(", ".join(map(str, one)) for one in requests)
        print(f"| {name} | {policy} | {spread(times)} | {spread(computed)} | {each} |")


def spread(values: Sequence[float]) -> str:
    """The middle one, and the least and the most."""
    digits = 1 if max(values) < 1000 else 0
    middle, least, most = (
        f"{one:.{digits}f}" for one in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} ({least} to {most})"


if __name__ == "__main__":
    main()
