"""What the header of a GGUF file says of layers with a state, as config.json would say it.

Source of keys: llama.cpp's conversion/qwen.py, lfm2.py, mamba.py and falcon_h1.py, and the graphs in
src/models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from armllm.checkpoint.gguf_file import GGUFFile

DELTA_NETS = ("qwen35", "qwen35moe", "qwen3next")


def delta_net_fields(file: GGUFFile, turned: float) -> dict[str, Any]:
    """Those of Qwen3.5 and Qwen3-Next; ``turned``: the share of a head with positions."""
    value_heads, inner = file.required("ssm.time_step_rank"), file.required("ssm.inner_size")
    if inner % value_heads:
        raise CheckpointError(f"{file.path}: ssm.inner_size is not a multiple of ssm.time_step_rank")
    fields = {
        "partial_rotary_factor": turned,
        "norm_weights_are_offset": True,  # stored with the one that is added
        "attention_bias": any(name.endswith(".attn_q.bias") for name in file.tensors),
        "full_attention_interval": file.own("full_attention_interval", 4),
        "linear_conv_kernel_dim": file.required("ssm.conv_kernel"),
        "linear_key_head_dim": file.required("ssm.state_size"),
        "linear_num_key_heads": file.required("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": inner // value_heads,
    }
    recurrent = file.own("attention.recurrent_layers")
    if isinstance(recurrent, list):
        kinds = ["linear_attention" if found else "full_attention" for found in recurrent]
        fields["layer_types"] = kinds[: file.num_layers()]
    return fields


def falcon_h1_fields(file: GGUFFile) -> dict[str, Any]:
    """Those of Falcon-H1, whose factors the converter has multiplied into the matrices."""
    return {
        "mamba_d_ssm": file.required("ssm.inner_size"),
        "mamba_n_heads": file.required("ssm.time_step_rank"),
        "mamba_n_groups": file.required("ssm.group_count"),
        "mamba_d_state": file.required("ssm.state_size"),
        "mamba_d_conv": file.required("ssm.conv_kernel"),
        "mamba_conv_bias": "blk.0.ssm_conv1d.bias" in file.tensors,
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in file.tensors,
        "mamba_norm_before_gate": False,  # llama.cpp knows no other order
    }


def lfm2_fields(file: GGUFFile) -> dict[str, Any]:
    """Those of LFM2, whose layers without keys and values are convolutions."""
    counts = file.own("attention.head_count_kv")
    if not isinstance(counts, list) or len(counts) != file.num_layers():
        raise CheckpointError(
            f"{file.path}: {file.architecture}.attention.head_count_kv must have a number for each layer"
        )
    attending = {count for count in counts if count}
    if len(attending) > 1:
        raise CheckpointError(f"{file.path}: attention.head_count_kv of different sizes is not supported")
    return {
        "num_key_value_heads": attending.pop() if attending else file.own("attention.head_count"),
        "layer_types": ["full_attention" if count else "conv" for count in counts],
        "norm_eps": file.own("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,  # feed_forward_length is what comes out
        "conv_L_cache": file.required("shortconv.l_cache"),
        "conv_bias": any(name.endswith(".shortconv.conv.bias") for name in file.tensors),
    }
