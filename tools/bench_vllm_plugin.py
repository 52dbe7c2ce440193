#!/usr/bin/env python3
"""vLLM with and without the kernels of armllm, one after the other on one thread: prints Markdown.

    python tools/bench_vllm_plugin.py VENV/bin/python MODEL

``VENV`` has a CPU build of vLLM and armllm. Figures are CPU milliseconds, so other work on the machine
changes little: per decode step of 1 and 8 sequences, and for a prompt of 384 tokens. Each is the median of
``--repeats``.
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
    times = []
    for _ in range(repeats):
        llm.reset_prefix_cache()
        start = time.process_time()
        llm.generate(prompts, sampling, use_tqdm=False)
        times.append((time.process_time() - start) / tokens * 1000)
    return statistics.median(times)

def main():
    llm = LLM(sys.argv[1], dtype="bfloat16", max_model_len=512)
    repeats = int(sys.argv[2])
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


def run(python: str, model: str, parts: str, repeats: int) -> list[float]:
    """The three figures with ``parts`` of armllm active; the program's own messages where it fails."""
    done = subprocess.run(
        [python, "-c", PROGRAM, model, str(repeats)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | ENVIRONMENT | {"ARMLLM_VLLM": parts},
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    figures: list[float] = json.loads(found[0].removeprefix("RESULT "))
    return figures


def main() -> None:
    """Measure one after the other."""
    parser = argparse.ArgumentParser(description="Measure vLLM with and without the kernels of armllm.")
    parser.add_argument("python", help="interpreter of an environment with vLLM and armllm")
    parser.add_argument("model", help="checkpoint folder")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    arguments = parser.parse_args()
    results = [run(arguments.python, arguments.model, parts, arguments.repeats) for parts in ("none", "all")]
    print("| CPU ms | vLLM | with armllm | ratio |\n| --- | ---: | ---: | ---: |")
    names = ("step of 1 sequence", "step of 8 sequences", "prompt of 384 tokens")
    for name, plain, ours in zip(names, *results, strict=True):
        print(f"| {name} | {plain:.1f} | {ours:.1f} | {plain / ours:.2f} |")


if __name__ == "__main__":
    main()
