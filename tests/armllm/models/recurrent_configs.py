"""Decoders some of whose layers have a state in place of attention, drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.armllm.models.decoder_configs import FULL, LINEAR, SLIDING, decoder, granite, whole_heads
from tests.armllm.models.expert_configs import experts, grouped_experts, sparse
from tests.armllm.models.rope_configs import Config, partial_rope, with_rope

if TYPE_CHECKING:
    import random

SPARSE = ("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")


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


def lfm2(rng: random.Random) -> Config:
    config = with_rope(rng, whole_heads(rng)) | {"model_type": "lfm2"}
    del config["hidden_act"]
    config["norm_eps"] = config.pop("rms_norm_eps")
    layers = config["num_hidden_layers"]
    size = {"block_ff_dim": config.pop("intermediate_size")} if rng.random() < 0.3 else {}
    if rng.random() < 0.3:
        config["tie_embedding"] = config.pop("tie_word_embeddings")
    kinds: Config = {"layer_types": [rng.choice([FULL, "conv"]) for _ in range(layers)]}
    extra: Config = {
        "block_auto_adjust_ff_dim": rng.random() < 0.5,
        "block_ffn_dim_multiplier": rng.choice([1.0, 1.3]),
        "block_multiple_of": rng.choice([8, 32]),
        "conv_L_cache": rng.choice([2, 3, 4]),
        "conv_bias": rng.random() < 0.5,
    }
    return config | size | extra | rng.choice([kinds, kinds, {"full_attn_idxs": [1]}])


def lfm2_moe(rng: random.Random) -> Config:
    config = lfm2(rng)
    if "block_ff_dim" in config:
        config["intermediate_size"] = config.pop("block_ff_dim")
    for name in ("block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"):
        del config[name]
    config.pop("full_attn_idxs", None)
    layers = config["num_hidden_layers"]
    extra: Config = {
        "model_type": "lfm2_moe",
        "layer_types": [rng.choice([FULL, "conv"]) for _ in range(layers)],
        "moe_intermediate_size": rng.choice([16, 24]),
        "num_dense_layers": rng.randrange(layers + 1),
        "norm_topk_prob": rng.random() < 0.6,
        "routed_scaling_factor": rng.choice([1.0, 2.5]),
        "use_expert_bias": rng.random() < 0.6,
    }
    return config | extra | experts(rng, "num_experts")


def lfm3(rng: random.Random) -> Config:
    config = decoder(rng) | {"model_type": "lfm3", "pad_token_id": None}
    del config["hidden_act"]
    config["norm_eps"] = config.pop("rms_norm_eps")
    layers = config["num_hidden_layers"]
    kinds = [rng.choice([FULL, SLIDING, "conv"]) for _ in range(layers)]
    full: Config = {"rope_type": "proportional", "rope_theta": 300.0, "partial_rotary_factor": 0.25}
    local: Config = {"rope_type": "default", "rope_theta": 200.0}
    extra: Config = {
        "attention_bias": rng.random() < 0.3,
        "conv_L_cache": rng.choice([2, 3, 7]),
        "conv_bias": rng.random() < 0.5,
        "sliding_window": rng.choice([5, 16, 1000]),
        "use_attention_gate": rng.random() < 0.7,
        "use_sandwich_norm": rng.random() < 0.7,
    }
    config |= extra | rng.choice([{}, {"layer_types": kinds}, {"layer_types": kinds}])
    return config | rng.choice([{}, {"rope_parameters": {FULL: full, SLIDING: local}}])


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


def falcon_h1(rng: random.Random) -> Config:
    config = with_rope(rng, decoder(rng)) | {"model_type": "falcon_h1"}
    del config["hidden_act"]
    config["num_hidden_layers"] = min(config["num_hidden_layers"], 3)  # more of both make roundings large
    heads, groups = rng.choice([2, 4, 8]), rng.choice([1, 2])
    size: Config = {"mamba_d_ssm": heads * rng.choice([8, 16])}
    if config["hidden_size"] * 2 % heads == 0 and rng.random() < 0.3:
        size = {"mamba_d_ssm": None, "mamba_expand": rng.choice([2, 4])}
    extra: Config = {
        "rms_norm_eps": rng.choice([1e-3, 1e-2]),  # as for delta nets
        "attention_bias": rng.random() < 0.3,
        "mlp_bias": rng.random() < 0.3,
        "projectors_bias": rng.random() < 0.3,
        "mamba_n_heads": heads,
        "mamba_n_groups": groups,
        "mamba_d_state": rng.choice([8, 24]),
        "mamba_d_conv": rng.choice([2, 4]),
        "mamba_conv_bias": rng.random() < 0.7,
        "mamba_proj_bias": rng.random() < 0.3,
        "mamba_rms_norm": rng.random() < 0.6,
        "mamba_norm_before_gate": rng.random() < 0.5,
    }
    for name in ("embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out"):
        if rng.random() < 0.6:
            extra[f"{name}_multiplier"] = rng.choice([0.5, 0.8, 1.5])
    for name, length in (("ssm", 5), ("mlp", 2)):
        if rng.random() < 0.6:
            extra[f"{name}_multipliers"] = [rng.choice([0.5, 0.8, 1.5]) for _ in range(length)]
    return config | size | extra


def nemotron_h(rng: random.Random) -> Config:
    config = decoder(rng)
    for name in ("hidden_act", "num_hidden_layers", "rms_norm_eps"):
        del config[name]
    letters = "".join(rng.choice("MM*E-") for _ in range(rng.choice([2, 4, 5])))
    kinds = {"M": LINEAR, "*": FULL, "E": "moe", "-": "mlp"}
    layers = rng.choice(
        [{}, {"hybrid_override_pattern": letters}, {"layers_block_type": [kinds[one] for one in letters]}]
    )
    routing = grouped_experts(rng, 1) | {"n_shared_experts": 1}
    del routing["first_k_dense_replace"]
    heads = rng.choice([2, 4])
    extra: Config = {
        "model_type": "nemotron_h",
        "head_dim": rng.choice([8, 24]),
        "layer_norm_epsilon": rng.choice([1e-3, 1e-2]),  # as for delta nets
        "mlp_hidden_act": rng.choice(["relu2", "relu2", "silu", "gelu"]),
        "mlp_bias": rng.random() < 0.3,
        "use_bias": rng.random() < 0.3,
        "mamba_num_heads": 2 * heads,
        "mamba_head_dim": rng.choice([8, 16]),
        "n_groups": rng.choice([1, heads]),
        "ssm_state_size": rng.choice([8, 24]),
        "conv_kernel": rng.choice([2, 4]),
        "use_conv_bias": rng.random() < 0.7,
        "time_step_min": rng.choice([0.001, 0.5]),
        "norm_topk_prob": rng.random() < 0.6,
        "moe_shared_expert_intermediate_size": rng.choice([16, 40]),
        "moe_latent_size": rng.choice([None, 16]),
    }
    return config | routing | extra | layers
