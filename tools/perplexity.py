#!/usr/bin/env python3
"""What rounding weights costs: perplexity on held-out text, scheme by scheme.

    python tools/perplexity.py train DIR --minutes 10     # a small Llama, on this Python's own documentation
    python tools/perplexity.py measure DIR                # prints a Markdown table

The text is the docstrings of Python's standard library; every tenth file is held out. Training needs torch,
transformers and tokenizers, and takes one thread. `measure` asks the engine for the log-probabilities of the
held-out tokens, so that its kernels and their rounding of activations are part of the figures; `calibrated`
rows take a part of the training text for `--calibration`. The last column is the root mean square over all
tokens: a model that is far from sure shows by it what its perplexity hides.
"""

from __future__ import annotations

import argparse
import ast
import math
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from armllm.checkpoint.scheme import SCHEMES

END = "<|end|>"
VOCAB_SIZE, CONTEXT, BATCH = 2048, 256, 8
HELD_OUT = 10  # every tenth file
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Perplexity of quantized weights.")
    commands = parser.add_subparsers(dest="command", required=True)
    train_ = commands.add_parser("train", help="train the model that is measured")
    train_.add_argument("folder", type=Path)
    train_.add_argument("--minutes", type=float, default=10)
    measure_ = commands.add_parser("measure", help="print the table")
    measure_.add_argument("folder", type=Path)
    measure_.add_argument("--tokens", type=int, default=20_000, help="held-out tokens, at most")
    return parser.parse_args()


def documentation() -> list[str]:
    """The docstrings of each file of the standard library that has some, in the order of their paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = []
    for path in sorted(root.rglob("*.py")):
        if {"site-packages", "test", "tests", "lib2to3", "idlelib"} & set(path.relative_to(root).parts):
            continue
        tree = ast.parse(path.read_bytes())
        nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, nodes)]
        if any(found):
            texts.append("\n\n".join(filter(None, found)))
    return texts


def split() -> tuple[list[str], list[str]]:
    """Texts to train with and texts held out."""
    texts = documentation()
    training = [text for number, text in enumerate(texts) if number % HELD_OUT]
    return training, texts[::HELD_OUT]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE that puts the end of a text before each."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    return tokenizer


def train(folder: Path, minutes: float) -> None:
    """AdamW with a cosine schedule over the time given, bf16 products."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - `measure` does without

    torch.set_num_threads(1)
    torch.manual_seed(0)
    training, held_out = split()
    tokenizer = train_tokenizer(training)
    tokens, unseen = (
        torch.tensor([token for text in texts for token in tokenizer.encode(text).ids])
        for texts in (training, held_out)
    )
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=2 * CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        **SIZES,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    started, step, share = time.perf_counter(), 0, 0.0
    while share < 1:
        share = (time.perf_counter() - started) / (60 * minutes)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 50, 0.05 + math.cos(min(1, share) * math.pi / 2))
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH,))
        batch = torch.stack([tokens[start : start + CONTEXT] for start in starts])
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            with torch.no_grad():
                batch = unseen[: 16 * CONTEXT].view(16, CONTEXT)
                held = model(input_ids=batch, labels=batch).loss
            print(
                f"{share:.0%} step {step}: loss {loss:.3f}, held out {held:.3f}", file=sys.stderr, flush=True
            )
        step += 1
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def log_probabilities(folder: Path, tokens: list[int], **options: Any) -> Tensor:
    """The log-probability of each of ``tokens`` but the first of a piece, after at most CONTEXT others."""
    from armllm import LLM, SamplingParams  # noqa: PLC0415

    llm = LLM(str(folder), max_model_len=2 * CONTEXT, skip_tokenizer_init=True, **options)
    pieces = [tokens[first : first + CONTEXT] for first in range(0, len(tokens) - 1, CONTEXT)]
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": piece} for piece in pieces], params, use_tqdm=False)
    return torch.tensor(
        [
            described[token].logprob
            for piece, output in zip(pieces, outputs, strict=True)
            for token, described in zip(piece[1:], (output.prompt_logprobs or [])[1:], strict=True)
            if described is not None
        ],
        dtype=torch.float64,
    )


def measure(folder: Path, limit: int) -> None:
    """Perplexity beside float32's, and by how much the log-probability of a token moves."""
    training, held_out = split()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = [token for text in held_out for token in tokenizer.encode(text).ids][:limit]
    rows: dict[str, dict[str, Any]] = {"float32": {}, "bfloat16": {"dtype": "bfloat16"}}
    with tempfile.TemporaryDirectory() as work:
        text = Path(work) / "text"
        text.write_text("\n\n".join(training[:: len(training) // 40]), encoding="utf-8")
        for scheme in (scheme for scheme in SCHEMES if scheme != "int4"):  # which is one of the others
            rows[scheme] = {"quantization": scheme}
            rows[f"{scheme}, calibrated"] = {"quantization": scheme, "calibration": str(text)}
        rows["float32, int8 KV cache"] = {"kv_cache_dtype": "int8"}
        rows["int4-g32, int8 KV cache"] = {"quantization": "int4-g32", "kv_cache_dtype": "int8"}
        print("| weights | perplexity | beside float32 | change of a token's log-probability |")
        print("| --- | ---: | ---: | ---: |")
        base = None
        for name, options in rows.items():
            found = log_probabilities(folder, tokens, **{"dtype": "float32"} | options)
            base = found if base is None else base
            value, beside = found.neg().mean().exp(), (base - found).mean().exp() - 1
            moved = (found - base).square().mean().sqrt()
            print(f"| {name} | {value:.2f} | {beside:+.2%} | {moved:.4f} |", flush=True)


def main() -> None:
    arguments = parse()
    if arguments.command == "train":
        train(arguments.folder, arguments.minutes)
    else:
        measure(arguments.folder, arguments.tokens)


if __name__ == "__main__":
    main()
