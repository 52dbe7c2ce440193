"""Configurations of every family, drawn at random: each option of config.json takes all its values."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.armllm.models.rope_configs import (
    Config,
    head_dim_of,
    llama3,
    longrope,
    partial_rope,
    rope,
    with_rope,
)

if TYPE_CHECKING:
    from collections.abc import Callable

VOCAB_SIZE = 400
POSITIONS = 128
GATED = ["silu", "swish", "gelu", "gelu_python", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "relu"]
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
SPARSE = ("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")


def random_config(architecture: str, seed: int) -> Config:
    """A small config.json of this family; the same seed gives the same one."""
    rng = random.Random(f"{architecture} {seed}")  # noqa: S311 - test data
    config = {"architectures": [architecture], "vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1}
    return config | FAMILIES[architecture](rng)


def decoder(
    rng: random.Random, *, grouped: bool = True, head_dims: tuple[int, ...] = (8, 16, 24, 40)
) -> Config:
    """What nearly all families have."""
    heads = rng.choice([2, 4, 6])
    groups = rng.choice([1, 2, heads]) if grouped else 1
    config = {
        "hidden_size": heads * rng.choice([8, 16]),
        "intermediate_size": rng.choice([24, 33, 64]),
        "num_hidden_layers": rng.choice([1, 2, 3, 5]),
        "num_attention_heads": heads,
        "num_key_value_heads": heads // groups,
        "head_dim": rng.choice(head_dims),
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-2]),
        "hidden_act": rng.choice(GATED),
        "tie_word_embeddings": rng.random() < 0.3,
    }
    if rng.random() < 0.3:
        del config["head_dim"]
    return config


def llama(rng: random.Random) -> Config:
    biases = {"attention_bias": rng.random() < 0.3, "mlp_bias": rng.random() < 0.3}
    return with_rope(rng, decoder(rng)) | {"model_type": "llama"} | biases


def mistral(rng: random.Random) -> Config:
    window = {"sliding_window": rng.choice([None, 5, 16, 33, 1000])}
    return with_rope(rng, decoder(rng)) | {"model_type": "mistral"} | window


def ministral(rng: random.Random) -> Config:
    # transformers needs both: a window even where no layer has one, and the size of a head
    config = mistral(rng) | {"model_type": "ministral", "sliding_window": rng.choice([5, 16, 33, 1000])}
    config["head_dim"] = head_dim_of(config)
    if rng.random() < 0.7:
        config["layer_types"] = [rng.choice([FULL, SLIDING]) for _ in range(config["num_hidden_layers"])]
    return config


def qwen_windows(rng: random.Random, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    windows = {
        "use_sliding_window": rng.random() < 0.7,
        "sliding_window": rng.choice([4, 17, 40]),
        "max_window_layers": rng.randrange(layers + 1),
    }
    if windows["use_sliding_window"] and rng.random() < 0.4:
        windows["layer_types"] = [rng.choice([FULL, SLIDING]) for _ in range(layers)]
    return windows


def qwen2(rng: random.Random) -> Config:
    config = with_rope(rng, decoder(rng, head_dims=(16,)))
    config.pop("head_dim", None)
    config = {key: value for key, value in config.items() if key not in ("rope_scaling", "rope_parameters")}
    return config | rope(rng, head_dim_of(config)) | {"model_type": "qwen2"} | qwen_windows(rng, config)


def qwen3(rng: random.Random) -> Config:
    config = decoder(rng)
    config["head_dim"] = rng.choice([8, 16, 24])
    extra = {"model_type": "qwen3", "attention_bias": rng.random() < 0.3}
    return with_rope(rng, config) | extra | qwen_windows(rng, config)


def smollm3(rng: random.Random) -> Config:
    config = decoder(rng, head_dims=(16,))
    config.pop("head_dim", None)
    layers = config["num_hidden_layers"]
    extra: Config = {"model_type": "smollm3", "attention_bias": rng.random() < 0.3, "pad_token_id": None}
    extra |= rng.choice(
        [{}, {"no_rope_layer_interval": 2}, {"no_rope_layers": [rng.choice([0, 1]) for _ in range(layers)]}]
    )
    extra |= rng.choice([{}, {"use_sliding_window": True, "sliding_window": 9}, {"sliding_window": None}])
    return with_rope(rng, config) | extra


def phi3(rng: random.Random) -> Config:
    config = decoder(rng, head_dims=(16,))
    config.pop("head_dim", None)
    heads = config["num_attention_heads"]
    config["hidden_size"] = heads * rng.choice([16, 32])
    share = rng.choice([1.0, 0.5, 0.75])
    rotary_dim = int(config["hidden_size"] // heads * share)
    extra = {
        "model_type": "phi3",
        "pad_token_id": None,
        "partial_rotary_factor": share,
        "sliding_window": rng.choice([None, 11, 2047]),
    }
    if rng.random() < 0.6:
        # "su" is an older name of longrope
        original = rng.choice([16, 40, 64])
        values = longrope(rng, rotary_dim // 2, original)
        extra["rope_scaling"] = {"type": rng.choice(["longrope", "su"]), **values}
        extra["original_max_position_embeddings"] = original
    return config | extra


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


def llama4(rng: random.Random) -> Config:
    config = decoder(rng) | {"intermediate_size": rng.choice([24, 64]), "head_dim": rng.choice([8, 24])}
    layers = config["num_hidden_layers"]
    extra: Config = {
        "model_type": "llama4_text",
        "intermediate_size_mlp": rng.choice([16, 40]),
        "attention_bias": rng.random() < 0.3,
        "use_qk_norm": rng.random() < 0.6,
        "attention_chunk_size": rng.choice([1, 7, 16, 1000]),
        "attn_temperature_tuning": rng.random() < 0.8,
        "floor_scale": rng.choice([1, 5, 8192]),
        "attn_scale": rng.choice([0.1, 1.5]),
    }
    rotates = [rng.choice([0, 1]) for _ in range(layers)]
    extra |= rng.choice(
        [{}, {"no_rope_layers": []}, {"no_rope_layer_interval": 2}, {"no_rope_layers": rotates}]
    )
    extra |= rng.choice(
        [{}, {"interleave_moe_layer_step": 2}, {"moe_layers": [rng.randrange(layers)]}, {"moe_layers": []}]
    )
    if rng.random() < 0.3:
        extra["layer_types"] = [rng.choice([FULL, "chunked_attention"]) for _ in range(layers)]
    scout = {
        "rope_scaling": llama3(rng, 16)
        | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 1.0}
    }
    turns = rng.choice([rope(rng, config["head_dim"]), rope(rng, config["head_dim"]), scout])
    return config | turns | extra | experts(rng, "num_local_experts")


def mixtral(rng: random.Random) -> Config:
    # transformers computes the experts only of such sizes, and most kinds of rope only with a head_dim
    config = decoder(rng) | {"head_dim": rng.choice([8, 24]), "intermediate_size": rng.choice([24, 64])}
    config = with_rope(rng, config) | {"model_type": "mixtral", "sliding_window": rng.choice([None, 8])}
    return config | experts(rng, "num_local_experts")


def phimoe(rng: random.Random) -> Config:
    # transformers wants both factors and turns long sequences by the short ones: none is beyond them here
    config = decoder(rng) | {"intermediate_size": rng.choice([24, 64])}
    extra: Config = {
        "model_type": "phimoe",
        "attention_bias": rng.random() < 0.5,
        "sliding_window": rng.choice([None, 9]),
        "num_local_experts": rng.choice([2, 5, 8]),
        "router_jitter_noise": rng.choice([0.01, 0.1, 0.4]),
    }
    if not config["tie_word_embeddings"]:
        extra["lm_head_bias"] = rng.random() < 0.5
    if rng.random() < 0.6:
        values = longrope(rng, head_dim_of(config) // 2, POSITIONS)
        extra["rope_scaling"] = {"type": "longrope", **values, "short_mscale": 1.2, "long_mscale": 1.3}
        extra["rope_theta"] = rng.choice([10000.0, 500.0])
    return config | extra


def experts(rng: random.Random, name: str) -> Config:
    number = rng.choice([2, 5, 8])
    return {name: number, "num_experts_per_tok": rng.choice([1, 2, number])}


def sparse(rng: random.Random, layers: int) -> Config:
    extra: Config = {
        "moe_intermediate_size": rng.choice([16, 24]),
        "norm_topk_prob": rng.random() < 0.5,
        "decoder_sparse_step": rng.choice([1, 1, 2]),
    }
    if rng.random() < 0.3:
        extra["mlp_only_layers"] = [rng.randrange(layers)]
    return extra | experts(rng, "num_experts")


def qwen2_moe(rng: random.Random) -> Config:
    config = decoder(rng, head_dims=(16,))
    config.pop("head_dim", None)
    extra = {
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": rng.choice([16, 40]),
        "qkv_bias": rng.random() < 0.6,
    }
    windows = qwen_windows(rng, config)
    return with_rope(rng, config) | extra | windows | sparse(rng, config["num_hidden_layers"])


def qwen3_moe(rng: random.Random) -> Config:
    config = decoder(rng)
    extra = {
        "model_type": "qwen3_moe",
        "attention_bias": rng.random() < 0.3,
        "use_sliding_window": rng.random() < 0.4,
        "sliding_window": 12,
    }
    return with_rope(rng, config) | extra | sparse(rng, config["num_hidden_layers"])


def delta_nets(rng: random.Random, config: Config) -> Config:
    """Gated delta nets, with attention in some layers."""
    del config["hidden_act"]
    layers, key_heads = config["num_hidden_layers"], rng.choice([1, 2, 4])
    config["head_dim"] = rng.choice([16, 32])
    # The norm after the delta rule makes large what a head finds, which is next to nothing where query and
    # key happen to be at right angles: with less, transformers' own chunks and steps are 1e-3 apart.
    config["rms_norm_eps"] = rng.choice([1e-2, 3e-2])
    extra: Config = {
        "attention_bias": rng.random() < 0.3,
        "linear_conv_kernel_dim": rng.choice([2, 3, 4]),
        "linear_key_head_dim": rng.choice([8, 16, 24]),
        "linear_value_head_dim": rng.choice([8, 16, 40]),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * rng.choice([1, 2, 3]),
    }
    kinds = [rng.choice([FULL, LINEAR]) for _ in range(layers)]
    extra |= rng.choice([{}, {"full_attention_interval": 2}, {"layer_types": kinds}, {"layer_types": kinds}])
    return config | partial_rope(rng, config, 0.25, [0.5, 1.0]) | extra


def qwen3_next(rng: random.Random) -> Config:
    config = delta_nets(rng, decoder(rng)) | {"model_type": "qwen3_next"}
    shared = {"shared_expert_intermediate_size": rng.choice([16, 40])}
    return config | shared | sparse(rng, config["num_hidden_layers"])


def qwen3_5(rng: random.Random) -> Config:
    return delta_nets(rng, decoder(rng)) | {"model_type": "qwen3_5_text"}


def qwen3_5_moe(rng: random.Random) -> Config:
    config = qwen3_next(rng) | {"model_type": "qwen3_5_moe_text"}
    return {key: value for key, value in config.items() if key not in ("intermediate_size", *SPARSE)}


def olmoe(rng: random.Random) -> Config:
    config = decoder(rng, head_dims=(16,)) | {"intermediate_size": rng.choice([24, 64])}
    config.pop("head_dim", None)
    extra = {
        "model_type": "olmoe",
        "pad_token_id": None,
        "attention_bias": rng.random() < 0.3,
        "clip_qkv": rng.choice([None, 0.8]),
        "norm_topk_prob": rng.random() < 0.5,
    }
    return with_rope(rng, config) | extra | experts(rng, "num_experts")


def gpt_oss(rng: random.Random) -> Config:
    config = decoder(rng)
    del config["hidden_act"]
    config |= {"head_dim": config.get("head_dim", 16), "intermediate_size": rng.choice([24, 64])}
    layers = config["num_hidden_layers"]
    extra: Config = {
        "model_type": "gpt_oss",
        "attention_bias": rng.random() < 0.7,
        "sliding_window": rng.choice([5, 16, 33]),
        "swiglu_limit": rng.choice([0.5, 2.0, 7.0]),
    }
    if rng.random() < 0.3:
        extra["swiglu_alpha"] = rng.choice([0.7, 2.0])
    if rng.random() < 0.4:
        extra["layer_types"] = [rng.choice([FULL, SLIDING]) for _ in range(layers)]
    ropes = rng.choice([{}, rope(rng, config["head_dim"]), rope(rng, config["head_dim"])])
    return config | ropes | extra | experts(rng, "num_local_experts")


def opt(rng: random.Random) -> Config:
    heads = rng.choice([2, 4])
    hidden = heads * rng.choice([8, 16])
    return {
        "model_type": "opt",
        "hidden_size": hidden,
        "num_hidden_layers": rng.choice([1, 2, 3]),
        "num_attention_heads": heads,
        "ffn_dim": rng.choice([33, 64]),
        "max_position_embeddings": POSITIONS,
        "word_embed_proj_dim": rng.choice([hidden, 24]),
        "do_layer_norm_before": rng.random() < 0.6,
        "_remove_final_layer_norm": rng.random() < 0.2,
        "activation_function": rng.choice(["relu", "gelu", "gelu_new", "silu", "quick_gelu"]),
        "enable_bias": rng.random() < 0.7,
        "layer_norm_elementwise_affine": rng.random() < 0.7,
        "tie_word_embeddings": rng.random() < 0.5,
        "pad_token_id": None,
    }


def gemma(rng: random.Random) -> Config:
    config = decoder(rng)
    config["head_dim"] = rng.choice([8, 16, 24])
    return with_rope(rng, config) | {"model_type": "gemma", "attention_bias": rng.random() < 0.3}


def olmo2(rng: random.Random) -> Config:
    config = decoder(rng, head_dims=(16,))
    config.pop("head_dim", None)
    extra = {"model_type": "olmo2", "pad_token_id": None, "attention_bias": rng.random() < 0.3}
    return with_rope(rng, config) | extra


def olmo3(rng: random.Random) -> Config:
    config = olmo2(rng) | {"model_type": "olmo3", "sliding_window": rng.choice([5, 16, 1000])}
    for name in ("rope_theta", "rope_scaling", "rope_parameters"):
        config.pop(name, None)
    layers = config["num_hidden_layers"]
    if rng.random() < 0.5:
        config["layer_types"] = [rng.choice([FULL, SLIDING]) for _ in range(layers)]
    ropes: list[Config] = [
        {},
        {"rope_theta": 300.0},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                FULL: {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
                SLIDING: {"rope_type": "default", "rope_theta": 200.0},
            }
        },
    ]
    return config | rng.choice(ropes)


def granite(rng: random.Random) -> Config:
    config = decoder(rng, head_dims=(16,))
    extra = {
        "model_type": "granite",
        "attention_bias": rng.random() < 0.3,
        "mlp_bias": rng.random() < 0.3,
        "embedding_multiplier": rng.choice([12, 0.7]),
        "attention_multiplier": rng.choice([0.0625, 0.3]),
        "residual_multiplier": rng.choice([0.22, 1.5]),
        "logits_scaling": rng.choice([8, 0.9]),
    }
    return with_rope(rng, config) | extra


def seed_oss(rng: random.Random) -> Config:
    biases = {name: rng.random() < 0.5 for name in ("attention_bias", "attention_out_bias", "mlp_bias")}
    config = decoder(rng)
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return with_rope(rng, config) | {"model_type": "seed_oss"} | biases


def ernie4_5(rng: random.Random) -> Config:
    config = decoder(rng)
    config.setdefault("head_dim", 16)
    return with_rope(rng, config) | {"model_type": "ernie4_5", "use_bias": rng.random() < 0.5}


def ernie4_5_moe(rng: random.Random) -> Config:
    config = with_rope(rng, whole_heads(rng))
    layers, number = config["num_hidden_layers"], rng.choice([2, 5, 8])
    extra: Config = {
        "model_type": "ernie4_5_moe",
        "use_bias": not config["tie_word_embeddings"] and rng.random() < 0.5,
        "moe_intermediate_size": rng.choice([16, 24]),
        "moe_num_experts": number,
        "moe_k": rng.choice([1, 2, number]),
        "moe_num_shared_experts": rng.choice([1, 2]),
        "moe_layer_start_index": rng.randrange(layers),
        "moe_layer_end_index": rng.choice([-1, layers - 1, 0]),
        "moe_layer_interval": rng.choice([1, 1, 2]),
        "moe_norm_min": rng.choice([1e-12, 0.9]),
    }
    return config | extra


def glm(rng: random.Random) -> Config:
    config = decoder(rng)
    config["head_dim"] = rng.choice([8, 16, 32])
    extra = {"model_type": "glm", "pad_token_id": None, "attention_bias": rng.random() < 0.5}
    return config | partial_rope(rng, config, 0.5, [0.25, 1.0]) | extra


def glm4(rng: random.Random) -> Config:
    return glm(rng) | {"model_type": "glm4"}


def whole_heads(rng: random.Random) -> Config:
    """`decoder` for families whose heads fill the hidden states."""
    config = decoder(rng, head_dims=(16,))
    config.pop("head_dim", None)
    return config


def arcee(rng: random.Random) -> Config:
    biases = {name: rng.random() < 0.5 for name in ("attention_bias", "mlp_bias")}
    config = decoder(rng)
    return with_rope(rng, config) | {"model_type": "arcee", "hidden_act": "relu2"} | biases


def starcoder2(rng: random.Random) -> Config:
    config = decoder(rng)
    config["norm_epsilon"] = config.pop("rms_norm_eps")
    extra = {
        "model_type": "starcoder2",
        "use_bias": rng.random() < 0.6,
        "sliding_window": rng.choice([None, 9]),
        "bos_token_id": 0,
    }
    return with_rope(rng, config) | extra


def stablelm(rng: random.Random) -> Config:
    config = whole_heads(rng)
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    extra = {
        "model_type": "stablelm",
        "use_qkv_bias": rng.random() < 0.5,
        "qk_layernorm": rng.random() < 0.5,
        "use_parallel_residual": rng.random() < 0.5,
    }
    return config | partial_rope(rng, config, 0.25, [0.5, 1.0]) | extra


def cohere(rng: random.Random) -> Config:
    config = whole_heads(rng)
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    extra = {
        "model_type": "cohere",
        "attention_bias": rng.random() < 0.3,
        "use_qk_norm": rng.random() < 0.5,
        "logit_scale": rng.choice([0.0625, 1.5]),
    }
    return with_rope(rng, config) | extra


def cohere2(rng: random.Random) -> Config:
    config = cohere(rng) | {"model_type": "cohere2", "sliding_window": rng.choice([5, 16, 1000])}
    del config["use_qk_norm"]
    layers = config["num_hidden_layers"]
    return config | rng.choice(
        [
            {},
            {"sliding_window_pattern": 2},
            {"layer_types": [rng.choice([FULL, SLIDING]) for _ in range(layers)]},
        ]
    )


def exaone4(rng: random.Random) -> Config:
    config = with_rope(rng, decoder(rng)) | {"model_type": "exaone4"}
    layers = config["num_hidden_layers"]
    return config | rng.choice(
        [
            {"sliding_window": 7, "sliding_window_pattern": 2},
            {"sliding_window": 12},
            {"sliding_window": None, "layer_types": [FULL] * layers},
            {"sliding_window": 9, "layer_types": [rng.choice([FULL, SLIDING]) for _ in range(layers)]},
        ]
    )


def falcon(rng: random.Random) -> Config:
    config = whole_heads(rng)
    for name in ("rms_norm_eps", "num_key_value_heads"):
        del config[name]
    heads = config["num_attention_heads"]
    new = rng.random() < 0.5
    extra: Config = {
        "model_type": "falcon",
        "layer_norm_epsilon": rng.choice([1e-5, 1e-3]),
        "activation": config.pop("hidden_act"),
        "ffn_hidden_size": config.pop("intermediate_size"),
        "new_decoder_architecture": new,
        "bias": rng.random() < 0.4,
    }
    if new:
        extra |= {"num_kv_heads": rng.choice([1, 2, heads])}
        extra |= rng.choice([{}, {"num_ln_in_parallel_attn": 1}, {"num_ln_in_parallel_attn": 2}])
    else:
        extra |= {"multi_query": rng.random() < 0.5, "parallel_attn": rng.random() < 0.5}
    return with_rope(rng, config) | extra


def granite_moe(rng: random.Random) -> Config:
    config = granite(rng) | {"model_type": "granitemoe", "intermediate_size": rng.choice([24, 64])}
    del config["mlp_bias"]
    return config | experts(rng, "num_local_experts")


def granite_hybrid(rng: random.Random) -> Config:
    config = granite(rng)
    for name in ("mlp_bias", "hidden_act"):
        del config[name]
    heads = rng.choice([1, 2, 4])
    kinds = [rng.choice([FULL, LINEAR]) for _ in range(config["num_hidden_layers"])]
    extra: Config = {
        "model_type": "granitemoehybrid",
        "rms_norm_eps": rng.choice([1e-3, 1e-2]),  # as for delta nets
        "intermediate_size": rng.choice([24, 64]),
        "shared_intermediate_size": rng.choice([16, 40]),
        "position_embedding_type": rng.choice([None, "rope"]),
        "layer_types": kinds,
        "mamba_expand": rng.choice([1, 2]),
        "mamba_n_heads": 2 * heads,
        "mamba_n_groups": rng.choice([1, heads]),
        "mamba_d_state": rng.choice([8, 24]),
        "mamba_d_conv": rng.choice([2, 4]),
        "mamba_conv_bias": rng.random() < 0.7,
        "mamba_proj_bias": rng.random() < 0.3,
    }
    config["hidden_size"] = 8 * config["hidden_size"] // 8
    return (
        config
        | extra
        | (experts(rng, "num_local_experts") if rng.random() < 0.6 else {"num_local_experts": 0})
    )


def grouped_experts(rng: random.Random, layers: int) -> Config:
    """Groups of experts, from some of which each token's come, behind some dense layers."""
    groups, size = rng.choice([(1, 5), (2, 3), (4, 2)])
    top_groups = rng.randint(1, groups)
    return {
        "n_routed_experts": groups * size,
        "n_group": groups,
        "topk_group": top_groups,
        "num_experts_per_tok": rng.randint(1, top_groups * size),
        "moe_intermediate_size": rng.choice([16, 24]),
        "n_shared_experts": rng.choice([1, 2]),
        "first_k_dense_replace": rng.randint(0, layers),
        "routed_scaling_factor": rng.choice([1.0, 2.5]),
    }


def glm4_moe(rng: random.Random) -> Config:
    config = decoder(rng)
    extra = {
        "model_type": "glm4_moe",
        "attention_bias": rng.random() < 0.5,
        "use_qk_norm": rng.random() < 0.5,
        "norm_topk_prob": rng.random() < 0.5,
    }
    sparse_part = grouped_experts(rng, config["num_hidden_layers"])
    return config | partial_rope(rng, config, 0.5, [1.0]) | sparse_part | extra


def latent(rng: random.Random) -> Config:
    turned = rng.choice([4, 8, 16])
    return {
        "q_lora_rank": rng.choice([None, 12, 24]),
        "kv_lora_rank": rng.choice([8, 20]),
        "qk_nope_head_dim": rng.choice([4, 8, 24]),
        "qk_rope_head_dim": turned,
        "v_head_dim": rng.choice([8, 12, 40]),
        "attention_bias": rng.random() < 0.3,
    }


def deepseek(rng: random.Random) -> Config:
    config = decoder(rng, grouped=False)
    config.pop("head_dim", None)
    extra = latent(rng)
    turns = rope(rng, extra["qk_rope_head_dim"])
    return config | turns | grouped_experts(rng, config["num_hidden_layers"]) | extra


def deepseek_v2(rng: random.Random) -> Config:
    config = deepseek(rng) | {"model_type": "deepseek_v2", "norm_topk_prob": False}
    return config | {"topk_method": rng.choice(["greedy", "group_limited_greedy"])}


def deepseek_v3(rng: random.Random) -> Config:
    extra = {"model_type": "deepseek_v3", "norm_topk_prob": rng.random() < 0.5}
    return deepseek(rng) | extra | {"rope_interleave": rng.random() < 0.6}


def glm4_moe_lite(rng: random.Random) -> Config:
    config = deepseek_v3(rng) | {"model_type": "glm4_moe_lite"}
    del config["first_k_dense_replace"]
    layers = config["num_hidden_layers"]
    kinds = {"mlp_layer_types": [rng.choice(["dense", "sparse"]) for _ in range(layers)]}
    return config | rng.choice([{}, kinds, kinds])


def minicpm3(rng: random.Random) -> Config:
    config = decoder(rng, grouped=False) | latent(rng)
    config.pop("head_dim", None)
    extra = {
        "model_type": "minicpm3",
        "mlp_bias": rng.random() < 0.3,
        "v_head_dim": rng.choice([None, 12, 40]),
        "scale_emb": rng.choice([1, 12, 0.7]),
        "scale_depth": rng.choice([None, 1.4]),
        "dim_model_base": rng.choice([None, 16, 8]),  # a larger one than hidden_size enlarges roundings
    }
    return config | rope(rng, config["qk_rope_head_dim"]) | extra


def internlm3(rng: random.Random) -> Config:
    config = with_rope(rng, decoder(rng) | {"head_dim": rng.choice([8, 24])})
    bias = rng.random() < 0.5
    names = rng.choice([("qkv_bias", "bias"), ("attention_bias", "mlp_bias")])
    return config | {"model_type": "internlm3", "pad_token_id": None} | dict.fromkeys(names, bias)


FAMILIES: dict[str, Callable[[random.Random], Config]] = {
    "Llama4ForCausalLM": llama4,
    "LlamaForCausalLM": llama,
    "MinistralForCausalLM": ministral,
    "MistralForCausalLM": mistral,
    "PhimoeForCausalLM": phimoe,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "SmolLM3ForCausalLM": smollm3,
    "OPTForCausalLM": opt,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3nForCausalLM": gemma3n,
    "Gemma4ForCausalLM": gemma4,
    "Phi3ForCausalLM": phi3,
    "MixtralForCausalLM": mixtral,
    "Qwen2MoeForCausalLM": qwen2_moe,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "Qwen3NextForCausalLM": qwen3_next,
    "Qwen3_5ForCausalLM": qwen3_5,
    "Qwen3_5MoeForCausalLM": qwen3_5_moe,
    "OlmoeForCausalLM": olmoe,
    "GemmaForCausalLM": gemma,
    "Olmo2ForCausalLM": olmo2,
    "Olmo3ForCausalLM": olmo3,
    "GraniteForCausalLM": granite,
    "SeedOssForCausalLM": seed_oss,
    "Ernie4_5ForCausalLM": ernie4_5,
    "Ernie4_5_MoeForCausalLM": ernie4_5_moe,
    "GlmForCausalLM": glm,
    "Glm4ForCausalLM": glm4,
    "ArceeForCausalLM": arcee,
    "Starcoder2ForCausalLM": starcoder2,
    "StableLmForCausalLM": stablelm,
    "CohereForCausalLM": cohere,
    "Cohere2ForCausalLM": cohere2,
    "Exaone4ForCausalLM": exaone4,
    "FalconForCausalLM": falcon,
    "GraniteMoeForCausalLM": granite_moe,
    "GraniteMoeHybridForCausalLM": granite_hybrid,
    "Glm4MoeForCausalLM": glm4_moe,
    "DeepseekV2ForCausalLM": deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek_v3,
    "Glm4MoeLiteForCausalLM": glm4_moe_lite,
    "MiniCPM3ForCausalLM": minicpm3,
    "InternLM3ForCausalLM": internlm3,
    "GptOssForCausalLM": gpt_oss,
}

RECURRENT = {
    "GraniteMoeHybridForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
}

LINEAR_ROPE = {"rope_type": "linear", "factor": 4.0}
VARIANTS: list[tuple[str, Config]] = [
    *(
        (f"{name}ForCausalLM", {"head_dim": 24})
        for name in ("Cohere", "Cohere2", "DeepseekV2", "Ernie4_5_Moe", "MiniCPM3", "Olmo3")
    ),
    *((f"{name}ForCausalLM", {"head_dim": 24}) for name in ("Phi3", "Qwen2", "Qwen2Moe", "SmolLM3")),
    *(
        (f"{name}ForCausalLM", {"rope_parameters": LINEAR_ROPE | {"rope_theta": 300.0}})
        for name in ("Phimoe", "Qwen2", "Starcoder2")
    ),
    *((f"{name}ForCausalLM", {"rope_theta": 300.0}) for name in ("Gemma3", "Glm", "InternLM3", "Phi3")),
    *((f"{name}ForCausalLM", {"rope_scaling": LINEAR_ROPE}) for name in ("Glm", "InternLM3")),
    *((f"{name}ForCausalLM", {"hidden_act": "gelu"}) for name in ("Gemma2", "Gemma3", "Gemma3n", "Gemma4")),
    *((f"{name}ForCausalLM", {"intermediate_size": 40}) for name in ("Falcon", "Qwen3_5Moe")),
    ("Ernie4_5_MoeForCausalLM", {"num_experts_per_tok": 1}),
    ("FalconForCausalLM", {"num_key_value_heads": 1}),
    ("Gemma3ForCausalLM", {"rope_local_base_freq": 500.0}),
    ("Gemma3nForCausalLM", {"altup_coef_clip": 0.5}),
    ("Gemma3nForCausalLM", {"altup_lr_multiplier": 0.5}),
    ("GraniteMoeHybridForCausalLM", {"mamba_chunk_size": 8}),
    ("GraniteMoeHybridForCausalLM", {"mamba_d_head": 16}),
    ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0]}),
    ("SmolLM3ForCausalLM", {"mlp_bias": True}),
]
"""Options that chance gives to none of the first configurations."""
