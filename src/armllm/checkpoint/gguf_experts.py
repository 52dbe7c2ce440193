"""What the header of a GGUF file says of experts, as config.json would say it.

Source of keys: llama.cpp's gguf-py/gguf/constants.py, its converter, and the graphs in src/models (whether
the weights of the chosen experts sum to one is not in older files).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from armllm.checkpoint.gguf_file import GGUFFile

# general.architecture -> ours; "llama" with experts is Mixtral
ARCHITECTURES = {
    "gpt-oss": "GptOssForCausalLM",
    "lfm2moe": "Lfm2MoeForCausalLM",
    "llama": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen35moe": "Qwen3_5MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "qwen3next": "Qwen3_5MoeForCausalLM",
}
NORMALIZED = ("lfm2moe", "qwen35moe", "qwen3moe", "qwen3next")
SOFTMAX, SIGMOID = 1, 2  # llama.cpp's numbers of what makes weights of scores


def expert_fields(file: GGUFFile) -> dict[str, Any]:
    """What config.json says of experts; nothing for a file without."""
    count = file.own("expert_count")
    if not count:
        return {}
    if file.architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: GGUF files with experts are only supported for {', '.join(ARCHITECTURES)}"
        )
    dense = file.own("leading_dense_block_count", 0) if file.architecture == "lfm2moe" else 0
    stacked = file.tensors.get(f"blk.{dense}.ffn_gate_exps.weight")
    if stacked is None or len(stacked.shape) != 3:
        raise CheckpointError(
            f"{file.path}: blk.{dense}.ffn_gate_exps.weight is missing or not of three dimensions; old"
            " files, with a tensor for each expert, are not supported"
        )
    size = stacked.shape[1]
    by_size = file.architecture.startswith(("qwen", "lfm2"))
    fields = {
        "architectures": [ARCHITECTURES[file.architecture]],
        "num_experts_per_tok": file.own("expert_used_count"),
        "num_local_experts" if file.architecture in ("gpt-oss", "llama") else "num_experts": count,
        "moe_intermediate_size" if by_size else "intermediate_size": size,
    }
    if file.architecture not in ("gpt-oss", "llama"):
        fields["norm_topk_prob"] = bool(file.own("expert_weights_norm", file.architecture in NORMALIZED))
    if file.architecture == "olmoe":
        fields["clip_qkv"] = file.own("attention.clamp_kqv")
    if file.architecture == "lfm2moe":
        file.only("expert_gating_func", SIGMOID)
        fields["num_dense_layers"] = dense
        fields["use_expert_bias"] = f"blk.{dense}.exp_probs_b.bias" in file.tensors
        fields["routed_scaling_factor"] = file.own("expert_weights_scale") or 1.0
    else:
        file.only("expert_gating_func", SOFTMAX, *((3,) if file.architecture == "gpt-oss" else ()))
    shared = file.tensors.get("blk.0.ffn_gate_shexp.weight")
    if shared is not None:
        fields["shared_expert_intermediate_size"] = shared.shape[0]
    return fields
