#!/usr/bin/env python3
"""Measure what LoRA adapters cost a batch of 32 sequences: prints a Markdown table.

    python tools/bench_models.py build/bench
    python tools/bench_lora.py build/bench/90m --dtype bfloat16 --rank 16
    python tools/bench_lora.py build/bench/90m --dtype float32 --rank 8 --threads 2

The adapters are random and change all linear layers. Sequences take them in turn. Each row has the CPU time
of a token of a prompt and of a generated one, the least of several rounds in which the rows take turns.
"more" compares it with the row without adapters. CPU time of all threads counts, also where one waits for
another by spinning. The first round warms up and records steps; it doesn't count.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from armllm import LLM, LoRARequest, SamplingParams, kernels  # isort: skip - tells torch how to wait
import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from armllm.checkpoint.adapter import MatrixShape
    from armllm.engine.model_runner import ModelRunner

SEQUENCES, PROMPT = 32, 64
COUNTS = (0, 1, 4, 16)


def write_adapter(folder: Path, shapes: Mapping[str, MatrixShape], rank: int, seed: int) -> None:
    """Write what PEFT writes, of small random numbers."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (rows, columns, _) in shapes.items():
        module = f"base_model.model.model.{name}"
        for kind, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            tensors[f"{module}.lora_{kind}.weight"] = torch.randn(*shape, generator=generator) / 100
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors")


def run(llm: LLM, requests: list[LoRARequest], output: int) -> tuple[float, float]:
    """CPU seconds of a prompt's token and of a generated one, with as many adapters as requests."""
    engine, rng = llm.llm_engine, random.Random(0)  # noqa: S311 - prompts
    vocabulary = engine.processor.vocab_size
    for number in range(SEQUENCES):
        prompt = [rng.randrange(vocabulary) for _ in range(PROMPT)]
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
        request = requests[number % len(requests)] if requests else None
        engine.add_request(f"measured {number}", prompt, params, lora_request=request)
    started = time.process_time()
    engine.step()  # all prompts
    read = time.process_time()
    while engine.has_unfinished_requests():
        engine.step()
    generated = time.process_time() - read
    return (read - started) / (SEQUENCES * PROMPT), generated / (SEQUENCES * (output - 1))


def measure(llm: LLM, requests: list[LoRARequest], *, output: int, rounds: int) -> None:
    """Print the table."""
    found: list[list[tuple[float, float]]] = [
        [run(llm, requests[:count], output) for count in COUNTS] for _ in range(rounds + 1)
    ][1:]
    print("| adapters | prompt, us per token | more | generated, us per token | more |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for row, count in enumerate(COUNTS):
        cells = []
        for column in range(2):
            least, base = (min(one[at][column] for one in found) for at in (row, 0))
            cells += [f"{1e6 * least:.0f}", f"{least / base - 1:+.1%}" if count else ""]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what LoRA adapters cost a batch.")
    parser.add_argument("model", help="folder of a checkpoint, with a tokenizer")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", help="int8, int4 and so on, as armllm has it")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--output", type=int, default=32, metavar="TOKENS", help="of each sequence")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    llm = LLM(
        arguments.model,
        dtype=arguments.dtype,
        quantization=arguments.quantization,
        enable_lora=True,
        max_loras=max(COUNTS),
        max_lora_rank=arguments.rank,
        enable_prefix_caching=False,
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=SEQUENCES * PROMPT,
    )
    torch.set_num_threads(arguments.threads)  # the engine may have decided otherwise
    kernels.set_num_threads(arguments.threads)
    slots = cast("ModelRunner", llm.llm_engine.runner).slots
    assert slots is not None  # noqa: S101 - of enable_lora
    with tempfile.TemporaryDirectory() as root:
        requests = []
        for number in range(1, max(COUNTS) + 1):
            folder = Path(root) / str(number)
            write_adapter(folder, slots.shapes(), arguments.rank, number)
            requests.append(LoRARequest(folder.name, number, str(folder)))
        measure(llm, requests, output=arguments.output, rounds=arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
