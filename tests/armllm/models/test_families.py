"""What families add to config.json is honored or refused by name."""

from __future__ import annotations

import json
import shutil

import pytest
import transformers
from tests.armllm.models.random_configs import FAMILIES, random_config
from tests.armllm.models.small_configs import FULL, REQUIRED, SLIDING, SMALL, read

from armllm import LLM
from armllm.checkpoint.config import ConfigReader
from armllm.errors import CheckpointError, RequestError
from armllm.models import BOTH_WAYS, model_class, read_model_config
from armllm.models import FAMILIES as REGISTERED

# their text models are tested, and what is around them in test_checkpoint_forms.py
SEEING = {name for name in REGISTERED if name.endswith("ForConditionalGeneration")}
# their authors publish the classes; test_renamed_families.py compares them with what they are made of
PUBLISHED_APART = {"ExaoneForCausalLM", "InternLM2ForCausalLM", "MiniCPMForCausalLM"}
EPSILONS = ("rms_norm_eps", "norm_eps", "layer_norm_eps", "norm_epsilon", "layer_norm_epsilon")
FIXED_EPSILON = {"OlmoForCausalLM": 1e-5}  # no key of config.json
LATENT = {"DeepseekV2ForCausalLM": 192, "DeepseekV3ForCausalLM": 192}
LATENT |= {"DeepseekV32ForCausalLM": 192, "GlmMoeDsaForCausalLM": 256}
LATENT |= {"Glm4MoeLiteForCausalLM": 256, "MiniCPM3ForCausalLM": 96, "YoutuForCausalLM": 192}


@pytest.mark.parametrize(
    ("architecture", "values", "words"),
    [
        ("Qwen2ForCausalLM", {"layer_types": [SLIDING, FULL]}, "there is no sliding_window"),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": "x"}, "max_window_layers"),
        ("Qwen2ForCausalLM", {"layer_types": [FULL, "linear_attention"]}, "'linear_attention'"),
        (
            "MinistralForCausalLM",
            {"sliding_window": None, "layer_types": [SLIDING, FULL]},
            "there is no sliding_window",
        ),
        (
            "Ministral3ForCausalLM",
            {"rope_parameters": {"rope_theta": 1e6}},
            "scaling_beta is missing",
        ),
        ("MistralForCausalLM", {"sliding_window": 0}, "sliding_window must be a positive integer"),
        ("Gemma2ForCausalLM", {"sliding_window": None}, "there is no sliding_window"),
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("Gemma2ForCausalLM", {"hidden_activation": "tanh"}, "hidden_activation 'tanh'"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ("Gemma3ForCausalLM", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters must hold"),
        ("Gemma3ForCausalLM", {"_sliding_window_pattern": 3}, "_sliding_window_pattern 3"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1]}, "no_rope_layers must be a list of 2"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, [2]]}, "no_rope_layers must be a list of 2"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2}}, "'linear' is not supported"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ("NemotronForCausalLM", {"rope_percent": 0.5, "partial_rotary_factor": 1.0}, "partial_rotary_factor"),
        ("Phi3ForCausalLM", {"full_attn_mod": 2}, "full_attn_mod 2"),
        ("PhimoeForCausalLM", {"num_experts_per_tok": 3}, "num_experts_per_tok 3 is not supported, only 2"),
        ("PhimoeForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2}}, "'linear' is not supported"),
        ("Gemma4ForCausalLM", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all'"),
        ("Gemma4ForCausalLM", {"num_kv_shared_layers": 2}, "num_kv_shared_layers must be a number"),
        ("Gemma4ForCausalLM", {"num_kv_shared_layers": 1}, "leaves a kind of layers without"),
        (
            "Gemma4ForCausalLM",
            {"per_layer_config": {"0": {"head_dim": 8}}},
            "must have the layers of full_attention",
        ),
        ("Gemma3nForCausalLM", {"num_kv_shared_layers": 2}, "num_kv_shared_layers must be a number"),
        ("Gemma3nForCausalLM", {"query_pre_attn_scalar": 128}, "query_pre_attn_scalar 128 is not supported"),
        ("Gemma3nForCausalLM", {"altup_num_inputs": 1}, "there must be 2 streams or more"),
        ("Gemma3nForCausalLM", {"altup_active_idx": 4}, "altup_active_idx 4 of altup_num_inputs 4"),
        ("Gemma3nForCausalLM", {"intermediate_size": [8]}, "intermediate_size must be a list of 2"),
        ("Gemma3nForCausalLM", {"activation_sparsity_pattern": [0.5, 1.0]}, "activation_sparsity_pattern"),
        ("Gemma4ForCausalLM", {"vocab_size_per_layer_input": 8}, "is below vocab_size 400"),
        ("Llama4ForCausalLM", {"attention_chunk_size": None}, "there is no attention_chunk_size"),
        ("Llama4ForCausalLM", {"layer_types": [FULL, SLIDING]}, "only full_attention and chunked_attention"),
        ("Llama4ForCausalLM", {"no_rope_layers": [1]}, "no_rope_layers must be a list of 2"),
        ("Llama4ForCausalLM", {"moe_layers": [True]}, "moe_layers must be a list of numbers of layers"),
        ("Llama4ForCausalLM", {"attn_temperature_tuning": "on"}, "attn_temperature_tuning must be true"),
        ("Llama4ForCausalLM", {"num_experts_per_tok": 17}, "num_experts_per_tok 17 is above the number"),
        ("Gemma4ForCausalLM", {"enable_moe_block": True}, "num_experts is missing"),
        ("Qwen3_5ForCausalLM", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        (
            "Qwen3_5ForCausalLM",
            {"output_gate_type": "sigmoid"},
            "output_gate_type 'sigmoid' is not supported",
        ),
        ("Qwen3NextForCausalLM", {"attn_output_gate": False}, "attn_output_gate False is not supported"),
        ("Qwen3_5MoeForCausalLM", {"norm_topk_prob": False}, "norm_topk_prob False is not supported"),
        ("Qwen3_5ForCausalLM", {"linear_num_key_heads": 3}, "is not a multiple of linear_num_key_heads 3"),
        ("Qwen3_5ForCausalLM", {"layer_types": [SLIDING, FULL]}, "only full_attention and linear_attention"),
        ("Qwen3NextForCausalLM", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim 1"),
        ("GptOssForCausalLM", {"sliding_window": None}, "there is no sliding_window"),
        ("GptOssForCausalLM", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ("GptOssForCausalLM", {"swiglu_limit": 0}, "swiglu_limit must be a positive number"),
        ("GptOssForCausalLM", {"num_local_experts": 3}, "num_experts_per_tok 4 is above the number"),
        ("MixtralForCausalLM", {"num_local_experts": 2, "num_experts_per_tok": 3}, "is above the number"),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": 1}, "mlp_only_layers must be a list"),
        ("Qwen3MoeForCausalLM", {"use_qk_norm": False}, "use_qk_norm False is not supported"),
        ("ApertusForCausalLM", {"qk_norm": False}, "qk_norm False is not supported"),
        ("Qwen3MoeForCausalLM", {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not known"),
        ("Qwen2MoeForCausalLM", {"routed_scaling_factor": 2.5}, "routed_scaling_factor 2.5 is not known"),
        ("GemmaForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ("GemmaForCausalLM", {"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not known"),
        ("Dots1ForCausalLM", {"n_routed_experts": None}, "n_routed_experts is missing"),
        ("Dots1ForCausalLM", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ("HeliumForCausalLM", {"head_dim": 16}, "hidden_size is not num_attention_heads times head_dim"),
        ("HunYuanDenseV1ForCausalLM", {"use_qk_norm": False}, "use_qk_norm False is not supported"),
        ("HunYuanDenseV1ForCausalLM", {"use_cla": True}, "use_cla True is not supported"),
        (
            "HunYuanDenseV1ForCausalLM",
            {"rope_scaling": {"type": "dynamic", "alpha": -1}},
            "rope_scaling.alpha must be a positive number",
        ),
        ("HunYuanMoEV1ForCausalLM", {"moe_topk": [1, 2]}, "moe_topk must be a positive integer"),
        ("HunYuanMoEV1ForCausalLM", {"moe_layer_num_skipped": 1}, "moe_layer_num_skipped 1"),
        ("HunYuanMoEV1ForCausalLM", {"moe_intermediate_size": 8}, "moe_intermediate_size 8"),
        ("MiniMaxM2ForCausalLM", {"attn_type_list": [0, 1]}, "attn_type_list [0, 1] is not supported"),
        ("MiniMaxM2ForCausalLM", {"rotary_dim": 300}, "partial_rotary_factor turns 300 of 128"),
        ("MiniMaxM2ForCausalLM", {"qk_norm_type": "per_head"}, "qk_norm_type 'per_head'"),
        ("GPT2LMHeadModel", {"n_embd": 32}, "hidden_size 64 is not supported, only 32"),
        ("GPT2LMHeadModel", {"n_layer": -1}, "n_layer must be a positive integer"),
        ("GPT2LMHeadModel", {"add_cross_attention": True}, "add_cross_attention True is not supported"),
        ("GPT2LMHeadModel", {"num_key_value_heads": 1}, "num_key_value_heads 1 is not supported"),
        ("GPT2LMHeadModel", {"rope_theta": 500.0}, "rope_theta 500.0 is not known"),
        ("GPTJForCausalLM", {"rotary_dim": 4}, "rotary_dim 4 is odd or above 2"),
        ("GPTJForCausalLM", {"rope_theta": 500.0}, "rope_theta 500.0 is not known"),
        ("GPTNeoXForCausalLM", {"rope_theta": 500.0}, "rope_theta 500.0 is not supported, only 10000.0"),
        ("GPTNeoXForCausalLM", {"num_key_value_heads": 1}, "num_key_value_heads 1 is not supported"),
        ("GPTNeoXForCausalLM", {"rotary_pct": 1.5}, "partial_rotary_factor turns 12 of 8"),
        ("Lfm2ForCausalLM", {"conv_L_cache": 1}, "conv_L_cache 1 is not supported, only 2 to"),
        ("Lfm2ForCausalLM", {"block_ffn_dim_multiplier": 1e-9}, "leaves nothing of 96"),
        ("Lfm2ForCausalLM", {"full_attn_idxs": 1}, "full_attn_idxs must be a list"),
        ("Lfm2ForCausalLM", {"layer_types": [FULL, "mamba"]}, "only full_attention and conv"),
        ("Lfm2MoeForCausalLM", {"layer_types": None}, "layer_types is missing"),
        ("Lfm2MoeForCausalLM", {"num_dense_layers": -1}, "num_dense_layers must be a positive integer"),
        ("Lfm2MoeForCausalLM", {"num_experts_per_tok": 33}, "num_experts_per_tok 33 is above"),
        ("Lfm3ForCausalLM", {"layer_types": [FULL, "mamba"]}, "full_attention, sliding_attention and conv"),
        (
            "Lfm3ForCausalLM",
            {"layer_types": [FULL, SLIDING], "sliding_window": None},
            "there is no sliding_window",
        ),
        ("Lfm3ForCausalLM", {"rope_parameters": {"conv": {}}}, "must hold the objects full_attention and"),
        ("YoutuForCausalLM", {"mlp_bias": True}, "mlp_bias True is not supported"),
        ("GraniteSWAForCausalLM", {"layer_rope_theta": [1.0]}, "layer_rope_theta must be a list of 2"),
        ("GraniteSWAForCausalLM", {"layer_rope_theta": [0, "x"]}, "layer_rope_theta must be a positive"),
        ("GraniteSWAForCausalLM", {"sliding_window": None}, "there is no sliding_window"),
        ("GraniteForCausalLM", {"residual_multiplier": 0}, "residual_multiplier must be a positive number"),
        ("GraniteForCausalLM", {"attention_multiplier": None}, "attention_multiplier null is not supported"),
        ("GraniteMoeHybridForCausalLM", {"attention_multiplier": None}, "attention_multiplier null is not"),
        ("GlmForCausalLM", {"partial_rotary_factor": 0.001}, "partial_rotary_factor turns 0 of 128"),
        ("Olmo2ForCausalLM", {"clip_qkv": 8.0}, "clip_qkv 8.0 is not known"),
        ("Olmo2ForCausalLM", {"layer_types": [SLIDING, FULL]}, "layer_types other than one kind"),
        ("FalconForCausalLM", {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn"),
        ("FalconForCausalLM", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn 2"),
        ("FalconForCausalLM", {"new_decoder_architecture": True, "num_kv_heads": 5}, "num_kv_heads 5"),
        ("FalconForCausalLM", {"num_attention_heads": 3}, "hidden_size is not"),
        ("StableLmForCausalLM", {"head_dim": 16}, "hidden_size is not"),
        ("Cohere2ForCausalLM", {"sliding_window": None}, "there is no sliding_window"),
        ("Cohere2ForCausalLM", {"_sliding_window_pattern": 3}, "_sliding_window_pattern 3"),
        ("Cohere2ForCausalLM", {"rotary_pct": 0.5}, "rotary_pct 0.5 is not supported"),
        ("Cohere2ForCausalLM", {"use_parallel_block": False}, "use_parallel_block False"),
        ("Cohere2ForCausalLM", {"use_qk_norm": True}, "use_qk_norm True is not known"),
        ("Cohere2MoeForCausalLM", {"expert_selection_fn": "tanh"}, "expert_selection_fn 'tanh'"),
        ("Cohere2MoeForCausalLM", {"mlp_layer_types": ["dense"]}, "mlp_layer_types must be a list of 2"),
        ("Cohere2MoeForCausalLM", {"num_experts_per_tok": 9}, "num_experts_per_tok 9 is above"),
        ("Cohere2MoeForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling {"),
        (
            "Cohere2MoeForCausalLM",
            {"shared_expert_combination_strategy": "max"},
            "shared_expert_combination_strategy 'max'",
        ),
        ("ExaoneMoeForCausalLM", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ("ExaoneMoeForCausalLM", {"mlp_layer_types": [1, 2]}, "mlp_layer_types must be a list of 2"),
        ("ExaoneMoeForCausalLM", {"n_group": 3}, "n_group 3 does not cut 64 experts"),
        ("GraniteMoeSWAForCausalLM", {"layer_rope_theta": [1.0]}, "layer_rope_theta must be a list of 2"),
        ("GraniteMoeSWAForCausalLM", {"num_local_experts": 1}, "num_experts_per_tok 2 is above"),
        ("Exaone4ForCausalLM", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern must be"),
        ("Glm4MoeForCausalLM", {"n_group": 3}, "n_group 3 does not cut 128 experts"),
        ("Glm4MoeForCausalLM", {"n_group": 64, "topk_group": 3}, "topk_group 3 of 64 leaves too few"),
        ("Glm4MoeForCausalLM", {"first_k_dense_replace": -1}, "first_k_dense_replace must be a positive"),
        ("GraniteMoeHybridForCausalLM", {"layer_types": ["mamba", "window"]}, "layer_types 'window' is not"),
        ("GraniteMoeHybridForCausalLM", {"mamba_n_heads": 48}, "are not mamba_expand times hidden_size, 128"),
        ("GraniteMoeHybridForCausalLM", {"mamba_n_groups": 3}, "mamba_n_groups 3 does not divide them"),
        ("GraniteMoeHybridForCausalLM", {"time_step_limit": [0.1, 1.0]}, "time_step_limit [0.1, 1.0]"),
        ("GraniteMoeSharedForCausalLM", {"shared_intermediate_size": -1}, "shared_intermediate_size must be"),
        ("GraniteMoeForCausalLM", {"num_local_experts": 1}, "num_experts_per_tok 2 is above"),
        ("Ernie4_5_MoeForCausalLM", {"moe_k": 65}, "moe_k 65 is above the number of experts, 64"),
        ("Ernie4_5_MoeForCausalLM", {"moe_layer_start_index": -1}, "moe_layer_start_index must be"),
        ("DeepseekV2ForCausalLM", {"num_experts_per_tok": None}, "num_experts_per_tok is missing"),
        ("DeepseekV2ForCausalLM", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported"),
        ("DeepseekV2ForCausalLM", {"topk_method": "group_limited_greedy"}, "n_group is missing"),
        ("DeepseekV2ForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob True is not supported"),
        ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ("DeepseekV3ForCausalLM", {"num_key_value_heads": 8}, "num_key_value_heads must be"),
        ("DeepseekV32ForCausalLM", {"layer_types": [FULL] * 2}, "layer_types ['full_attention'"),
        ("DeepseekV32ForCausalLM", {"rope_interleave": False}, "rope_interleave False is not supported"),
        ("DeepseekV32ForCausalLM", {"q_lora_rank": None}, "q_lora_rank null is not supported"),
        ("DeepseekV32ForCausalLM", {"index_topk": 0}, "index_topk must be a positive integer"),
        ("GlmMoeDsaForCausalLM", {"mlp_layer_types": ["dense"]}, "mlp_layer_types must be a list of 2"),
        ("Glm4MoeLiteForCausalLM", {"mlp_layer_types": ["dense"]}, "mlp_layer_types must be a list of 2"),
        ("Glm4MoeLiteForCausalLM", {"first_k_dense_replace": 2}, "first_k_dense_replace 2 is not supported"),
        ("MiniCPM3ForCausalLM", {"num_key_value_heads": 8}, "num_key_value_heads must be"),
        ("MiniCPMForCausalLM", {"num_experts": 8}, "num_experts 8 is not supported"),
        ("MiniCPMForCausalLM", {"sparse_config": {"dense_len": -1}}, "sparse_config.dense_len must be"),
        ("MiniCPMForCausalLM", {"sparse_config": {"dense_len": 1}}, "dense_len 1 leaves no text"),
        ("InternLM3ForCausalLM", {"bias": 1}, "bias must be true or false"),
        ("Olmo3ForCausalLM", {"sliding_window": None}, "there is no sliding_window"),
        ("Olmo3ForCausalLM", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters must hold"),
        ("OlmoeForCausalLM", {"clip_qkv": -1}, "clip_qkv must be a positive number"),
        ("AfmoeForCausalLM", {"sliding_window": None}, "there is no sliding_window"),
        ("AfmoeForCausalLM", {"route_norm": False}, "route_norm False is not supported"),
        ("AfmoeForCausalLM", {"n_group": 2}, "n_group 2 is not supported"),
        ("AfmoeForCausalLM", {"num_experts_per_tok": 65}, "num_experts_per_tok 65 is above"),
        ("HyperCLOVAXForCausalLM", {"residual_multiplier": 0}, "residual_multiplier must be a positive"),
        ("Jais2ForCausalLM", {"hidden_act": "tanh"}, "hidden_act 'tanh' is not supported"),
        (
            "NanoChatForCausalLM",
            {"final_logit_softcapping": -1},
            "final_logit_softcapping must be a positive",
        ),
        ("OlmoForCausalLM", {"clip_qkv": -1}, "clip_qkv must be a positive number"),
        ("VaultGemmaForCausalLM", {"sliding_window": None}, "there is no sliding_window"),
        ("SolarOpenForCausalLM", {"first_k_dense_replace": 1}, "first_k_dense_replace 1 is not supported"),
        ("SolarOpenForCausalLM", {"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1.0"),
        ("SolarOpenForCausalLM", {"n_group": 3}, "n_group 3 does not cut 128 experts"),
        ("SolarOpenForCausalLM", {"use_qk_norm": True}, "use_qk_norm True is not known"),
        ("FalconH1ForCausalLM", {"mamba_n_heads": 48}, "mamba_n_heads 48 of 21 are not"),
        ("FalconH1ForCausalLM", {"ssm_multipliers": [1.0]}, "ssm_multipliers must be a list of 5 numbers"),
        ("FalconH1ForCausalLM", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ("FalconH1ForCausalLM", {"key_multiplier": 0}, "key_multiplier must be a positive number"),
        ("FalconH1ForCausalLM", {"time_step_limit": [0.1, 1.0]}, "time_step_limit [0.1, 1.0]"),
        ("NemotronHForCausalLM", {"num_hidden_layers": 3}, "num_hidden_layers 3 is not supported, only 2"),
        ("NemotronHForCausalLM", {"layers_block_type": ["mamba", "gru"]}, "layers_block_type 'gru' is not"),
        (
            "NemotronHForCausalLM",
            {"layers_block_type": None, "hybrid_override_pattern": "MX"},
            "hybrid_override_pattern 'X' is not supported, only M, *, E, -",
        ),
        ("NemotronHForCausalLM", {"attention_bias": True}, "attention_bias True is not supported"),
        ("NemotronHForCausalLM", {"sliding_window": 8}, "sliding_window 8 is not supported"),
        ("NemotronHForCausalLM", {"n_groups": 3}, "mamba_num_heads 128 is not a multiple of n_groups 3"),
        ("NemotronHForCausalLM", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act 'gelu' is not supported"),
        ("NemotronHForCausalLM", {"time_step_limit": [0.1, 1.0]}, "time_step_limit [0.1, 1.0]"),
        ("OPTForCausalLM", {"ffn_dim": 8, "activation_function": "swiglu"}, "activation_function 'swiglu'"),
        ("OPTForCausalLM", {"ffn_dim": 8, "num_attention_heads": 3}, "hidden_size is not"),
        ("OPTForCausalLM", {"ffn_dim": 8, "num_key_value_heads": 4}, "num_key_value_heads 4"),
    ],
)
def test_what_a_family_cannot_honor_is_named(tmp_path, architecture, values, words):
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, architecture, **values)
    assert words in str(caught.value)


def test_a_key_for_drafts_changes_nothing_of_minicpm(tmp_path):
    """The model itself divides by the root of its layers, whatever the drafting model divides by."""
    plain = read(tmp_path, "MiniCPMForCausalLM", scale_depth=1.4)
    assert read(tmp_path, "MiniCPMForCausalLM", scale_depth=1.4, mup_denominator=32) == plain


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ({}, 256),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 512),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 128}}, 512),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32}}, 256),
        ({"rope_scaling": {"type": "dynamic", "factor": 4}}, 256),
    ],
)
def test_a_stretched_model_is_offered_as_long_as_it_is(tmp_path, values, limit):
    config = read(tmp_path, "LlamaForCausalLM", max_position_embeddings=256, **values)
    assert config.max_model_len == limit


@pytest.mark.parametrize(
    ("values", "limit"), [({}, 2048), ({"index_topk": 50}, 50), ({"index_topk": 900}, 256)]
)
@pytest.mark.parametrize("architecture", ["DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"])
def test_no_text_is_longer_than_what_an_indexer_leaves_whole(tmp_path, architecture, values, limit):
    """Catches texts whose tokens would see more than in transformers."""
    sizes = {"num_key_value_heads": 32, "max_position_embeddings": 256 if values else 163840}
    assert read(tmp_path, architecture, **sizes, **values).max_model_len == limit


@pytest.mark.parametrize("architecture", sorted(set(REGISTERED) - SEEING))
def test_a_model_that_sees_what_comes_later_is_refused(tmp_path, architecture):
    """transformers would let each token attend to all; true is what every decoder is."""
    read(tmp_path, architecture, is_causal=True)
    if architecture in BOTH_WAYS:  # GTE-Qwen2 calls itself so
        found = read(tmp_path, architecture, is_causal=False)
        assert found.is_encoder
        assert not found.generates
        return
    with pytest.raises(CheckpointError, match="is_causal False is not supported, only True"):
        read(tmp_path, architecture, is_causal=False)


def test_no_length_beyond_the_limit_is_taken(make_checkpoint):
    checkpoint = make_checkpoint()
    with pytest.raises(RequestError, match="is above 256"):
        LLM(checkpoint.folder, dtype="float32", max_model_len=257)


@pytest.mark.parametrize("architecture", sorted(set(REGISTERED) - SEEING - PUBLISHED_APART))
def test_defaults_are_those_of_transformers(tmp_path, architecture):
    """A missing key means what it means there; head_dim of Mixtral and such is a method's default."""
    small = SMALL | REQUIRED.get(architecture, {})
    latent = LATENT.get(architecture)  # keys and values of all heads are cached, padded
    if latent:
        small["num_key_value_heads"] = 32
    ours = read(tmp_path, architecture, **small)
    stem = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    text = stem in ("Gemma3", "Gemma3n", "Gemma4", "Gemma4Unified", "Llama4", "Qwen3_5", "Qwen3_5Moe")
    theirs = getattr(transformers, f"{stem}{'Text' * text}Config")(**small)
    if stem.startswith("Gemma4"):
        theirs.allow_global_per_layer_attribute_access = True
    assert ours.architecture == architecture
    shared = getattr(theirs, "multi_query", False)
    assert ours.num_kv_heads == getattr(theirs, "num_key_value_heads", 1 if shared else 32)
    head_dim = getattr(theirs, "head_dim", None) or small["hidden_size"] // 32
    assert ours.head_dim == (latent or head_dim)
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    named = theirs.eos_token_id  # a default that a small vocabulary does not have is none
    assert ours.eos_token_ids == ({named} if named in range(theirs.vocab_size) else frozenset())
    for name in ("num_experts_per_tok", "moe_intermediate_size", "clip_qkv"):
        assert (getattr(ours, name, None) or None) == getattr(theirs, name, None)
    theirs_eps = (getattr(theirs, name, None) for name in EPSILONS)
    eps = next(filter(None, theirs_eps), FIXED_EPSILON.get(architecture))
    assert getattr(ours, "rms_norm_eps", None) == eps
    if hasattr(theirs, "rope_parameters"):
        kinds = {**theirs.rope_parameters}
        assert ours.rope.theta == kinds.get("full_attention", kinds)["rope_theta"]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_config_says_the_same_after_transformers_has_rewritten_it(tmp_path, architecture):
    for seed in range(8):
        values = random_config(architecture, seed)
        (tmp_path / "config.json").write_text(json.dumps(values))
        _, before = read_model_config(tmp_path)
        rewritten = transformers.AutoConfig.for_model(**values)
        rewritten.architectures = [architecture]
        rewritten.save_pretrained(tmp_path)
        assert read_model_config(tmp_path)[1] == before


def test_nemotron_s_older_name_for_how_much_of_a_head_turns(tmp_path):
    """As vLLM reads it. Catches the default in its place."""
    shares = ({"rope_percent": 0.25}, {"partial_rotary_factor": 0.25}, {})
    older, newer, default = (read(tmp_path, "NemotronForCausalLM", head_dim=64, **share) for share in shares)
    assert older.rope == newer.rope != default.rope


def test_gemma_3_leaves_out_what_its_class_knows(tmp_path):
    """Its files on the hub hold six numbers; the others are the class's."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    values = {"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": text}
    reader = ConfigReader(values, tmp_path)
    ours = model_class(reader).read_config(reader)
    theirs = transformers.Gemma3TextConfig(**text)
    assert (ours.num_heads, ours.num_kv_heads, ours.head_dim) == (8, 4, 256)
    assert (ours.vocab_size, ours.max_model_len) == (theirs.vocab_size, 131072)
    assert (ours.rope.rope_type, ours.rope.factor, ours.local_rope.rope_type) == ("linear", 8.0, "default")
    assert ours.eos_token_ids == {1, 106}
    assert [window is not None for window in ours.windows] == [kind == SLIDING for kind in theirs.layer_types]


def test_every_architecture_is_found_by_its_model_type(tmp_path):
    assert len({family.model_type for family in REGISTERED.values()}) == len(REGISTERED)
    for architecture, (_, model_type) in REGISTERED.items():
        assert model_class(ConfigReader({"model_type": model_type}, tmp_path)).__name__ == architecture


def test_a_checkpoint_of_another_family_is_refused(make_checkpoint, tmp_path):
    """Qwen3 weights under Llama's name would run and say nonsense."""
    checkpoint = make_checkpoint(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=32)
    folder = shutil.copytree(checkpoint.folder, tmp_path / "model")
    config = (folder / "config.json").read_text().replace("Qwen3ForCausalLM", "LlamaForCausalLM")
    (folder / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"k_norm\.weight is not part of the model"):
        LLM(folder, dtype="float32")
