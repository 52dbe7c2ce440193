#!/usr/bin/env python3
"""Tell what several ranks cost: CPU time of a step of each, beside one process's, and that of messages.

    python tools/bench_models.py build/bench
    python tools/profile_ranks.py build/bench/90m --dtype bfloat16
    python tools/profile_ranks.py build/bench/90m --by pipeline
    python tools/profile_ranks.py build/bench/90m --gathers

CPU time, which other work on the machine changes little. That of rank 0 has sampling and detokenizing, and
both have the time for which they wait awake for each other: a column has it. The last column is the share of
messages in a step of rank 0. Of stages these are what it sends and receives. Of ranks they are the gathers of
a step by two processes that do nothing else, so that neither waits for the other; `--gathers` prints these
alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from armllm import LLM, SamplingParams
from armllm.engine.config import EngineConfig
from armllm.engine.messages import Link
from armllm.kernels._extension import extension
from armllm.layers.ranks import Cut
from armllm.models import read_model_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from armllm.checkpoint.config import ModelConfig

NANOSECONDS = 1e9


class Messages:
    """CPU seconds of this process within messages between stages."""

    def __init__(self) -> None:
        self.seconds = 0.0
        Link.send = self._timed(Link.send)  # type: ignore[method-assign]
        Link.receive = self._timed(Link.receive)  # type: ignore[method-assign]

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.thread_time() - started

        return timed


def cpu_seconds(pid: int) -> float:
    """CPU time that the living threads of a process have used."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / NANOSECONDS


class Profile(NamedTuple):
    """Of a step of each rank, in milliseconds: CPU time, and how much of it was waiting awake for others.

    ``messages``: their share of rank 0's CPU time.
    """

    cpu: list[float]
    awake: list[float]
    messages: float


def profile(llm: LLM, messages: Messages, sequences: int, tokens: int) -> Profile:
    """Of steps that decode so many sequences."""
    followers = llm.llm_engine.followers
    pids = [] if followers is None else followers.pids
    ranks = followers.group if followers and isinstance(followers.group, extension.Ranks) else None
    prompts = [[5 + number] * 8 for number in range(sequences)]

    def now() -> list[float]:
        awake = map(ranks.awake, range(ranks.size)) if ranks else ()
        return [time.process_time(), *map(cpu_seconds, pids), *awake]

    def run(count: int) -> list[float]:
        before = now()
        messages.seconds = 0
        params = SamplingParams(max_tokens=count, ignore_eos=True, temperature=0.8, seed=1)
        llm.generate(prompts, params, use_tqdm=False)
        return [end - start for start, end in zip(before, now(), strict=True)]

    run(4)
    each = [1e3 * one / tokens for one in run(tokens)]
    size = 1 + len(pids)
    return Profile(each[:size], each[size:], 1e3 * messages.seconds / tokens / each[0])


def gather_microseconds(config: ModelConfig, width: int, rows: int, rounds: int = 400) -> float:
    """The gathers of a step's layers, of two processes on a CPU each. ``width``: of the feed-forward part.

    They are recorded and replayed, as those of a step are. Of all replays it is the slowest of the fastest
    fifth: in others one process had no core.
    """
    file = os.memfd_create("gathers")
    os.ftruncate(file, extension.Ranks.bytes(2))
    child = os.fork()
    rank = int(child == 0)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    cut = Cut(extension.Ranks(file, rank, 2, 60.0))
    widths = (config.num_heads * config.head_dim, config.hidden_size, width, config.hidden_size)
    tensors = [[torch.zeros(rows, one // count, dtype=torch.bfloat16) for count in (1, 2)] for one in widths]
    extension.start_recording()
    for _ in range(config.num_layers):
        for whole, part in tensors:
            extension.gather_parts(whole, part, cut.gatherer([whole.shape[1]]).gatherer)
    program = extension.take_recording()
    extension.stop_recording()
    assert program is not None  # noqa: S101 - gathers are recorded
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        program.run()
        seconds.append(time.perf_counter() - started)
    if rank:
        os._exit(0)
    os.waitpid(child, 0)
    os.close(file)
    return 1e6 * statistics.quantiles(seconds, n=5)[0]


def all_gathers(model: str, sequences: list[int]) -> dict[int, float]:
    """Microseconds of a step's gathers, by the number of sequences."""
    folder = EngineConfig.of(model, {}).model_folder
    _, config = read_model_config(folder)
    width = json.loads((folder / "config.json").read_text())["intermediate_size"]
    cpus = os.sched_getaffinity(0)
    found = {}
    for count in sequences:
        found[count] = gather_microseconds(config, width, count)
        os.sched_setaffinity(0, cpus)
    return found


def main() -> int:
    """Print a table, a row per number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization")
    parser.add_argument("--by", choices=("tensor", "pipeline"), default="tensor")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--gathers", action="store_true", help="only the gathers of two ranks")
    arguments = parser.parse_args()
    gathers = all_gathers(arguments.model, arguments.sequences) if arguments.by == "tensor" else {}
    if arguments.gathers:
        print("| sequences | gathers of a step, µs |")
        print("| ---: | ---: |")
        for count, microseconds in gathers.items():
            print(f"| {count} | {microseconds:.0f} |")
        return 0
    messages = Messages()
    found: dict[int, list[Profile]] = {}
    for size in (1, arguments.ranks):
        parallel: dict[str, Any] = {f"{arguments.by}_parallel_size": size}
        llm = LLM(
            arguments.model,
            dtype=arguments.dtype,
            quantization=arguments.quantization,
            **parallel,
            max_model_len=arguments.tokens + 16,
            skip_tokenizer_init=True,
        )
        found[size] = [profile(llm, messages, count, arguments.tokens) for count in arguments.sequences]
        del llm
    print("| sequences | one process, ms | each rank, ms | of one process | of that awake | messages |")
    print("| ---: | ---: | --- | --- | --- | ---: |")
    for count, alone, ranks in zip(arguments.sequences, found[1], found[arguments.ranks], strict=True):
        each = ", ".join(f"{one:.2f}" for one in ranks.cpu)
        parts, awake = (
            ", ".join(f"{one / alone.cpu[0]:.0%}" for one in times) for times in (ranks.cpu, ranks.awake)
        )
        share = gathers[count] / 1e3 / ranks.cpu[0] if count in gathers else ranks.messages
        print(f"| {count} | {alone.cpu[0]:.2f} | {each} | {parts} | {awake or '-'} | {share:.1%} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
