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
    "nemotron_h_moe": "NemotronHForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen35moe": "Qwen3_5MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "qwen3next": "Qwen3_5MoeForCausalLM",
}
NORMALIZED = ("lfm2moe", "qwen35moe", "qwen3moe", "qwen3next")
SCORED_APART = ("lfm2moe", "nemotron_h_moe")  # each expert by a sigmoid of its own
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
    first, size = _first_experts(file)
    by_size = file.architecture.startswith(("qwen", "lfm2", "nemotron"))
    number = {
        "gpt-oss": "num_local_experts",
        "llama": "num_local_experts",
        "nemotron_h_moe": "n_routed_experts",
    }
    fields = {
        "architectures": [ARCHITECTURES[file.architecture]],
        "num_experts_per_tok": file.required("expert_used_count"),
        number.get(file.architecture, "num_experts"): count,
        "moe_intermediate_size" if by_size else "intermediate_size": size,
    }
    if file.architecture not in ("gpt-oss", "llama"):
        fields["norm_topk_prob"] = bool(file.own("expert_weights_norm", file.architecture in NORMALIZED))
    if file.architecture == "olmoe":
        fields["clip_qkv"] = file.own("attention.clamp_kqv")
    if file.architecture in SCORED_APART:
        file.only("expert_gating_func", SIGMOID)
        fields["routed_scaling_factor"] = file.own("expert_weights_scale") or 1.0
    else:
        file.only("expert_gating_func", SOFTMAX, *((3,) if file.architecture == "gpt-oss" else ()))
    if file.architecture == "lfm2moe":
        fields["num_dense_layers"] = file.own("leading_dense_block_count", 0)
        fields["use_expert_bias"] = f"blk.{first}.exp_probs_b.bias" in file.tensors
    if file.architecture == "nemotron_h_moe":
        fields["moe_latent_size"] = file.own("moe_latent_size")
        fields["moe_shared_expert_intermediate_size"] = _rows(file, f"blk.{first}.ffn_up_shexp.weight")
    else:
        fields["shared_expert_intermediate_size"] = _rows(file, "blk.0.ffn_up_shexp.weight")
    return {name: value for name, value in fields.items() if value is not None}


def _first_experts(file: GGUFFile) -> tuple[int, int]:
    """The first layer with experts, and what each has between its products."""
    places = range(file.num_layers())
    first = next((place for place in places if f"blk.{place}.ffn_gate_inp.weight" in file.tensors), 0)
    stacked = file.tensors.get(f"blk.{first}.ffn_up_exps.weight")
    if stacked is None or len(stacked.shape) != 3:
        raise CheckpointError(
            f"{file.path}: blk.{first}.ffn_up_exps.weight is missing or not of three dimensions; old files,"
            " with a tensor for each expert, are not supported"
        )
    return first, stacked.shape[1]


def _rows(file: GGUFFile, name: str) -> int | None:
    """Of a matrix; None where it is not there."""
    return file.shape(name)[0] if name in file.tensors else None
