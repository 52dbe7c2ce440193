"""What a checkpoint is, from its headers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from armllm.checkpoint.hub import resolve_model
from armllm.engine.sentence_modules import (
    MODULES,
    default_dimensions,
    embedding_size,
    num_scores,
    read_modules,
)
from armllm.models import check_model, read_model_config
from armllm.quant.floats import FloatFormat
from armllm.quant.formats import open_stored
from armllm.quant.gguf_format import ROUNDED, GGUFFormat

if TYPE_CHECKING:
    from armllm.checkpoint.config import ModelConfig
    from armllm.checkpoint.tensors import Tensors
    from armllm.checkpoint.weights import Inventory


def inspect_checkpoint(model: str) -> dict[str, Any]:
    """Shape, size and limits of a checkpoint folder; CheckpointError if the engine could not load it."""
    folder = resolve_model(model)
    architecture, config = read_model_config(folder)
    checkpoint = open_stored(folder, config.quantization)
    built, inventory = check_model(architecture, config, checkpoint, torch.bfloat16, config.quantization)
    stored = sorted({checkpoint.describe(name)[0] for name in inventory.taken})
    facts = {
        "architecture": config.architecture,
        "parameters": inventory.num_parameters,
        "stored_as": ", ".join(stored),
        "quantization": _quantization(config, checkpoint, inventory),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "attention_heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_model_len": min(config.max_model_len, config.default_model_len or config.max_model_len),
    }
    if config.classes is not None:
        facts["classes"] = len(config.classes.labels)
    elif config.is_encoder or not config.generates or (folder / MODULES).is_file():
        modes, projections = read_modules(folder, config.final_size)
        facts["pooling"] = ", ".join(modes) or ("mean" if config.is_encoder else "last")
        size = embedding_size(config, modes, projections)
        if num_scores(projections) is None:
            facts["embedding_size"] = min(size, default_dimensions(folder) or size)
        else:
            facts["classes"] = size
    if config.is_encoder:
        return facts
    kv_elements = 2 * sum(layer.num_kv_heads * layer.head_dim for layer in built.attention_layers)
    kv_vectors = 2 * sum(layer.num_kv_heads for layer in built.attention_layers)
    parts = [part for layer in built.recurrent_layers for part in layer.state_shapes(torch.bfloat16)]
    if parts:
        facts["state_bytes_per_sequence_bfloat16"] = sum(part.num_bytes for part in parts)
    return facts | {
        "kv_cache_bytes_per_token_bfloat16": kv_elements * torch.bfloat16.itemsize,
        "kv_cache_bytes_per_token_float32": kv_elements * torch.float32.itemsize,
        "kv_cache_bytes_per_token_int8": kv_elements + kv_vectors * torch.float32.itemsize,
    }


def _quantization(config: ModelConfig, checkpoint: Tensors, inventory: Inventory) -> str:
    """The scheme, and which tensors of a GGUF file change their format."""
    if isinstance(config.quantization, FloatFormat):
        return str(config.quantization)
    if not inventory.schemes:
        return "none"
    if isinstance(config.quantization, GGUFFormat):
        types = {checkpoint.describe(f"{name}.weight")[0] for name in inventory.schemes}
        if anew := sorted(types.intersection(ROUNDED)):
            return f"{config.quantization} ({', '.join(anew)} rounded again to int8, about 0.9% off)"
    return str(config.quantization)
