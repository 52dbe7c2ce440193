#!/usr/bin/env python3
"""vLLM with and without the kernels of armllm, one after the other on one thread: prints Markdown.

    python tools/bench_vllm_plugin.py VENV/bin/python MODEL
    python tools/bench_vllm_plugin.py VENV/bin/python MODEL --parts none dense attention all

``VENV`` has a CPU build of vLLM and armllm. Figures are CPU milliseconds, which other work changes little,
and output tokens per second: of a decode step of 1 and 8 sequences, and of a prompt of 384 tokens. Each is
the median of ``--repeats``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

PROGRAM = """
import json, statistics, sys, time
from vllm import LLM, SamplingParams

def measure(llm, count, length, tokens, repeats):
    rows = [[5 + (37 * i + 11 * j) % 3000 for j in range(length)] for i in range(count)]
    prompts = [{"prompt_token_ids": row} for row in rows]
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    cpu, speed = [], []
    for _ in range(repeats):
        llm.reset_prefix_cache()
        start, begin = time.process_time(), time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        cpu.append((time.process_time() - start) / tokens * 1000)
        speed.append(count * tokens / (time.perf_counter() - begin))
    return statistics.median(cpu), statistics.median(speed)

def main():
    repeats, eager = int(sys.argv[2]), sys.argv[3] == "eager"
    llm = LLM(sys.argv[1], dtype="bfloat16", max_model_len=512, enforce_eager=eager)
    measure(llm, 1, 32, 4, 1)
    cases = ((1, 32, 24), (8, 32, 24), (1, 384, 1))
    print("RESULT", json.dumps([measure(llm, *case, repeats) for case in cases]))

if __name__ == "__main__":
    main()
"""
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
}


def run(arguments: argparse.Namespace, parts: str) -> list[tuple[float, float]]:
    """CPU milliseconds and tokens per second of each case; the program's own messages where it fails."""
    mode = "eager" if arguments.enforce_eager else "compiled"
    done = subprocess.run(
        [arguments.python, "-c", PROGRAM, arguments.model, str(arguments.repeats), mode],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | ENVIRONMENT | {"ARMLLM_VLLM": parts},
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    figures: list[tuple[float, float]] = json.loads(found[0].removeprefix("RESULT "))
    return figures


def main() -> None:
    """Measure one after the other."""
    parser = argparse.ArgumentParser(description="Measure vLLM with and without the kernels of armllm.")
    parser.add_argument("python", help="interpreter of an environment with vLLM and armllm")
    parser.add_argument("model", help="checkpoint folder")
    parser.add_argument("--parts", nargs="+", default=["none", "all"], help="values of ARMLLM_VLLM")
    parser.add_argument("--enforce-eager", action="store_true", help="vLLM without torch's compiler")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    arguments = parser.parse_args()
    results = [run(arguments, parts) for parts in arguments.parts]
    names = ("step of 1 sequence", "step of 8 sequences", "prompt of 384 tokens")
    for column, unit in enumerate(("CPU ms", "tokens/s")):
        print(f"| {unit} | {' | '.join(arguments.parts)} |\n| --- |{' ---: |' * len(results)}")
        for name, *figures in zip(names, *results, strict=True):
            print(f"| {name} | {' | '.join(f'{figure[column]:.1f}' for figure in figures)} |")


if __name__ == "__main__":
    main()
