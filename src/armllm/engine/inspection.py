"""What a checkpoint is, from its headers alone."""

from __future__ import annotations

from typing import Any

import torch

from armllm.checkpoint.folder import open_checkpoint
from armllm.checkpoint.hub import resolve_model
from armllm.checkpoint.weights import Weights
from armllm.models import read_model_config
from armllm.quant.gguf_format import ROUNDED, GGUFFormat


def inspect(model: str) -> dict[str, Any]:
    """Shape, size and limits of a checkpoint folder; CheckpointError if the engine could not load it."""
    folder = resolve_model(model)
    architecture, config = read_model_config(folder)
    checkpoint = open_checkpoint(folder)
    weights = Weights(checkpoint, torch.bfloat16, device="meta", quantization=config.quantization)
    architecture(config, weights, max_positions=1)
    weights.finish_check(architecture.ignored_tensors(config))
    stored = sorted({checkpoint.describe(name)[0] for name in weights.taken})
    kv_elements = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return {
        "architecture": config.architecture,
        "parameters": weights.num_parameters,
        "stored_as": ", ".join(stored),
        "quantization": _quantization(weights),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "attention_heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_model_len": config.max_model_len,
        "kv_cache_bytes_per_token_bfloat16": kv_elements * torch.bfloat16.itemsize,
        "kv_cache_bytes_per_token_float32": kv_elements * torch.float32.itemsize,
        "kv_cache_bytes_per_token_int8": kv_elements
        + kv_elements // config.head_dim * torch.float32.itemsize,
    }


def _quantization(weights: Weights) -> str:
    """The scheme, and what of a GGUF file is not kept as it is stored."""
    if not weights.schemes:
        return "none"
    told = str(weights.quantization)
    if isinstance(weights.quantization, GGUFFormat):
        types = {weights.stored_type(f"{name}.weight") for name in weights.schemes}
        if anew := sorted(types.intersection(ROUNDED)):
            return f"{told} ({', '.join(anew)} rounded anew to int8, about 0.9% off)"
    return told
