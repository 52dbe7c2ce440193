"""config.json with every key that published checkpoints have, sizes cut down: logits are transformers'."""

from __future__ import annotations

import pytest
from tests.armllm.models.reference import Spy, check_logits, random_prompts, save_reference

from armllm import LLM

COMMON = {"attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True, "torch_dtype": "bfloat16"}
TOKENS = {"vocab_size": 400, "bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 128}
SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 32.0, "original_max_position_embeddings": 16}
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 16,
    "hidden_act": "silu",
    "initial_context_length": 16,
    "intermediate_size": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "model_type": "gpt_oss",
    "num_experts_per_tok": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": YARN | {"rope_type": "yarn", "truncate": False},
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 16,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "aux_loss_alpha": 0.001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "intermediate_size": 96,
    "kv_lora_rank": 32,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 24,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_experts_per_tok": 6,
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": YARN | {"factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707, "type": "yarn"},
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "v_head_dim": 16,
}
QWEN3_NEXT_80B = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "intermediate_size": 96,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "num_experts": 16,
    "num_experts_per_tok": 10,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-2,  # published as 1e-6, by which transformers' own chunks and steps are 1e-3 apart
    "rope_scaling": None,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 16,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}
GRANITE_4_H_TINY = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "attention_bias": False,
    "attention_multiplier": 0.0625,
    "embedding_multiplier": 12,
    "hidden_act": "silu",
    "intermediate_size": 32,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "logits_scaling": 6,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 8,
    "mamba_proj_bias": False,
    "model_type": "granitemoehybrid",
    "normalization_function": "rmsnorm",
    "num_experts_per_tok": 6,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-2,  # as above
    "rope_scaling": None,
    "rope_theta": 10000,
    "router_aux_loss_coef": 0.01,
    "shared_intermediate_size": 48,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    "published",
    [GPT_OSS_20B, DEEPSEEK_V2_LITE, QWEN3_NEXT_80B, GRANITE_4_H_TINY],
    ids=lambda config: config["model_type"],
)
def test_logits_are_those_of_transformers(tmp_path, published):
    """Catches a key of a published file that is refused, or taken for something else."""
    config = COMMON | TOKENS | SIZES | published
    model = save_reference(tmp_path, config, 0)
    llm = Spy(LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, max_num_batched_tokens=50))
    check_logits(llm, model, random_prompts((1, 30, 70), 0), 6, config)
