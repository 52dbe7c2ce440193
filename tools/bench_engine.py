#!/usr/bin/env python3
"""Offline throughput of the engine beside transformers' `generate`, in one run: prints a Markdown table.

    python tools/bench_engine.py                         # 1, 8 and 32 sequences, float32, 2 threads
    python tools/bench_engine.py --dtype bfloat16 --sequences 1,16

The model is a Llama with random weights, made on the fly (125 million parameters by default). Prompts are
random token ids; both sides generate the same number of tokens greedily and never stop early. The two
alternate; medians are printed, and the ratio is the median of each pair's. Two more runs tell where the
engine's time goes: one with a clock around every matrix product, and one that samples, detokenizes and
streams every token, whose share of scheduling, sampling and detokenizing is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

import armllm
from armllm import LLM, RequestOutputKind, SamplingParams, kernels
from armllm.layers.linear import DenseLinear, PackedLinear

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclasses.dataclass
class Clock:
    """Seconds spent in the calls of a function."""

    seconds: float = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        def timed(*given: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the engine beside transformers.")
    parser.add_argument("--sequences", type=numbers, default=[1, 8, 32], metavar="N[,N]")
    parser.add_argument("--prompt", type=int, default=128, metavar="TOKENS")
    parser.add_argument("--output", type=int, default=64, metavar="TOKENS")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--intermediate", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32000)
    return parser.parse_args()


def make_model(arguments: argparse.Namespace, folder: str) -> Any:
    """Write a checkpoint of random weights and return it as transformers' model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        num_key_value_heads=arguments.kv_heads,
        intermediate_size=arguments.intermediate,
        vocab_size=arguments.vocab,
        max_position_embeddings=max(2048, arguments.prompt + arguments.output),
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to(getattr(torch, arguments.dtype)).eval()
    model.save_pretrained(folder)
    make_tokenizer(arguments.vocab).save(f"{folder}/tokenizer.json")
    return model


def make_tokenizer(vocab_size: int) -> Any:
    """Byte-level tokens, as Llama 3 has them: the bytes, then made-up words."""
    texts = [
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        *(f"\u0120word{number}" for number in range(vocab_size)),
    ]
    vocabulary = {text: token_id for token_id, text in enumerate(texts[:vocab_size])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def run_engine(llm: LLM, prompts: Tensor, output: int) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": row} for row in prompts.tolist()], params, use_tqdm=False)
    return [completion.outputs[0].token_ids for completion in outputs]


@torch.inference_mode()
def run_transformers(model: Any, prompts: Tensor, output: int) -> list[list[int]]:
    said = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        max_new_tokens=output,
        min_new_tokens=output,
    )
    return [row[prompts.shape[1] :] for row in said.tolist()]


def seconds_of(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def share_outside_products(llm: LLM, prompts: Tensor, output: int) -> float:
    """Return which part of the steps' time passes outside matrix products with weights."""
    products, steps = Clock(), Clock()
    calls = [(kind, kind.__call__) for kind in (DenseLinear, PackedLinear)]
    step = llm.llm_engine.step
    for kind, call in calls:
        kind.__call__ = products.around(call)  # type: ignore[method-assign]
    llm.llm_engine.step = steps.around(step)  # type: ignore[method-assign]
    try:
        run_engine(llm, prompts, output)
    finally:
        for kind, call in calls:
            kind.__call__ = call  # type: ignore[method-assign]
        llm.llm_engine.step = step  # type: ignore[method-assign]
    return 1 - products.seconds / steps.seconds


def share_outside_model(llm: LLM, prompts: Tensor, output: int) -> float:
    """Return which part of the steps' time scheduling, sampling and detokenizing take, all streamed."""
    engine, steps = llm.llm_engine, Clock()
    for number, row in enumerate(prompts.tolist()):
        params = SamplingParams(
            temperature=0.8,
            seed=number,
            max_tokens=output,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        engine.add_request(f"streamed {number}", row, params)
    model = engine.stats().seconds["model"]
    while engine.has_unfinished_requests():
        steps.around(engine.step)()
    return 1 - (engine.stats().seconds["model"] - model) / steps.seconds


def main() -> int:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory(prefix="bench-engine-") as folder:
        model = make_model(arguments, folder)
        llm = LLM(
            folder,
            dtype=arguments.dtype,
            enable_prefix_caching=False,  # repeats must do the work again
        )
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    attention = kernels.report()[f"paged_attention_{'f32' if arguments.dtype == 'float32' else 'bf16'}"]
    print(
        f"Llama, {millions:.0f} million parameters, {arguments.dtype}, {arguments.threads} threads, prompts"
        f" of {arguments.prompt} tokens, outputs of {arguments.output}, medians of {arguments.repeats};"
        f" armllm {armllm.__version__} ({attention['target']} kernels), torch {torch.__version__}:\n"
    )
    print(
        "| sequences | armllm, tokens/s | transformers, tokens/s | ratio | outside products | outside model |"
        " same tokens |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for count in arguments.sequences:
        prompts = torch.randint(arguments.vocab, (count, arguments.prompt))
        ours, theirs = (
            run_engine(llm, prompts, arguments.output),
            run_transformers(model, prompts, arguments.output),
        )
        pairs = [
            (
                seconds_of(lambda: run_engine(llm, prompts, arguments.output)),  # noqa: B023 - called at once
                seconds_of(lambda: run_transformers(model, prompts, arguments.output)),  # noqa: B023
            )
            for _ in range(arguments.repeats)
        ]
        tokens = count * arguments.output
        speeds = [tokens / statistics.median(side) for side in zip(*pairs, strict=True)]
        ratio = statistics.median(slow / fast for fast, slow in pairs)
        products = share_outside_products(llm, prompts, arguments.output)
        engine = share_outside_model(llm, prompts, arguments.output)
        same = sum(a == b for a, b in zip(ours, theirs, strict=True))
        print(
            f"| {count} | {speeds[0]:.1f} | {speeds[1]:.1f} | {ratio:.2f} | {products:.0%} |"
            f" {engine:.1%} | {same} of {count} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
