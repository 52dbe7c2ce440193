#!/usr/bin/env python3
"""Complete a batch of texts, offline, and tell how fast that was.

python examples/offline_generate.py --model path/to/model "The capital of France is" "Once upon a time"
"""

from __future__ import annotations

import argparse
import time

from armllm import LLM, SamplingParams

PROMPTS = ["Hello, my name is", "The capital of France is", "The future of AI is"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Complete texts, offline.")
    parser.add_argument("prompts", nargs="*", default=PROMPTS)
    parser.add_argument("--model", required=True, help="folder of a model")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    parser.add_argument("--max-tokens", type=int, default=32)
    arguments = parser.parse_args()

    llm = LLM(model=arguments.model, dtype=arguments.dtype)
    params = SamplingParams(temperature=0.0, max_tokens=arguments.max_tokens)
    started = time.perf_counter()
    outputs = llm.generate(arguments.prompts, params)
    seconds = time.perf_counter() - started
    for output in outputs:
        print(f"{output.prompt!r} -> {output.outputs[0].text!r} ({output.outputs[0].finish_reason})")
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    print(f"{tokens} tokens in {seconds:.2f} s: {tokens / seconds:.1f} tokens/s")


if __name__ == "__main__":
    main()
