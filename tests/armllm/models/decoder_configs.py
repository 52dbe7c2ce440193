"""Decoders with a feed-forward part in each layer, and what all decoders have, drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.armllm.models.rope_configs import (
    Config,
    head_dim_of,
    longrope,
    partial_rope,
    rope,
    with_rope,
    yarn,
)

if TYPE_CHECKING:
    import random

VOCAB_SIZE = 400
POSITIONS = 128
GATED = ["silu", "swish", "gelu", "gelu_python", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "relu"]
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


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


def whole_heads(rng: random.Random) -> Config:
    """`decoder` for families whose heads fill the hidden states."""
    config = decoder(rng, head_dims=(16,))
    config.pop("head_dim", None)
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


def ministral3(rng: random.Random) -> Config:
    config = mistral(rng)
    for name in ("rope_scaling", "rope_theta", "rope_parameters"):
        config.pop(name, None)
    values = {"llama_4_scaling_beta": rng.choice([0.1, 0.7]), "rope_theta": rng.choice([10000.0, 100.0])}
    values |= {"original_max_position_embeddings": rng.choice([5, 16, 40])}
    kind: Config = rng.choice([{"type": "yarn", "factor": 4.0, **yarn(rng)}, {"rope_type": "default"}])
    config["model_type"] = "ministral3"
    if rng.random() < 0.5:
        return config | {"rope_parameters": values | kind}
    return config | {"rope_theta": values.pop("rope_theta"), "rope_scaling": values | kind}


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
    config = whole_heads(rng)
    layers = config["num_hidden_layers"]
    extra: Config = {"model_type": "smollm3", "attention_bias": rng.random() < 0.3, "pad_token_id": None}
    extra |= rng.choice(
        [{}, {"no_rope_layer_interval": 2}, {"no_rope_layers": [rng.choice([0, 1]) for _ in range(layers)]}]
    )
    extra |= rng.choice([{}, {"use_sliding_window": True, "sliding_window": 9}, {"sliding_window": None}])
    return with_rope(rng, config) | extra


def phi3(rng: random.Random) -> Config:
    config = whole_heads(rng)
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


def gpt2(rng: random.Random) -> Config:
    config = gptj(rng) | {"model_type": "gpt2", "tie_word_embeddings": rng.random() < 0.6}
    del config["rotary_dim"]
    names = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    return config | {name: rng.random() < 0.5 for name in names}


def gptj(rng: random.Random) -> Config:
    config = whole_heads(rng)
    named = {
        "n_embd": config["hidden_size"],
        "n_layer": config["num_hidden_layers"],
        "n_head": config["num_attention_heads"],
        "n_positions": config["max_position_embeddings"],
    }
    if rng.random() < 0.3:  # as transformers names them for all models
        named = {key: config[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
        named["max_position_embeddings"] = POSITIONS
    return named | {
        "model_type": "gptj",
        "n_inner": rng.choice([None, 33, 64]),
        "rotary_dim": rng.choice([4, 8]),
        "layer_norm_epsilon": rng.choice([1e-5, 1e-3]),
        "activation_function": config["hidden_act"],
        "tie_word_embeddings": config["tie_word_embeddings"],
    }


def larger_heads(rng: random.Random) -> Config:
    """`whole_heads` of which a quarter turns."""
    config = whole_heads(rng)
    return config | {"hidden_size": config["num_attention_heads"] * rng.choice([16, 32])}


def gpt_neox(rng: random.Random) -> Config:
    config = larger_heads(rng) | {"model_type": "gpt_neox"}
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    del config["num_key_value_heads"]
    config |= {name: rng.random() < 0.6 for name in ("use_parallel_residual", "attention_bias")}
    if rng.random() < 0.3:
        extra = partial_rope(rng, config, 0.25, [0.5, 1.0])
        extra["rotary_pct"] = extra.pop("partial_rotary_factor", 0.25)
        extra["rotary_emb_base"] = extra.pop("rope_theta", 10000.0)
        return config | extra
    share = rng.choice([0.25, 0.5, 1.0])
    return config | {"rotary_pct": share, "rotary_emb_base": rng.choice([10000, 300.0])}


def phi(rng: random.Random) -> Config:
    config = larger_heads(rng) | {"model_type": "phi", "qk_layernorm": rng.random() < 0.5}
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    return config | partial_rope(rng, config, 0.5, [0.25, 1.0])


def olmo2(rng: random.Random) -> Config:
    config = whole_heads(rng)
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


def granite_swa(rng: random.Random) -> Config:
    config = granite(rng) | {"model_type": "granite_swa", "sliding_window": rng.choice([5, 16, 1000])}
    layers = config["num_hidden_layers"]
    config.pop("rope_parameters", None)
    config.pop("rope_scaling", None)
    if rng.random() < 0.7:
        config["layer_rope_theta"] = [rng.choice([0, 100.0, 10000.0]) for _ in range(layers)]
    if rng.random() < 0.5:
        config["layer_types"] = [rng.choice([FULL, SLIDING]) for _ in range(layers)]
    return config | rng.choice([{}, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}])


def seed_oss(rng: random.Random) -> Config:
    biases = {name: rng.random() < 0.5 for name in ("attention_bias", "attention_out_bias", "mlp_bias")}
    config = decoder(rng)
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return with_rope(rng, config) | {"model_type": "seed_oss"} | biases


def ernie4_5(rng: random.Random) -> Config:
    config = decoder(rng)
    config.setdefault("head_dim", 16)
    return with_rope(rng, config) | {"model_type": "ernie4_5", "use_bias": rng.random() < 0.5}


def glm(rng: random.Random) -> Config:
    config = decoder(rng)
    config["head_dim"] = rng.choice([8, 16, 32])
    extra = {"model_type": "glm", "pad_token_id": None, "attention_bias": rng.random() < 0.5}
    return config | partial_rope(rng, config, 0.5, [0.25, 1.0]) | extra


def glm4(rng: random.Random) -> Config:
    return glm(rng) | {"model_type": "glm4"}


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


def youtu(rng: random.Random) -> Config:
    config = decoder(rng, grouped=False) | latent(rng)
    config.pop("head_dim", None)
    extra: Config = {"model_type": "youtu", "rope_interleave": rng.random() < 0.6}
    return config | rope(rng, config["qk_rope_head_dim"]) | extra


def internlm3(rng: random.Random) -> Config:
    config = with_rope(rng, decoder(rng) | {"head_dim": rng.choice([8, 24])})
    bias = rng.random() < 0.5
    names = rng.choice([("qkv_bias", "bias"), ("attention_bias", "mlp_bias")])
    return config | {"model_type": "internlm3", "pad_token_id": None} | dict.fromkeys(names, bias)


def cwm(rng: random.Random) -> Config:
    config = decoder(rng) | {"head_dim": rng.choice([8, 24])}
    layers = config["num_hidden_layers"]
    extra: Config = {"model_type": "cwm", "mlp_bias": rng.random() < 0.5}
    extra |= {"sliding_window": rng.choice([5, 16, 1000])}
    if rng.random() < 0.5:
        extra["layer_types"] = [rng.choice([FULL, SLIDING]) for _ in range(layers)]
    return config | rng.choice([{}, rope(rng, config["head_dim"])]) | extra


def helium(rng: random.Random) -> Config:
    config = whole_heads(rng)
    config["head_dim"] = head_dim_of(config)
    biases = {"attention_bias": rng.random() < 0.5, "mlp_bias": rng.random() < 0.5}
    return with_rope(rng, config) | {"model_type": "helium", "pad_token_id": None} | biases


def hunyuan(rng: random.Random) -> Config:
    config = decoder(rng) | {"head_dim": rng.choice([8, 24])}
    extra: Config = {"model_type": "hunyuan_v1_dense", "attention_bias": rng.random() < 0.3}
    if rng.random() < 0.5:
        return with_rope(rng, config) | extra
    beside = {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.0}
    stretched = {"type": "dynamic", "alpha": rng.choice([3.0, 1000.0]), "factor": 1.0, **beside}
    return config | extra | {"rope_theta": 100.0, "rope_scaling": stretched}


def nemotron(rng: random.Random) -> Config:
    config = decoder(rng, head_dims=(16, 32)) | {"hidden_act": rng.choice(["relu2", "gelu"])}
    config["norm_eps"] = config.pop("rms_norm_eps")
    config.setdefault("head_dim", 16)
    biases = {"attention_bias": rng.random() < 0.5, "mlp_bias": rng.random() < 0.5}
    return config | partial_rope(rng, config, 0.5, [0.25, 1.0]) | {"model_type": "nemotron"} | biases


def apertus(rng: random.Random) -> Config:
    config = decoder(rng) | {"hidden_act": rng.choice(["xielu", "xielu", "gelu"])}
    extra = {"model_type": "apertus", "pad_token_id": None, "attention_bias": rng.random() < 0.5}
    return config | rng.choice([{}, rope(rng, head_dim_of(config))]) | extra


def olmo(rng: random.Random) -> Config:
    config = with_rope(rng, whole_heads(rng)) | {"model_type": "olmo", "pad_token_id": None}
    del config["rms_norm_eps"]
    return config | {"attention_bias": rng.random() < 0.3, "clip_qkv": rng.choice([None, 0.5, 8.0])}


def jais2(rng: random.Random) -> Config:
    config = with_rope(rng, decoder(rng)) | {"model_type": "jais2"}
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    biases = {"attention_bias": rng.random() < 0.5, "mlp_bias": rng.random() < 0.5}
    return config | biases | {"hidden_act": rng.choice(["relu2", "gelu", "silu"])}


def hyperclovax(rng: random.Random) -> Config:
    config = granite(rng) | {"model_type": "hyperclovax", "use_post_norm": rng.random() < 0.6}
    if rng.random() < 0.3:
        config["attention_multiplier"] = None
    return config | {"logits_scaling": rng.choice([1.0, 0.5, 1.5])}


def nanochat(rng: random.Random) -> Config:
    config = with_rope(rng, whole_heads(rng)) | {"model_type": "nanochat"}
    extra = {
        "hidden_act": rng.choice(["relu2", "gelu", "silu"]),
        "attention_bias": rng.random() < 0.3,
        "final_logit_softcapping": rng.choice([None, 3.0, 15.0]),
    }
    return config | extra
