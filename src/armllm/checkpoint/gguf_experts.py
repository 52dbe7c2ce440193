"""Experts in GGUF files, where each of a layer's three matrices is one tensor for all of them.

Source of names and conventions: llama.cpp's gguf-py/gguf/tensor_mapping.py, convert_hf_to_gguf.py, and the
graphs in src/models (whether the weights of the chosen experts sum to one is not in older files).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from armllm.checkpoint.gguf_file import GGUFFile

# general.architecture -> ours; "llama" with experts is Mixtral
ARCHITECTURES = {
    "gpt-oss": "GptOssForCausalLM",
    "llama": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
NORMALIZED = ("qwen3moe",)
# of one tensor each
LAYER = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
MIXTRAL_LAYER = {"ffn_gate_inp": "block_sparse_moe.gate"}
MIXTRAL_EXPERTS = {
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}


GPT_OSS_LAYER = {"ffn_gate_inp": "mlp.router", "post_attention_norm": "post_attention_layernorm"}


def layer_names(architecture: str) -> tuple[dict[str, str], dict[str, str]]:
    """Names of a layer's tensors, and of those that hold all experts, a number for {}."""
    if architecture == "gpt-oss":
        return GPT_OSS_LAYER, EXPERTS
    return (MIXTRAL_LAYER, MIXTRAL_EXPERTS) if architecture == "llama" else (LAYER, EXPERTS)


def expert_fields(file: GGUFFile) -> dict[str, Any]:
    """What config.json says of experts; nothing for a file without."""
    count = file.own("expert_count")
    if not count:
        return {}
    if file.architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: GGUF files with experts are only supported for {', '.join(ARCHITECTURES)}"
        )
    stacked = file.tensors.get("blk.0.ffn_gate_exps.weight")
    if stacked is None or len(stacked.shape) != 3:
        raise CheckpointError(
            f"{file.path}: blk.0.ffn_gate_exps.weight is missing or not of three dimensions; old"
            " files, with a tensor for each expert, are not supported"
        )
    size = stacked.shape[1]
    fields = {
        "architectures": [ARCHITECTURES[file.architecture]],
        "num_experts_per_tok": file.own("expert_used_count"),
        "num_local_experts" if file.architecture in ("gpt-oss", "llama") else "num_experts": count,
        "moe_intermediate_size" if file.architecture.startswith("qwen") else "intermediate_size": size,
    }
    if file.architecture not in ("gpt-oss", "llama"):
        fields["norm_topk_prob"] = bool(file.own("expert_weights_norm", file.architecture in NORMALIZED))
    if file.architecture == "olmoe":
        fields["clip_qkv"] = file.own("attention.clamp_kqv")
    shared = file.tensors.get("blk.0.ffn_gate_shexp.weight")
    if shared is not None:
        fields["shared_expert_intermediate_size"] = shared.shape[0]
    return fields
