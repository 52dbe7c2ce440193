"""What the header of a GGUF file says of layers with a state, as config.json would say it.

Source of keys: llama.cpp's conversion/qwen.py, lfm2.py, mamba.py, falcon_h1.py, granite.py and nemotron.py,
and the graphs in src/models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from armllm.checkpoint.gguf_file import GGUFFile

DELTA_NETS = ("qwen35", "qwen35moe", "qwen3next")


def delta_net_fields(file: GGUFFile, turned: float) -> dict[str, Any]:
    """Those of Qwen3.5 and Qwen3-Next; ``turned``: the share of a head with positions."""
    value_heads, head_dim = _state_heads(file)
    fields = {
        "partial_rotary_factor": turned,
        "norm_weights_are_offset": True,  # stored with the one that is added
        "attention_bias": any(name.endswith(".attn_q.bias") for name in file.tensors),
        "full_attention_interval": file.own("full_attention_interval", 4),
        "linear_conv_kernel_dim": file.required("ssm.conv_kernel"),
        "linear_key_head_dim": file.required("ssm.state_size"),
        "linear_num_key_heads": file.required("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": head_dim,
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
    counts = _by_layer(file, "attention.head_count_kv")
    return {
        "num_key_value_heads": _only_size(file, "attention.head_count_kv", counts)
        or file.own("attention.head_count"),
        "layer_types": ["full_attention" if count else "conv" for count in counts],
        "norm_eps": file.required_value("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,  # feed_forward_length is what comes out
        "conv_L_cache": file.required("shortconv.l_cache"),
        "conv_bias": any(name.endswith(".shortconv.conv.bias") for name in file.tensors),
    }


def nemotron_h_fields(file: GGUFFile) -> dict[str, Any]:
    """Those of Nemotron-H: layers with keys and values attend, those without a feed-forward part are Mamba.

    The least step of Mamba is not in the file; the class's default is that of NVIDIA's models.
    """
    counts = _by_layer(file, "attention.head_count_kv")
    sizes = _by_layer(file, "feed_forward_length")
    heads, head_dim = _state_heads(file)
    seeing_one = "moe" if file.own("expert_count") else "mlp"
    return {
        "layers_block_type": [
            "attention" if count else seeing_one if size else "mamba"
            for count, size in zip(counts, sizes, strict=True)
        ],
        "num_key_value_heads": _only_size(file, "attention.head_count_kv", counts)
        or file.own("attention.head_count"),
        "intermediate_size": _only_size(file, "feed_forward_length", sizes),
        "layer_norm_epsilon": file.required_value("attention.layer_norm_rms_epsilon"),
        "mamba_num_heads": heads,
        "mamba_head_dim": head_dim,
        "n_groups": file.required("ssm.group_count"),
        "ssm_state_size": file.required("ssm.state_size"),
        "conv_kernel": file.required("ssm.conv_kernel"),
        "use_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in file.tensors),
        "mlp_bias": any(name.endswith(".ffn_up.bias") for name in file.tensors),
    }


def _state_heads(file: GGUFFile) -> tuple[int, int]:
    """How many heads have a state, and how wide each is."""
    heads, inner = file.required("ssm.time_step_rank"), file.required("ssm.inner_size")
    if inner % heads:
        raise CheckpointError(f"{file.path}: ssm.inner_size is not a multiple of ssm.time_step_rank")
    return heads, inner // heads


def _by_layer(file: GGUFFile, key: str) -> list[Any]:
    """A list with a number for each layer of the decoder; those that predict further tokens stand behind."""
    values = file.own(key)
    if not isinstance(values, list) or len(values) != file.own("block_count"):
        raise CheckpointError(f"{file.path}: {file.architecture}.{key} must have a number for each layer")
    return values[: file.num_layers()]


def _only_size(file: GGUFFile, key: str, values: list[Any]) -> Any:
    """The number that all layers have but those that have 0; None where all have 0."""
    sizes = {value for value in values if value}
    if len(sizes) > 1:
        raise CheckpointError(f"{file.path}: {key} of different sizes is not supported")
    return sizes.pop() if sizes else None


# general.architecture -> what config.json says of it; those of `DELTA_NETS` are beside
RECURRENT = {
    "falcon-h1": falcon_h1_fields,
    "lfm2": lfm2_fields,
    "lfm2moe": lfm2_fields,
    "nemotron_h": nemotron_h_fields,
    "nemotron_h_moe": nemotron_h_fields,
}
