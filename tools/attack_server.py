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
import re
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil

from attacks import BODIES, KINDS, STREAMS, Hostile, completion, connect, post, under_attack

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENTS = 20
STREAM_SECONDS = 20.0
PARDON_SECONDS = 8.0  # then the server no longer lets an address wait that was refused


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
        engines = [found[0] for one in servers if (found := children(one))]
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
    """The processes that a process has started, and theirs, the oldest first."""
    found = psutil.Process(pid).children(recursive=True)
    return [child.pid for child in sorted(found, key=psutil.Process.create_time)]


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
