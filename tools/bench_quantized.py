#!/usr/bin/env python3
"""Packing and decoding with quantized weights beside bf16, in one run: prints Markdown.

    python tools/bench_quantized.py --schemes int8,int4-g128       # a Llama of 500 million random weights

One thread, CPU time: other work on the machine changes little. Decoding alternates between the models; the
ratio is the median of each pair's. Packing is `armllm pack` of the same folder, from bf16 to what is on disk.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from armllm import LLM, SamplingParams, kernels
from armllm.convert.pack import pack_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure quantized weights beside bf16.")
    parser.add_argument("--schemes", default="int8,int4-g32,int4-g128")
    parser.add_argument("--target", default="native", help="what to pack for; decoding takes native")
    parser.add_argument("--output-len", type=int, default=16, metavar="TOKENS")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--intermediate", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=16000)
    return parser.parse_args()


def make_model(arguments: argparse.Namespace, folder: Path) -> int:
    """Write a checkpoint of random bf16 weights and return how many there are."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 128,
        num_key_value_heads=arguments.hidden // 128,
        intermediate_size=arguments.intermediate,
        vocab_size=arguments.vocab,
        max_position_embeddings=256,
    )
    model: Any = LlamaForCausalLM(config)
    model = model.to(torch.bfloat16)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def cpu_seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def decode(llm: LLM, tokens: int) -> float:
    """CPU seconds per token after the first, of one sequence."""
    prompt = {"prompt_token_ids": list(range(2, 10))}

    def run(count: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        llm.generate([prompt], params, use_tqdm=False)

    first = cpu_seconds(lambda: run(1))
    return (cpu_seconds(lambda: run(tokens + 1)) - first) / tokens


def main() -> int:
    arguments = parse()
    torch.set_num_threads(1)
    kernels.set_num_threads(1)
    options: dict[str, Any] = {
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "num_gpu_blocks_override": 16,
    }
    with tempfile.TemporaryDirectory(prefix="bench-quantized-") as work:
        folder = Path(work) / "bf16"
        count = make_model(arguments, folder)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        print(
            f"Llama, {count / 1e6:.0f} million parameters, one thread, CPU time,"
            f" {kernels.weight_target(4)} kernels:\n"
        )
        print("| weights | packed, MB of bf16 per second | decode, tokens per second | beside bf16 |")
        print("| --- | ---: | ---: | ---: |")
        base = LLM(str(folder), **options)
        for number, scheme in enumerate(arguments.schemes.split(",")):
            packed = Path(work) / scheme
            options = {"target": arguments.target, "quantization": scheme}
            seconds = cpu_seconds(lambda: pack_checkpoint(str(folder), packed, **options))  # noqa: B023
            llm = LLM(str(folder), quantization=scheme, **options)
            pairs = [
                (decode(base, arguments.output_len), decode(llm, arguments.output_len))
                for _ in range(arguments.repeats)
            ]
            plain, quantized = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(slow / fast for slow, fast in pairs)
            if number == 0:
                print(f"| bf16 | | {1 / plain:.1f} | 1.00 |")
            print(
                f"| {scheme} | {size / 1e6 / seconds:.0f} | {1 / quantized:.1f} | {ratio:.2f} |", flush=True
            )
            del llm
    return 0


if __name__ == "__main__":
    sys.exit(main())
