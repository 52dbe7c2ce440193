"""Decoders with a mixture of experts, drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.armllm.models.decoder_configs import (
    FULL,
    POSITIONS,
    SLIDING,
    cohere2,
    decoder,
    exaone4,
    granite,
    granite_swa,
    hunyuan,
    latent,
    qwen_windows,
    whole_heads,
)
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
    import random


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
    extra["lm_head_bias"] = rng.random() < 0.5
    if rng.random() < 0.6:
        values = longrope(rng, head_dim_of(config) // 2, POSITIONS)
        extra["rope_scaling"] = {"type": "longrope", **values, "short_mscale": 1.2, "long_mscale": 1.3}
        extra["rope_theta"] = rng.choice([10000.0, 500.0])
    return config | extra


def qwen2_moe(rng: random.Random) -> Config:
    config = whole_heads(rng)
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


def olmoe(rng: random.Random) -> Config:
    config = whole_heads(rng) | {"intermediate_size": rng.choice([24, 64])}
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


def ernie4_5_moe(rng: random.Random) -> Config:
    config = with_rope(rng, whole_heads(rng))
    layers, number = config["num_hidden_layers"], rng.choice([2, 5, 8])
    extra: Config = {
        "model_type": "ernie4_5_moe",
        "use_bias": rng.random() < 0.5,
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


def granite_moe(rng: random.Random) -> Config:
    config = granite(rng) | {"model_type": "granitemoe", "intermediate_size": rng.choice([24, 64])}
    del config["mlp_bias"]
    return config | experts(rng, "num_local_experts")


def granite_moe_shared(rng: random.Random) -> Config:
    config = granite_moe(rng) | {"model_type": "granitemoeshared"}
    return config | {"shared_intermediate_size": rng.choice([0, 16, 40])}


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


def deepseek_v32(rng: random.Random) -> Config:
    config = glm4_moe_lite(rng)
    extra: Config = {
        "model_type": "deepseek_v32",
        "q_lora_rank": rng.choice([12, 24]),
        "rope_interleave": True,
        "first_k_dense_replace": rng.randint(0, config["num_hidden_layers"]),
        # as many as the longest text, which transformers' indexer leaves whole
        "index_topk": POSITIONS,
        "index_n_heads": 2,
        "index_head_dim": 24,
    }
    return config | extra


def glm_moe_dsa(rng: random.Random) -> Config:
    return deepseek_v32(rng) | {"model_type": "glm_moe_dsa", "indexer_rope_interleave": True}


def dots1(rng: random.Random) -> Config:
    config = decoder(rng) | {"head_dim": rng.choice([8, 24])}
    layers = config["num_hidden_layers"]
    extra: Config = {
        "model_type": "dots1",
        "attention_bias": rng.random() < 0.5,
        "norm_topk_prob": rng.random() < 0.5,
        "sliding_window": rng.choice([None, 5, 16]),
        "max_window_layers": rng.randrange(layers + 1),
    }
    if extra["sliding_window"] and rng.random() < 0.5:
        extra["layer_types"] = [rng.choice([FULL, SLIDING]) for _ in range(layers)]
    return with_rope(rng, config) | grouped_experts(rng, layers) | extra


def flex_olmo(rng: random.Random) -> Config:
    config = olmoe(rng) | {"model_type": "flex_olmo"}
    del config["clip_qkv"]
    return config


def exaone_moe(rng: random.Random) -> Config:
    config = exaone4(rng) | {"model_type": "exaone_moe", "norm_topk_prob": rng.random() < 0.5}
    config["sliding_window"] = config["sliding_window"] or 7  # transformers wants one
    layers = config["num_hidden_layers"]
    routed = grouped_experts(rng, layers)
    routed["num_experts"] = routed.pop("n_routed_experts")
    routed["num_shared_experts"] = routed.pop("n_shared_experts")
    kinds = {"mlp_layer_types": [rng.choice(["dense", "sparse"]) for _ in range(layers)]}
    return config | routed | rng.choice([{}, kinds])


def cohere2_moe(rng: random.Random) -> Config:
    config = cohere2(rng) | {"model_type": "cohere2_moe", "intermediate_size": rng.choice([24, 64])}
    layers = config["num_hidden_layers"]
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    if scaling := config.pop("rope_scaling", None):
        config["rope_parameters"] = {"rope_type": scaling.get("type"), **scaling}
    extra: Config = {
        "rms_norm_eps": rng.choice([None, 1e-5, 1e-2]),
        "num_shared_experts": rng.choice([0, 1, 2]),
        "shared_expert_combination_strategy": rng.choice(["average", "sum"]),
        "expert_selection_fn": rng.choice(["softmax", "sigmoid"]),
        "norm_topk_prob": rng.random() < 0.5,
        "prefix_dense_sliding_window_pattern": rng.choice([1, 1, 2]),
        "prefix_dense_intermediate_size": rng.choice([None, 40]),
    }
    kinds = {"mlp_layer_types": [rng.choice(["dense", "sparse"]) for _ in range(layers)]}
    dense = rng.choice([{}, {"first_k_dense_replace": rng.randint(1, layers)}, kinds])
    return config | extra | dense | experts(rng, "num_experts")


def granite_moe_swa(rng: random.Random) -> Config:
    config = granite_swa(rng) | {"model_type": "granitemoe_swa", "intermediate_size": rng.choice([24, 64])}
    del config["mlp_bias"]
    shared = {"shared_intermediate_size": rng.choice([0, 16, 40])}
    return config | shared | experts(rng, "num_local_experts")


def hunyuan_moe(rng: random.Random) -> Config:
    config = hunyuan(rng) | {"model_type": "hunyuan_v1_moe", "intermediate_size": rng.choice([24, 64])}
    routed = experts(rng, "num_experts")
    per_token = routed.pop("num_experts_per_tok")
    layers = config["num_hidden_layers"]
    names = ("moe_topk", "moe_topk", "num_experts_per_tok")
    counts = (per_token, [per_token] * layers, per_token)
    name, count = rng.choice([*zip(names, counts, strict=True)])
    return config | routed | {name: count}


def minimax_m2(rng: random.Random) -> Config:
    config = decoder(rng) | {"head_dim": rng.choice([16, 32]), "intermediate_size": rng.choice([24, 64])}
    extra: Config = {"model_type": "minimax_m2"} | experts(rng, "num_local_experts")
    if rng.random() < 0.5:
        turned = config["head_dim"] // 2
        return config | rope(rng, turned) | {"rotary_dim": turned} | extra
    return config | partial_rope(rng, config, 1.0, [0.5]) | extra


def solar_open(rng: random.Random) -> Config:
    config = decoder(rng) | {"head_dim": rng.choice([8, 24])}
    del config["intermediate_size"]
    extra = grouped_experts(rng, config["num_hidden_layers"]) | {
        "model_type": "solar_open",
        "attention_bias": rng.random() < 0.5,
        "norm_topk_prob": rng.random() < 0.6,
    }
    del extra["first_k_dense_replace"]
    return with_rope(rng, config) | extra


def afmoe(rng: random.Random) -> Config:
    config = decoder(rng) | {"model_type": "afmoe", "head_dim": rng.choice([8, 24])}
    layers = config["num_hidden_layers"]
    extra: Config = {
        "attention_bias": rng.random() < 0.3,
        "moe_intermediate_size": rng.choice([16, 24]),
        "num_dense_layers": rng.randint(0, layers),
        "num_shared_experts": rng.choice([1, 2]),
        "route_scale": rng.choice([1.0, 2.5]),
        "mup_enabled": rng.random() < 0.5,
        "sliding_window": rng.choice([5, 16, 1000]),
    }
    kinds = [rng.choice([FULL, SLIDING]) for _ in range(layers)]
    extra |= rng.choice([{}, {"global_attn_every_n_layers": 2}, {"layer_types": kinds}])
    return with_rope(rng, config) | extra | experts(rng, "num_experts")
