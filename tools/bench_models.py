#!/usr/bin/env python3
"""Write the random models that `tools/bench_serving.py` compares engines on, in bfloat16.

    python tools/bench_models.py build/bench                          # Llamas: 10m, 90m and 500m
    python tools/bench_models.py build/bench --size gpt-oss-300m --size qwen3.5-300m
    python tools/bench_models.py build/bench --size 90m --openvino VENV

Each folder holds what transformers, vLLM and armllm read. A Llama has ``model.gguf`` for llama.cpp with the
same weights. ``--openvino`` names an environment with optimum-intel, whose `optimum-cli` adds ``openvino/``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from armllm.checkpoint.gguf_names import LAYER, OUTSIDE

if TYPE_CHECKING:
    from torch import Tensor

SIZES: dict[str, dict[str, Any]] = {
    "10m": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
        "vocab_size": 8192,
    },
    "90m": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 1664,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    },
    "500m": {
        "hidden_size": 1536,
        "num_hidden_layers": 16,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "intermediate_size": 4096,
        "vocab_size": 32000,
    },
}
# Of other families, by their keys in config.json.
OTHERS: dict[str, dict[str, Any]] = {
    "gpt-oss-300m": {
        "model_type": "gpt_oss",
        "hidden_size": 768,
        "num_hidden_layers": 10,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 768,
        "num_local_experts": 12,
        "num_experts_per_tok": 4,
        "vocab_size": 32000,
    },
    "qwen3.5-300m": {
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "intermediate_size": 3072,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "vocab_size": 32000,
    },
}
POSITIONS = 2048
MERGED = "\u0120w"  # llama.cpp reads no byte-level tokenizer without merges: this is the only one
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
BF16 = gguf.GGMLQuantizationType.BF16
NAMES = {hugging_face: name for name, hugging_face in (LAYER | OUTSIDE).items()}


def make_texts(vocab_size: int) -> list[str]:
    """The bytes, the one merge, made-up words, and at the end two special tokens."""
    fillers = (f"\u0120word{number}" for number in range(vocab_size))
    texts = [*sorted(pre_tokenizers.ByteLevel.alphabet()), MERGED, *fillers]
    return [*texts[: vocab_size - 2], *SPECIAL.values()]


def write_tokenizer(texts: list[str], folder: Path) -> None:
    vocabulary = {text: token_id for token_id, text in enumerate(texts)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges=[(MERGED[0], MERGED[1])]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    kind: Any = PreTrainedTokenizerFast
    kind(tokenizer_object=tokenizer, **SPECIAL).save_pretrained(folder)


def gguf_name(name: str) -> str:
    stem, _, ending = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{ending}"
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{NAMES[part]}.{ending}"


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of queries and keys as llama.cpp wants them: those that are turned together side by side."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape).contiguous()


def write_gguf(model: Any, texts: list[str], path: Path) -> None:
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(texts))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    special = [gguf.TokenType.CONTROL] * 2
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(texts) - 2) + special)
    writer.add_token_merges([f"{MERGED[0]} {MERGED[1]}"])
    writer.add_bos_token_id(len(texts) - 2)
    writer.add_eos_token_id(len(texts) - 1)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        rows = weight
        if "q_proj" in name:
            rows = interleaved(weight, config.num_attention_heads)
        elif "k_proj" in name:
            rows = interleaved(weight, config.num_key_value_heads)
        if rows.dim() == 1:
            writer.add_tensor(gguf_name(name), rows.float().numpy())
        else:
            writer.add_tensor(gguf_name(name), rows.view(torch.uint16).numpy(), raw_dtype=BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(size: str, folder: Path) -> None:
    torch.manual_seed(0)
    sizes = (SIZES | OTHERS)[size]
    vocab_size = sizes["vocab_size"]
    ends = {"bos_token_id": vocab_size - 2, "eos_token_id": vocab_size - 1}
    common = {"max_position_embeddings": POSITIONS, **ends}
    model: Any
    if size in SIZES:
        model = LlamaForCausalLM(LlamaConfig(**sizes, **common))
    else:
        kind: Any = AutoModelForCausalLM
        model = kind.from_config(AutoConfig.for_model(**sizes, **common))
    model.to(torch.bfloat16)
    model.save_pretrained(folder)
    texts = make_texts(vocab_size)
    write_tokenizer(texts, folder)
    if size in SIZES:
        write_gguf(model, texts, folder / "model.gguf")
    print(f"{folder}: {sum(one.numel() for one in model.parameters()) / 1e6:.0f} million parameters")


def export_openvino(environment: Path, folder: Path) -> None:
    """As float16, the type whose file OpenVINO turns into what the CPU computes in when it loads."""
    command = [
        *(str(environment / "bin/optimum-cli"), "export", "openvino", "--model", str(folder)),
        *("--task", "text-generation-with-past", "--weight-format", "fp16", str(folder / "openvino")),
    ]
    subprocess.run(command, check=True, stdout=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write random models to compare engines on.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", action="append", choices=[*SIZES, *OTHERS], help="may be repeated")
    parser.add_argument("--openvino", type=Path, metavar="VENV", help="export for OpenVINO with this one")
    arguments = parser.parse_args()
    for size in arguments.size or SIZES:
        make(size, arguments.folder / size)
        if arguments.openvino is not None:
            export_openvino(arguments.openvino, arguments.folder / size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
