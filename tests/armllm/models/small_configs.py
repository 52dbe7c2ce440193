"""Small configurations of families, as their classes read them."""

from __future__ import annotations

from armllm.checkpoint.config import ConfigReader
from armllm.models import model_class

FULL, SLIDING = "full_attention", "sliding_attention"
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "vocab_size": 400,
}
# What the classes of some families have no default for.
REQUIRED = {
    "OPTForCausalLM": {"ffn_dim": 96},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 2},
    "Gemma3nForCausalLM": {"num_kv_shared_layers": 0},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", FULL]},
    "StableLmForCausalLM": {"hidden_size": 256},  # a quarter of each head turns
    "Glm4MoeForCausalLM": {"hidden_size": 256},
    "GPTJForCausalLM": {"rotary_dim": 2},
    "GPTNeoXForCausalLM": {"hidden_size": 256},
    "PhiForCausalLM": {"hidden_size": 256},
    "NemotronForCausalLM": {"hidden_size": 256, "num_key_value_heads": 32},
    "HyperCLOVAXForCausalLM": {"head_dim": 8},
    "NemotronHForCausalLM": {"layers_block_type": ["linear_attention", FULL]},
    "HeliumForCausalLM": {"head_dim": 2, "num_key_value_heads": 32},
    "Dots1ForCausalLM": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
}


def read(tmp_path, architecture, **values):
    """The configuration of a config.json, unknown keys refused."""
    required = REQUIRED.get(architecture, {})
    reader = ConfigReader({"architectures": [architecture], **SMALL, **required, **values}, tmp_path)
    config = model_class(reader).read_config(reader)
    reader.refuse_unknown()
    return config
