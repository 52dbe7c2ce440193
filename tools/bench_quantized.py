#!/usr/bin/env python3
"""Packing and decoding with quantized weights beside bf16, in one run: prints Markdown.

    python tools/bench_quantized.py --schemes int8,int4-g128       # a Llama of 500 million random weights
    python tools/bench_quantized.py --schemes fp8 --sequences 8    # a checkpoint of E4M3, a scale per row

One thread, CPU time: other work on the machine changes little. Decoding alternates between the models; the
ratio is the median of each pair's. Packing is `armllm pack` of the same folder, from bf16 to what is on disk.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
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
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--sequences", type=int, default=1, metavar="N")
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


def write_fp8(source: Path, folder: Path) -> None:
    """Write the same checkpoint with E4M3 in place of the matrices of its layers, a scale per row."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        scale = tensors[name].float().abs().amax(1, keepdim=True) / 448
        tensors[f"{name}_scale"] = scale
        tensors[name] = (tensors[name].float() / scale).to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def cpu_seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def decode(llm: LLM, tokens: int, sequences: int) -> float:
    """CPU seconds per token after the first of each sequence."""
    prompts = [{"prompt_token_ids": list(range(2 + i, 10 + i))} for i in range(sequences)]

    def run(count: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        llm.generate(prompts, params, use_tqdm=False)

    first = cpu_seconds(lambda: run(1))
    return (cpu_seconds(lambda: run(tokens + 1)) - first) / tokens / sequences


def megabytes(llm: LLM) -> float:
    return llm.llm_engine.stats().load.weight_bytes / 1e6


def main() -> int:
    arguments = parse()
    torch.set_num_threads(1)
    kernels.set_num_threads(1)
    options: dict[str, Any] = {
        "dtype": arguments.dtype,
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
        print(
            "| weights | packed, MB of bf16 per second | in memory, MB | decode, tokens per second | beside |"
        )
        print("| --- | ---: | ---: | ---: | ---: |")
        base = LLM(str(folder), **options)
        for number, scheme in enumerate(arguments.schemes.split(",")):
            packed, speed = Path(work) / scheme, ""
            if scheme == "fp8":
                write_fp8(folder, packed)
                llm = LLM(str(packed), **options)
            else:
                how: dict[str, Any] = {"target": arguments.target, "quantization": scheme}
                seconds = cpu_seconds(lambda: pack_checkpoint(str(folder), packed, **how))  # noqa: B023
                speed = f"{size / 1e6 / seconds:.0f}"
                llm = LLM(str(folder), quantization=scheme, **options)
            pairs = [
                tuple(decode(one, arguments.output_len, arguments.sequences) for one in (base, llm))
                for _ in range(arguments.repeats)
            ]
            plain, quantized = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(slow / fast for slow, fast in pairs)
            if number == 0:
                print(f"| {arguments.dtype} | | {megabytes(base):.0f} | {1 / plain:.1f} | 1.00 |")
            print(
                f"| {scheme} | {speed} | {megabytes(llm):.0f} | {1 / quantized:.1f} | {ratio:.2f} |",
                flush=True,
            )
            del llm
    return 0


if __name__ == "__main__":
    sys.exit(main())
