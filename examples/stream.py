#!/usr/bin/env python3
"""Stream several answers at once, and hang up on one of them.

python examples/stream.py --model path/to/model
"""

from __future__ import annotations

import argparse
import asyncio

from armllm import AsyncLLM, RequestOutputKind, SamplingParams


async def follow(engine: AsyncLLM, prompt: str, name: str, patience: int | None = None) -> None:
    """Print what comes as it comes; leave after ``patience`` outputs, which ends the request."""
    params = SamplingParams(max_tokens=40, seed=1, output_kind=RequestOutputKind.DELTA)
    count = 0
    async for output in engine.generate(prompt, params, request_id=name):
        count += 1
        print(f"{name}: {output.outputs[0].text!r}", flush=True)
        if count == patience:
            print(f"{name}: enough", flush=True)
            return


async def follow_all(engine: AsyncLLM) -> None:
    await asyncio.gather(
        follow(engine, "Once upon a time", "fairy tale"),
        follow(engine, "The recipe begins with", "recipe"),
        follow(engine, "It was a long and boring", "boring story", patience=3),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Stream answers.")
    parser.add_argument("--model", required=True, help="folder of a model")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    arguments = parser.parse_args()
    engine = AsyncLLM(arguments.model, dtype=arguments.dtype)
    try:
        asyncio.run(follow_all(engine))
        stats = engine.stats()
        print(f"{stats.num_generation_tokens} tokens in {stats.num_steps} steps")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main()
