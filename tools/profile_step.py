#!/usr/bin/env python3
"""Tell where the CPU time of the engine's steps goes: prints a Markdown table of shares, a row per load.

    python tools/bench_models.py build/bench
    python tools/profile_step.py build/bench/90m --dtype bfloat16
    python tools/profile_step.py build/bench/90m --loads 32:128:64 --threads 2
    python tools/profile_step.py build/bench/10m --dtype bfloat16 --replays

A load is sequences:prompt:output tokens. Every request samples at temperature 0.8 with a seed of its own and
is streamed, so that sampling and detokenizing cost what they cost a server. With one thread its CPU time is
counted, which other work on the machine hardly changes; with more the clock is read, on a machine that must
be idle. What is called within something else is counted once, there where it is. The first run of each load
warms up and doesn't count. No step is recorded, since a replay calls nothing that could be counted: decodes
take longer here than in an engine. ``--replays`` compares instead: milliseconds of a step that is computed
and of one that is replayed, in turn, the least of several rounds, and the median of the rounds' ratios.
`bench_http.py` tells what HTTP adds.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import statistics
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, cast

from armllm import LLM, RequestOutputKind, SamplingParams, kernels  # isort: skip - tells torch how to wait
import torch

from armllm.engine.recording import MOST_SEQUENCES
from armllm.layers import linear, moe, norm, rotary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from armllm.engine.model_runner import ModelRunner

ROUNDS = 7
PRODUCTS, ATTENTION, SMALL = "products", "attention", "norms, rotary embedding, cache, activation"
MODEL = "Python and tensors between"
OUTSIDE = "schedule, sample, detokenize"
COLUMNS = (PRODUCTS, ATTENTION, SMALL, MODEL, OUTSIDE)
NO_PRODUCTS = (linear.Linear, linear.Watched, linear.Gathered, linear.SideBySide)  # they hold others
SMALL_KERNELS = ("write_kv_cache", "silu_and_mul", "gelu_and_mul", "gelu", "quick_gelu", "relu")


class Shares:
    """Seconds by name. Of nested calls the inner one's time is taken from the outer one's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock = clock
        self._inner = [0.0]  # seconds within the calls of each call that is running
        self._phase = contextlib.ExitStack()

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Count what is done within; a step's phases come in the words of `armllm.engine.stats`."""
        self._inner.append(0.0)
        started = self._clock()
        try:
            yield
        finally:
            passed = self._clock() - started
            column = name if name in COLUMNS else MODEL if name == "model" else OUTSIDE
            self.seconds[column] += passed - self._inner.pop()
            self._inner[-1] += passed

    def begin(self, name: str | None) -> None:
        """End a phase of a step and begin the next, as `armllm.engine.stats.Stopwatch` does."""
        self._phase.close()
        if name is not None:
            self._phase.enter_context(self.of(name))

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, counted."""

        @functools.wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            with self.of(name):
                return function(*arguments, **named)

        return counted


def places() -> Iterator[tuple[str, Any, str]]:
    """What is counted: its column, and the attribute of a class or module that is called."""
    for kind in vars(linear).values():
        if isinstance(kind, type) and "__call__" in vars(kind) and kind not in NO_PRODUCTS:
            yield PRODUCTS, kind, "__call__"
    for kind in (moe.FusedExperts, moe.SeparateExperts):
        yield PRODUCTS, kind, "__call__"
    yield ATTENTION, kernels, "paged_attention"
    for kind, name in (
        (norm.RMSNorm, "__call__"),
        (norm.RMSNorm, "add"),
        (norm.LayerNorm, "__call__"),
        (rotary.RotaryEmbedding, "rows"),
        (rotary.RotaryEmbedding, "__call__"),
    ):
        yield SMALL, kind, name
    for name in SMALL_KERNELS:
        yield SMALL, kernels, name


@contextlib.contextmanager
def counting(shares: Shares) -> Iterator[None]:
    """Count calls of layers and kernels; models must be made within, as they keep some of the functions."""
    found = [(column, owner, name, getattr(owner, name)) for column, owner, name in places()]
    for column, owner, name, function in found:
        setattr(owner, name, shares.around(column, function))
    try:
        yield
    finally:
        for _, owner, name, function in reversed(found):
            setattr(owner, name, function)


def run(llm: LLM, sequences: int, prompt: int, output: int) -> int:
    """Finish so many requests together; returns the number of steps."""
    engine, rng = llm.llm_engine, random.Random(0)  # noqa: S311 - prompts
    vocabulary = engine.processor.vocab_size
    for number in range(sequences):
        params = SamplingParams(
            temperature=0.8,
            seed=number,
            max_tokens=output,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        engine.add_request(f"profiled {number}", [rng.randrange(vocabulary) for _ in range(prompt)], params)
    steps = 0
    while engine.has_unfinished_requests():
        engine.step()
        steps += 1
    return steps


def profile(
    model: str, loads: list[tuple[int, ...]], *, threads: int, **options: Any
) -> Iterator[tuple[dict[str, float], float]]:
    """For each load the share of each column in its steps, and seconds per step."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    shares = Shares(clock)
    torch.set_num_threads(threads)
    with counting(shares):
        # without prefix caching, since the second run must do the work again
        llm = LLM(model, enable_prefix_caching=False, **options)
        cast("ModelRunner", llm.llm_engine.runner).decode.most_sequences = 0
        torch.set_num_threads(threads)  # the engine may have decided otherwise
        kernels.set_num_threads(threads)
        llm.llm_engine._stopwatch = shares  # type: ignore[assignment]  # noqa: SLF001 - phases by our clock
        for load in loads:
            run(llm, *load)
            shares.seconds.clear()
            started = clock()
            steps = run(llm, *load)
            whole = clock() - started
            yield {column: shares.seconds[column] / whole for column in COLUMNS}, whole / steps


def compare(
    model: str, loads: list[tuple[int, ...]], *, threads: int, **options: Any
) -> Iterator[tuple[float, float, float]]:
    """For each load seconds per step, computed and replayed, and the ratio of the two."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    torch.set_num_threads(threads)
    llm = LLM(model, enable_prefix_caching=False, **options)
    decode = cast("ModelRunner", llm.llm_engine.runner).decode
    for load in loads:
        rounds: list[list[float]] = []
        for _ in range(ROUNDS + 1):
            rounds.append([])
            for most in (0, MOST_SEQUENCES):
                decode.most_sequences = most
                started = clock()
                steps = run(llm, *load)
                rounds[-1].append((clock() - started) / steps)
        computed, replayed = zip(*rounds[1:], strict=True)  # the first round warms up and records
        ratios = [one / other for one, other in zip(computed, replayed, strict=True)]
        yield min(computed), min(replayed), statistics.median(ratios)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Tell where the time of the engine's steps goes.")
    parser.add_argument("model", help="folder of a checkpoint, with a tokenizer")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", help="int8, int4 and so on, as armllm has it")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--replays", action="store_true", help="compare steps computed and replayed")
    parser.add_argument("--loads", default="1:128:64,32:128:64,4:1024:32", metavar="N:PROMPT:OUTPUT[,...]")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    loads = [tuple(map(int, load.split(":"))) for load in arguments.loads.split(",")]
    options = {"dtype": arguments.dtype, "quantization": arguments.quantization}
    if arguments.replays:
        print("| sequences, prompt, output | computed, ms | replayed, ms | ratio |")
        print("| --- | ---: | ---: | ---: |")
        figures = compare(arguments.model, loads, threads=arguments.threads, **options)
        for load, (computed, replayed, ratio) in zip(loads, figures, strict=True):
            row = f"{1000 * computed:.2f} | {1000 * replayed:.2f} | {ratio:.2f}"
            print(f"| {', '.join(map(str, load))} | {row} |", flush=True)
        return 0
    print(f"| sequences, prompt, output | {' | '.join(COLUMNS)} | ms per step |")
    print(f"| --- |{' ---: |' * (len(COLUMNS) + 1)}")
    rows = profile(arguments.model, loads, threads=arguments.threads, **options)
    for load, (shares, seconds) in zip(loads, rows, strict=True):
        row = " | ".join(f"{shares[column]:.1%}" for column in COLUMNS)
        print(f"| {', '.join(map(str, load))} | {row} | {1000 * seconds:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
