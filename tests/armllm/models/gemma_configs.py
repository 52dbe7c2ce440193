"""Gemma's decoders, drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.armllm.models.decoder_configs import FULL, SLIDING, VOCAB_SIZE, decoder
from tests.armllm.models.rope_configs import Config, llama3, with_rope

if TYPE_CHECKING:
    import random


def gemma(rng: random.Random) -> Config:
    config = decoder(rng)
    config["head_dim"] = rng.choice([8, 16, 24])
    return with_rope(rng, config) | {"model_type": "gemma", "attention_bias": rng.random() < 0.3}


def gemma2(rng: random.Random) -> Config:
    config = decoder(rng)
    config["head_dim"] = rng.choice([8, 16, 24])
    config["hidden_activation"] = config.pop("hidden_act")
    extra = {
        "model_type": "gemma2",
        "attention_bias": rng.random() < 0.3,
        "query_pre_attn_scalar": rng.choice([8, 16, 100]),
        "sliding_window": rng.choice([4, 16, 1000]),
        "attn_logit_softcapping": rng.choice([None, 5.0, 50.0]),
        "final_logit_softcapping": rng.choice([None, 3.0, 30.0]),
    }
    if rng.random() < 0.4:
        extra["layer_types"] = [rng.choice([FULL, SLIDING]) for _ in range(config["num_hidden_layers"])]
    return with_rope(rng, config) | extra


def vaultgemma(rng: random.Random) -> Config:
    return gemma2(rng) | {"model_type": "vaultgemma"}


def gemma3(rng: random.Random) -> Config:
    config = gemma2(rng)
    for name in ("attn_logit_softcapping", "rope_theta", "rope_scaling", "rope_parameters"):
        config.pop(name, None)
    config["model_type"] = "gemma3_text"
    if "layer_types" not in config:
        config["sliding_window_pattern"] = rng.choice([2, 3, 6])
    ropes: list[Config] = [
        {},
        {"rope_theta": 5e5, "rope_local_base_freq": 300.0},
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
                SLIDING: {"rope_type": "default", "rope_theta": 200.0},
            }
        },
        {
            "rope_parameters": {
                FULL: {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
                SLIDING: {"rope_type": "llama3", "rope_theta": 200.0, **llama3(rng, 32)},
            }
        },
    ]
    return config | rng.choice(ropes)


def gemma3n(rng: random.Random) -> Config:
    config = decoder(rng)
    config["head_dim"] = rng.choice([8, 16])
    config["hidden_activation"] = config.pop("hidden_act")
    layers, streams = config["num_hidden_layers"], rng.choice([2, 3, 4])
    extra: Config = {
        "model_type": "gemma3n_text",
        "attention_bias": rng.random() < 0.3,
        "sliding_window": rng.choice([4, 16, 1000]),
        "final_logit_softcapping": rng.choice([3.0, 30.0]),
        "hidden_size_per_layer_input": rng.choice([8, 24]),
        "vocab_size_per_layer_input": VOCAB_SIZE - rng.choice([0, 8]),
        "altup_num_inputs": streams,
        "altup_active_idx": rng.randrange(streams),
        "altup_correct_scale": rng.random() < 0.6,
        "laurel_rank": rng.choice([4, 8]),
        "num_kv_shared_layers": 0,
        "pad_token_id": 0,
    }
    if rng.random() < 0.5:
        config["intermediate_size"] = [rng.choice([24, 64]) for _ in range(layers)]
    if rng.random() < 0.6:
        extra["activation_sparsity_pattern"] = [rng.choice([0.0, 0.5, 0.95]) for _ in range(layers)]
    if layers > 2:
        extra["layer_types"] = [SLIDING, FULL, *(rng.choice([FULL, SLIDING]) for _ in range(layers - 2))]
        extra["num_kv_shared_layers"] = rng.choice([0, layers - 2])
    ropes: list[Config] = [
        {},
        {"rope_theta": 5e5, "rope_local_base_freq": 300.0},
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ]
    return config | rng.choice(ropes) | extra


def gemma4(rng: random.Random) -> Config:
    config = decoder(rng) | {"head_dim": rng.choice([8, 16]), "intermediate_size": rng.choice([24, 64])}
    config["hidden_activation"] = config.pop("hidden_act")
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    extra: Config = {
        "model_type": "gemma4_text",
        "global_head_dim": rng.choice([16, 32]),
        "attention_bias": rng.random() < 0.3,
        "sliding_window": rng.choice([4, 16, 1000]),
        "final_logit_softcapping": rng.choice([None, 30.0]),
        "hidden_size_per_layer_input": rng.choice([0, 8, 24]),
        "vocab_size_per_layer_input": VOCAB_SIZE + rng.choice([0, 8]),
        "attention_k_eq_v": rng.random() < 0.5,
        "num_global_key_value_heads": rng.choice([None, 1, heads]),
        "use_double_wide_mlp": rng.random() < 0.5,
        "use_bidirectional_attention": rng.choice([None, "vision"]),
    }
    if layers > 2:
        extra["layer_types"] = [
            SLIDING,
            FULL,
            *(rng.choice([FULL, SLIDING]) for _ in range(layers - 3)),
            FULL,
        ]
        extra["num_kv_shared_layers"] = rng.choice([0, layers - 2])
        if extra["num_kv_shared_layers"]:  # transformers fails without
            extra["hidden_size_per_layer_input"] = 8
    if rng.random() < 0.6:
        count = rng.choice([2, 5])
        extra |= {
            "enable_moe_block": True,
            "num_experts": count,
            "moe_intermediate_size": rng.choice([16, 24]),
        }
        extra["top_k_experts"] = rng.choice([1, count])
    ropes: list[Config] = [
        {},
        {
            "rope_parameters": {
                FULL: {
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.5,
                    "rope_theta": 1e4,
                    "factor": 2.0,
                },
                SLIDING: {"rope_type": "linear", "factor": 4.0, "rope_theta": 200.0},
            }
        },
    ]
    return config | rng.choice(ropes) | extra


def gemma4_unified(rng: random.Random) -> Config:
    config = gemma4(rng) | {"model_type": "gemma4_unified_text"}
    unknown = ("per_layer_input", "expert", "enable_moe_block")
    return {name: value for name, value in config.items() if not any(part in name for part in unknown)}
