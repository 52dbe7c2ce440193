#!/usr/bin/env python3
"""Measure the memory of a server's processes over thousands of requests of many kinds.

    VLLM_CPU_KVCACHE_SPACE=0.004 python tools/measure_memory.py src/armllm/smoke/model

Prints the resident memory of each process, twenty times. Good and refused requests, streams, clients that
leave, grammars, several choices, log-probabilities, embeddings and cached prefixes take turns. The variable
makes a KV cache that is full at once, and the grammars are 50: both are kept up to a limit.
`--data-parallel-size N` puts a router in front of N replicas.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import socket
from typing import Any

import psutil

from attack_server import serving
from attacks import connect, request

CLIENTS = 8
ROWS = 20
LONG = "A wheel left the workshop at 6:40 one grey Thursday. " * 4


def message(index: int) -> tuple[bytes, bool]:
    """The request of this number, and whether its client leaves after the first bytes of an answer."""
    name = f"{index:x}"
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": f"Hello {name}", "max_tokens": 4, "stop": [name]}),
        ("/v1/completions", {"prompt": f"Hello {name}", "max_tokens": 4, "stream": True}),
        ("/v1/completions", {"prompt": name, "max_tokens": 500, "stream": True, "ignore_eos": True}),  # left
        ("/v1/completions", {"prompt": name, "temperature": 1e39, "user": name}),
        ("/v1/completions", {"prompt": LONG + name, "max_tokens": 4, "n": 4, "temperature": 1}),
        ("/v1/completions", {"prompt": name, "max_tokens": 4, "logprobs": 5, "echo": True}),
        ("/v1/completions", {"prompt": name, "max_tokens": 4, "guided_regex": f"{index // 12 % 50}|[a-z]+"}),
        ("/v1/completions", {"prompt": name, "max_tokens": 4, "logit_bias": {str(index % 200): -9}}),
        ("/v1/completions", {"prompt": name, name: 1}),
        ("/v1/embeddings", {"input": [name, LONG + name]}),
        ("/score", {"text_1": name, "text_2": ["a", name]}),
        ("/tokenize", {"prompt": LONG + name}),
    ]
    path, body = kinds[index % len(kinds)]
    return request(path, json.dumps(body).encode()), body.get("max_tokens") == 500


def send(port: int, index: int) -> bytes:
    """The first bytes of an answer, which is read to its end unless its client leaves."""
    sent, leaves = message(index)
    first = b""
    with connect(port, f"127.0.0.{2 + index % 200}") as one:
        one.sendall(sent)
        while piece := one.recv(1 << 16):
            first = first or piece
            if leaves:
                one.shutdown(socket.SHUT_RDWR)
                break
    return first


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--data-parallel-size", type=int, default=0, help="replicas behind a router")
    arguments = parser.parse_args()
    each = arguments.requests // ROWS
    with (
        serving(arguments.model, arguments.data_parallel_size) as served,
        concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool,
    ):
        for row in range(ROWS):
            numbers = range(row * each, (row + 1) * each)
            answers = list(pool.map(functools.partial(send, served.port), numbers))
            bad = [first for first in answers if not first.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))]
            if bad:
                raise SystemExit(f"{len(bad)} answers are neither 200 nor 400: {bad[0][:200]!r}")
            sizes = ", ".join(
                f"{name} {', '.join(str(psutil.Process(pid).memory_info().rss >> 20) for pid in pids)}"
                for name, pids in served.parts().items()
            )
            print(f"{(row + 1) * each:6} requests: {sizes} MiB", flush=True)


if __name__ == "__main__":
    main()
