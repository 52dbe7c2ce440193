"""Random models written as GGUF files, under llama.cpp's conventions."""

from __future__ import annotations

import contextlib

import gguf
import numpy as np
import pytest
import torch
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import save_reference

from armllm import LLM
from armllm.errors import CheckpointError

KINDS = gguf.GGMLQuantizationType
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES = {
    "llama": {"rope_theta": 5e5, "rope_scaling": LLAMA3, "attention_bias": False, "mlp_bias": False},
    "llama-biases": {"attention_bias": True, "mlp_bias": True},
    "llama-linear": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "tie_word_embeddings": True},
    "llama-yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    },
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"use_sliding_window": False, "attention_bias": False},
    "phi3": {},
    "gemma2": {},
    "gemma3": {"sliding_window_pattern": 6, "num_hidden_layers": 7},
    "granite": {"mlp_bias": True},
    "olmo2": {},
    "seed_oss": {"attention_bias": True, "attention_out_bias": True, "mlp_bias": False},
    "seed_oss-plain": {"attention_out_bias": False, "mlp_bias": True},
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
FACTORS = {
    "attention_multiplier": "attention_scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
PERMUTED = ("granite", "llama")


def permuted(weight, heads):
    """What convert_hf_to_gguf.py does to Llama's queries and keys."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def gguf_name(name, arch):
    names = NAMES | (
        GEMMA if arch.startswith("gemma") else POST_NORMS if arch in ("olmo2", "seed_oss") else {}
    )
    if name.startswith("model.layers."):
        _, _, index, rest = name.split(".", 3)
        part, _, ending = rest.rpartition(".")
        return f"blk.{index}.{names[part]}.{ending}"
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, ending = name.rpartition(".")
    return f"{outside[stem]}.{ending}"


@contextlib.contextmanager
def gguf_writer(path, arch, config=None, **options):
    """The writer of a file, which is whole behind the block; ``config`` has the sizes of its header."""
    writer = gguf.GGUFWriter(path, arch, **options)
    if config:
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_head_dim(writer, head_dim):
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)


def add_tensor(writer, name, array, kind):
    """A matrix or a stack of them in ``kind``, a vector in fp32."""
    stored = KINDS.F32 if array.ndim == 1 else kind
    writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(array), stored), raw_dtype=stored)


def write_gguf(path, arch, model, kind, fill=lambda writer: None, **options):
    """The checkpoint as llama.cpp's converter writes it."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    if arch == "gemma3":
        rope = rope["full_attention"]
    with gguf_writer(path, arch, config.to_dict(), **options) as writer:
        add_head_dim(writer, head_dim)
        writer.add_rope_freq_base(rope["rope_theta"])
        add_rope(writer, model, rope, head_dim)
        if getattr(config, "sliding_window", None):
            writer.add_sliding_window(config.sliding_window)
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if getattr(config, name, None):
                getattr(writer, f"add_{name}")(getattr(config, name))
        for name, stored in FACTORS.items():
            if hasattr(config, name):
                getattr(writer, f"add_{stored}")(getattr(config, name))
        fill(writer)
        add_tensors(writer, arch, model, kind)


def add_tensors(writer, arch, model, kind):
    config = model.config
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if arch in PERMUTED and "q_proj" in name:
            array = permuted(array, config.num_attention_heads)
        if arch in PERMUTED and "k_proj" in name:
            array = permuted(array, config.num_key_value_heads)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            array = array + 1
        add_tensor(writer, gguf_name(name, arch), array, kind)


def add_rope(writer, model, rope, head_dim):
    kind = rope["rope_type"]
    rotary_dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(rotary_dim)
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        plain = rope["rope_theta"] ** -(torch.arange(0, rotary_dim, 2) / rotary_dim)
        factors = plain / model.model.rotary_emb.inv_freq
        writer.add_tensor("rope_freqs.weight", factors.float().numpy())
    if kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling)
        for name in ("long", "short"):
            factors = np.array(rope[f"{name}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", factors)


def reference(folder, case, seed=4, **sizes):
    arch = case.split("-")[0]
    config = random_config(ARCHITECTURES[arch], seed)
    for name in ("rope_scaling", "rope_parameters", "layer_types", "sliding_window_pattern"):
        if arch != "phi3":
            config.pop(name, None)
    config |= CASES[case] | {"hidden_act": "silu", "attention_bias": CASES[case].get("attention_bias", False)}
    if arch.startswith("gemma"):
        config["hidden_activation"] = "gelu_pytorch_tanh"
        config["query_pre_attn_scalar"] = config["head_dim"]
    if arch == "gemma3":
        config |= {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
        }
    if arch != "phi3":
        config.setdefault("rope_theta", 1e4)
    config |= sizes
    folder.mkdir()
    return arch, save_reference(folder, config, seed)


def refused(path, *expected, **options):
    with pytest.raises(CheckpointError) as caught:
        LLM(path, dtype="float32", **options)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    for word in expected:
        assert word in message
