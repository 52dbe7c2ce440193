#!/usr/bin/env python3
"""Hold a conversation with a chat model, offline: one answer, then several in one batch.

    python examples/offline_chat.py --model path/to/Qwen2.5-0.5B-Instruct --dtype bfloat16

With ``vllm`` instead of ``armllm`` in the import the program runs there too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from armllm import LLM

QUESTIONS = (
    "Why is the sky blue?",
    "Write a haiku about a wheel.",
    "Explain in one sentence what a paged KV cache is.",
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Chat with a model, offline.")
    parser.add_argument("--model", required=True, help="folder of a chat model")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    parser.add_argument("--max-model-len", type=int, help="prompt and output tokens together")
    parser.add_argument("--max-tokens", type=int, default=128, help="output tokens at most")
    parser.add_argument("--temperature", type=float, help="0 takes the likeliest token")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int, help="the same seed gives the same answers")
    parser.add_argument("--chat-template-path", type=Path, help="instead of the checkpoint's own")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    llm = LLM(model=arguments.model, dtype=arguments.dtype, max_model_len=arguments.max_model_len)
    params = llm.get_default_sampling_params()
    for name in ("max_tokens", "temperature", "top_p", "top_k", "seed"):
        value = getattr(arguments, name)
        if value is not None:
            setattr(params, name, value)
    path = arguments.chat_template_path
    template = path.read_text(encoding="utf-8") if path is not None else None

    conversation = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I help you today?"},
        {"role": "user", "content": "Write one sentence about the importance of rivers."},
    ]
    show(llm.chat(conversation, params, use_tqdm=False, chat_template=template))
    batch = [[{"role": "user", "content": question}] for question in QUESTIONS]
    show(llm.chat(batch, params, use_tqdm=True, chat_template=template))


def show(outputs: list) -> None:
    for output in outputs:
        print(f"Prompt: {output.prompt!r}")
        print(f"Answer: {output.outputs[0].text!r}\n")


if __name__ == "__main__":
    main()
