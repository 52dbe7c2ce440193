"""How GGUF files call tensors, and how Hugging Face's checkpoints do.

Source: llama.cpp's gguf-py/gguf/constants.py and tensor_mapping.py, and the graphs in src/models.
"""

from __future__ import annotations

import dataclasses

OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
# One tensor for all experts, whose number is {}.
EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
    """GGUF's names to Hugging Face's, without ``.weight`` and ``.bias``.

    layers: what stands before a layer's number. whole: names of a layer that have no such ending in one of
    the two. joined: modules whose rows one tensor has, in order.
    """

    layers: str = "model.layers"
    outside: dict[str, str] = dataclasses.field(default_factory=lambda: OUTSIDE)
    layer: dict[str, str] = dataclasses.field(default_factory=lambda: LAYER)
    experts: dict[str, str] = dataclasses.field(default_factory=lambda: EXPERTS)
    whole: dict[str, str] = dataclasses.field(default_factory=dict)
    joined: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


_GEMMA = Names(
    layer=LAYER
    | {
        "ffn_norm": "pre_feedforward_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
# Norms whose names say where they are: behind attention (OLMo 2), or between it and the feed-forward part.
_NAMED_NORMS = Names(
    layer=LAYER
    | {
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
_GPT_OSS = Names(
    layer=LAYER | {"ffn_gate_inp": "mlp.router", "post_attention_norm": "post_attention_layernorm"},
    whole={
        "attn_sinks.weight": "self_attn.sinks",
        "ffn_gate_exps.bias": "mlp.experts.gate_proj_bias",
        "ffn_up_exps.bias": "mlp.experts.up_proj_bias",
        "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
    },
)
_MIXTRAL = Names(
    layer=LAYER | {"ffn_gate_inp": "block_sparse_moe.gate"},
    experts={
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    },
)
# Attention in some layers and gated delta nets in others: Qwen3.5's names, also for Qwen3-Next.
_DELTA_NETS = Names(
    layer=LAYER
    | {
        "post_attention_norm": "post_attention_layernorm",
        "attn_qkv": "linear_attn.in_proj_qkv",
        "attn_gate": "linear_attn.in_proj_z",
        "ssm_beta": "linear_attn.in_proj_b",
        "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_conv1d": "linear_attn.conv1d",
        "ssm_norm": "linear_attn.norm",
        "ssm_out": "linear_attn.out_proj",
    },
    whole={"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"},
)
_FALCON_H1 = Names(
    outside=OUTSIDE | {"output_norm": "model.final_layernorm"},
    layer=LAYER
    | {
        "ffn_gate": "feed_forward.gate_proj",
        "ffn_up": "feed_forward.up_proj",
        "ffn_down": "feed_forward.down_proj",
        "ssm_in": "mamba.in_proj",
        "ssm_conv1d": "mamba.conv1d",
        "ssm_norm": "mamba.norm",
        "ssm_out": "mamba.out_proj",
    },
    whole={
        "ffn_norm": "pre_ff_layernorm.weight",
        "ssm_a": "mamba.A_log",
        "ssm_d": "mamba.D",
        "ssm_dt.bias": "mamba.dt_bias",
    },
)
# A layer is one of Mamba, attention, experts and a feed-forward part, each called the mixer.
_NEMOTRON_H = Names(
    outside={"token_embd": "model.embeddings", "output_norm": "model.norm_f", "output": "lm_head"},
    layer={
        "attn_norm": "norm",
        "attn_q": "mixer.q_proj",
        "attn_k": "mixer.k_proj",
        "attn_v": "mixer.v_proj",
        "attn_output": "mixer.o_proj",
        "ssm_in": "mixer.in_proj",
        "ssm_conv1d": "mixer.conv1d",
        "ssm_norm": "mixer.norm",
        "ssm_out": "mixer.out_proj",
        "ffn_up": "mixer.up_proj",
        "ffn_down": "mixer.down_proj",
        "ffn_gate_inp": "mixer.gate",
        "ffn_up_shexp": "mixer.shared_experts.up_proj",
        "ffn_down_shexp": "mixer.shared_experts.down_proj",
        "ffn_latent_down": "mixer.fc1_latent_proj",
        "ffn_latent_up": "mixer.fc2_latent_proj",
    },
    experts={"ffn_up_exps": "mixer.experts.{}.up_proj", "ffn_down_exps": "mixer.experts.{}.down_proj"},
    whole={
        "ssm_a": "mixer.A_log",
        "ssm_d": "mixer.D",
        "ssm_dt.bias": "mixer.dt_bias",
        "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
    },
)
_LFM2 = Names(
    outside={
        "token_embd": "model.embed_tokens",
        "token_embd_norm": "model.embedding_norm",  # behind the last layer, in spite of its name
        "output": "lm_head",
    },
    layer={
        "attn_norm": "operator_norm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "shortconv.conv": "conv.conv",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
        "ffn_gate_inp": "feed_forward.gate",
    },
    experts={
        "ffn_gate_exps": "feed_forward.experts.{}.w1",
        "ffn_up_exps": "feed_forward.experts.{}.w3",
        "ffn_down_exps": "feed_forward.experts.{}.w2",
    },
    whole={"exp_probs_b.bias": "feed_forward.expert_bias"},
)
_GPT2 = Names(
    layers="transformer.h",
    outside={
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    layer={
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
)
_GPT_NEOX = Names(
    layers="gpt_neox.layers",
    outside={
        "token_embd": "gpt_neox.embed_in",
        "output_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
    },
    layer={
        "attn_norm": "input_layernorm",
        "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
)
_PHI2 = Names(
    outside=OUTSIDE | {"output_norm": "model.final_layernorm"},
    layer={
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.dense",
        "ffn_up": "mlp.fc1",
        "ffn_down": "mlp.fc2",
    },
    joined={"attn_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
)
# general.architecture -> names; all others have `Names()`
NAMES = {
    "falcon-h1": _FALCON_H1,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "gpt-oss": _GPT_OSS,
    "gpt2": _GPT2,
    "gptneox": _GPT_NEOX,
    "lfm2": _LFM2,
    "lfm2moe": _LFM2,
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
    "olmo2": _NAMED_NORMS,
    "phi2": _PHI2,
    "phi3": Names(layer=LAYER | {"ffn_up": "mlp.gate_up_proj"}),
    "qwen35": _DELTA_NETS,
    "qwen35moe": _DELTA_NETS,
    "qwen3next": dataclasses.replace(
        _DELTA_NETS, joined={"ssm_ba": ("linear_attn.in_proj_b", "linear_attn.in_proj_a")}
    ),
    "seed_oss": _NAMED_NORMS,
}


def names_of(architecture: str, *, experts: bool) -> Names:
    """The names of an architecture; "llama" with ``experts`` is Mixtral."""
    return _MIXTRAL if architecture == "llama" and experts else NAMES.get(architecture, Names())
