"""Configurations of every family, drawn at random: each option of config.json takes all its values."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.armllm.models import decoder_configs, expert_configs, gemma_configs, recurrent_configs
from tests.armllm.models.decoder_configs import VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.armllm.models.rope_configs import Config


def random_config(architecture: str, seed: int) -> Config:
    """A small config.json of this family; the same seed gives the same one."""
    rng = random.Random(f"{architecture} {seed}")  # noqa: S311 - test data
    config = {"architectures": [architecture], "vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1}
    return config | FAMILIES[architecture](rng)


FAMILIES: dict[str, Callable[[random.Random], Config]] = {
    "Llama4ForCausalLM": expert_configs.llama4,
    "LlamaForCausalLM": decoder_configs.llama,
    "Ministral3ForCausalLM": decoder_configs.ministral3,
    "MinistralForCausalLM": decoder_configs.ministral,
    "MistralForCausalLM": decoder_configs.mistral,
    "PhimoeForCausalLM": expert_configs.phimoe,
    "Qwen2ForCausalLM": decoder_configs.qwen2,
    "Qwen3ForCausalLM": decoder_configs.qwen3,
    "SmolLM3ForCausalLM": decoder_configs.smollm3,
    "OPTForCausalLM": decoder_configs.opt,
    "Gemma2ForCausalLM": gemma_configs.gemma2,
    "Gemma3ForCausalLM": gemma_configs.gemma3,
    "Gemma3nForCausalLM": gemma_configs.gemma3n,
    "Gemma4ForCausalLM": gemma_configs.gemma4,
    "Gemma4UnifiedForCausalLM": gemma_configs.gemma4_unified,
    "GPT2LMHeadModel": decoder_configs.gpt2,
    "GPTJForCausalLM": decoder_configs.gptj,
    "GPTNeoXForCausalLM": decoder_configs.gpt_neox,
    "PhiForCausalLM": decoder_configs.phi,
    "Phi3ForCausalLM": decoder_configs.phi3,
    "MixtralForCausalLM": expert_configs.mixtral,
    "Qwen2MoeForCausalLM": expert_configs.qwen2_moe,
    "Qwen3MoeForCausalLM": expert_configs.qwen3_moe,
    "Lfm2ForCausalLM": recurrent_configs.lfm2,
    "Lfm2MoeForCausalLM": recurrent_configs.lfm2_moe,
    "Lfm3ForCausalLM": recurrent_configs.lfm3,
    "Qwen3NextForCausalLM": recurrent_configs.qwen3_next,
    "Qwen3_5ForCausalLM": recurrent_configs.qwen3_5,
    "Qwen3_5MoeForCausalLM": recurrent_configs.qwen3_5_moe,
    "OlmoeForCausalLM": expert_configs.olmoe,
    "GemmaForCausalLM": gemma_configs.gemma,
    "Olmo2ForCausalLM": decoder_configs.olmo2,
    "Olmo3ForCausalLM": decoder_configs.olmo3,
    "GraniteForCausalLM": decoder_configs.granite,
    "SeedOssForCausalLM": decoder_configs.seed_oss,
    "Ernie4_5ForCausalLM": decoder_configs.ernie4_5,
    "Ernie4_5_MoeForCausalLM": expert_configs.ernie4_5_moe,
    "GlmForCausalLM": decoder_configs.glm,
    "Glm4ForCausalLM": decoder_configs.glm4,
    "ArceeForCausalLM": decoder_configs.arcee,
    "Starcoder2ForCausalLM": decoder_configs.starcoder2,
    "StableLmForCausalLM": decoder_configs.stablelm,
    "CohereForCausalLM": decoder_configs.cohere,
    "Cohere2ForCausalLM": decoder_configs.cohere2,
    "Cohere2MoeForCausalLM": expert_configs.cohere2_moe,
    "Exaone4ForCausalLM": decoder_configs.exaone4,
    "ExaoneMoeForCausalLM": expert_configs.exaone_moe,
    "FalconForCausalLM": decoder_configs.falcon,
    "GraniteMoeForCausalLM": expert_configs.granite_moe,
    "GraniteMoeSharedForCausalLM": expert_configs.granite_moe_shared,
    "GraniteMoeHybridForCausalLM": recurrent_configs.granite_hybrid,
    "Glm4MoeForCausalLM": expert_configs.glm4_moe,
    "DeepseekV2ForCausalLM": expert_configs.deepseek_v2,
    "DeepseekV3ForCausalLM": expert_configs.deepseek_v3,
    "Glm4MoeLiteForCausalLM": expert_configs.glm4_moe_lite,
    "DeepseekV32ForCausalLM": expert_configs.deepseek_v32,
    "GlmMoeDsaForCausalLM": expert_configs.glm_moe_dsa,
    "MiniCPM3ForCausalLM": decoder_configs.minicpm3,
    "InternLM3ForCausalLM": decoder_configs.internlm3,
    "GptOssForCausalLM": expert_configs.gpt_oss,
    "ApertusForCausalLM": decoder_configs.apertus,
    "CwmForCausalLM": decoder_configs.cwm,
    "Dots1ForCausalLM": expert_configs.dots1,
    "FlexOlmoForCausalLM": expert_configs.flex_olmo,
    "GraniteSWAForCausalLM": decoder_configs.granite_swa,
    "GraniteMoeSWAForCausalLM": expert_configs.granite_moe_swa,
    "HeliumForCausalLM": decoder_configs.helium,
    "HunYuanDenseV1ForCausalLM": decoder_configs.hunyuan,
    "HunYuanMoEV1ForCausalLM": expert_configs.hunyuan_moe,
    "MiniMaxM2ForCausalLM": expert_configs.minimax_m2,
    "NemotronForCausalLM": decoder_configs.nemotron,
    "YoutuForCausalLM": decoder_configs.youtu,
    "VaultGemmaForCausalLM": gemma_configs.vaultgemma,
    "SolarOpenForCausalLM": expert_configs.solar_open,
    "FalconH1ForCausalLM": recurrent_configs.falcon_h1,
    "NemotronHForCausalLM": recurrent_configs.nemotron_h,
    "OlmoForCausalLM": decoder_configs.olmo,
    "AfmoeForCausalLM": expert_configs.afmoe,
    "Jais2ForCausalLM": decoder_configs.jais2,
    "HyperCLOVAXForCausalLM": decoder_configs.hyperclovax,
    "NanoChatForCausalLM": decoder_configs.nanochat,
}

RECURRENT = {
    "FalconH1ForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "Lfm2ForCausalLM",
    "Lfm2MoeForCausalLM",
    "Lfm3ForCausalLM",
    "NemotronHForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
}

LINEAR_ROPE = {"rope_type": "linear", "factor": 4.0}
VARIANTS: list[tuple[str, Config]] = [
    ("FalconForCausalLM", {"alibi": True}),
    ("FalconForCausalLM", {"alibi": True, "multi_query": True, "parallel_attn": True}),
    *(
        (f"{name}ForCausalLM", {"head_dim": 24})
        for name in ("Cohere", "Cohere2", "DeepseekV2", "Ernie4_5_Moe", "MiniCPM3", "Olmo3")
    ),
    *((f"{name}ForCausalLM", {"head_dim": 24}) for name in ("Phi3", "Qwen2", "Qwen2Moe", "SmolLM3")),
    *(
        (f"{name}ForCausalLM", {"rope_parameters": LINEAR_ROPE | {"rope_theta": 300.0}})
        for name in ("Phimoe", "Qwen2", "Starcoder2")
    ),
    *(
        (f"{name}ForCausalLM", {"rope_theta": 300.0})
        for name in ("Gemma3", "Glm", "InternLM3", "Lfm2", "Phi3")
    ),
    *((f"{name}ForCausalLM", {"rope_scaling": LINEAR_ROPE}) for name in ("Glm", "InternLM3", "Lfm2")),
    *((f"{name}ForCausalLM", {"hidden_act": "gelu"}) for name in ("Gemma2", "Gemma3", "Gemma3n", "Gemma4")),
    ("Gemma4UnifiedForCausalLM", {"hidden_act": "gelu"}),
    *((f"{name}ForCausalLM", {"intermediate_size": 40}) for name in ("Falcon", "GPTJ", "Qwen3_5Moe")),
    ("Ernie4_5_MoeForCausalLM", {"num_experts_per_tok": 1}),
    ("FalconForCausalLM", {"num_key_value_heads": 1}),
    ("Gemma3ForCausalLM", {"rope_local_base_freq": 500.0}),
    ("Gemma3nForCausalLM", {"altup_coef_clip": 0.5}),
    ("Gemma3nForCausalLM", {"altup_lr_multiplier": 0.5}),
    ("GraniteMoeHybridForCausalLM", {"mamba_chunk_size": 8}),
    ("GraniteMoeHybridForCausalLM", {"mamba_d_head": 16}),
    ("AfmoeForCausalLM", {"global_attn_every_n_layers": 2}),
    ("FalconH1ForCausalLM", {"mamba_chunk_size": 8}),
    ("FalconH1ForCausalLM", {"mamba_d_head": 16, "mamba_n_heads": 4, "mamba_d_ssm": 64}),
    ("NemotronHForCausalLM", {"conv_kernel": 3, "mamba_d_conv": 3}),
    ("NemotronHForCausalLM", {"mamba_conv_bias": False}),
    ("NemotronHForCausalLM", {"mamba_dt_min": 0.3}),
    ("NemotronHForCausalLM", {"mamba_n_groups": 1, "n_groups": 1}),
    ("NemotronHForCausalLM", {"rescale_prenorm_residual": False}),
    ("NemotronHForCausalLM", {"rope_theta": 300.0}),
    ("OlmoForCausalLM", {"rms_norm_eps": 0.01}),
    ("SolarOpenForCausalLM", {"intermediate_size": 40}),
    ("VaultGemmaForCausalLM", {"hidden_act": "gelu"}),
    ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0]}),
    ("SmolLM3ForCausalLM", {"mlp_bias": True}),
]
"""Options that chance gives to none of the first configurations."""
