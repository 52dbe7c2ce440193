#!/usr/bin/env python3
"""Rank texts by how near their embeddings are to a question's.

python examples/embed.py --model path/to/model --pooling mean
"""

from __future__ import annotations

import argparse

from armllm import LLM, PoolingParams

QUESTION = "What is the capital of France?"
TEXTS = ["Paris is the capital of France.", "Bread needs flour, water and salt.", "Lyon lies on two rivers."]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare texts by their embeddings.")
    parser.add_argument("--model", required=True, help="folder of a model")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    parser.add_argument("--pooling", choices=["last", "mean", "cls"], help="default: what the model says")
    arguments = parser.parse_args()

    llm = LLM(model=arguments.model, dtype=arguments.dtype)
    params = PoolingParams(pooling=arguments.pooling)
    (question,) = llm.embed(QUESTION, params, use_tqdm=False)
    print(f"an embedding has {len(question.outputs.embedding)} numbers")
    scores = llm.score(QUESTION, TEXTS, pooling_params=params, use_tqdm=False)
    for score, text in sorted(zip((s.outputs.score for s in scores), TEXTS, strict=True), reverse=True):
        print(f"{score:6.3f}  {text}")


if __name__ == "__main__":
    main()
