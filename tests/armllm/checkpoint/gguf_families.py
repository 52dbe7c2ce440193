"""Random models of families whose tensors llama.cpp's converter changes, written as GGUF files.

Source of what it does: llama.cpp's conversion/qwen.py, lfm2.py, falcon_h1.py, mamba.py, nemotron.py,
granite.py, gpt2.py, gpt_neox.py and phi.py.
"""

from __future__ import annotations

from types import MappingProxyType

import gguf
import numpy as np
from tests.armllm.checkpoint.gguf_files import KINDS, add_head_dim, add_tensor, gguf_writer, permuted
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import save_reference

DELTA = {
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "attention_bias": False,
    "hidden_size": 64,
}
LFM2 = {
    "layer_types": ["conv", "full_attention", "conv"],
    "num_hidden_layers": 3,
    "block_auto_adjust_ff_dim": True,
}
FALCON_H1 = {
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "projectors_bias": False,
    "mamba_proj_bias": False,
    "mamba_d_ssm": 32,
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_norm_before_gate": False,
    "mlp_multipliers": [2.0, 0.5],  # powers of two keep the bits of fp16
    "ssm_multipliers": [0.5, 2.0, 0.25, 4.0, 1.0],
    **{f"{name}_multiplier": 0.5 for name in ("embedding", "key", "ssm_in", "attention_out")},
    **{f"{name}_multiplier": 2.0 for name in ("lm_head", "ssm_out", "attention_in")},
}
NEMOTRON_H = {
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-3,
    "num_key_value_heads": 2,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
}
EXPERTS = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    "routed_scaling_factor": 2.5,
    "num_experts_per_tok": 2,
}
CASES = {
    "falcon-h1": ("FalconH1ForCausalLM", FALCON_H1 | {"mamba_rms_norm": True, "mamba_conv_bias": True}),
    "falcon-h1-plain": (
        "FalconH1ForCausalLM",
        FALCON_H1 | {"mamba_rms_norm": False, "mamba_conv_bias": False, "mamba_n_groups": 1},
    ),
    "qwen35": ("Qwen3_5ForCausalLM", DELTA),
    "qwen35-alike": ("Qwen3_5ForCausalLM", DELTA | {"linear_num_value_heads": 2, "attention_bias": True}),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", DELTA),
    "qwen3next": (
        "Qwen3NextForCausalLM",
        DELTA | {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1},
    ),
    "lfm2": ("Lfm2ForCausalLM", LFM2 | {"conv_bias": False}),
    "lfm2-biases": ("Lfm2ForCausalLM", LFM2 | {"conv_bias": True}),
    "lfm2moe": (
        "Lfm2MoeForCausalLM",
        LFM2
        | {
            "tie_word_embeddings": True,
            "num_dense_layers": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "use_expert_bias": True,
        },
    ),
    "nemotron_h": ("NemotronHForCausalLM", NEMOTRON_H | {"use_conv_bias": True}),
    "nemotron_h-biases": ("NemotronHForCausalLM", NEMOTRON_H | {"mlp_bias": True, "use_conv_bias": False}),
    "nemotron_h_moe": ("NemotronHForCausalLM", NEMOTRON_H | EXPERTS | {"moe_latent_size": None}),
    "nemotron_h_moe-latent": (
        "NemotronHForCausalLM",
        NEMOTRON_H | EXPERTS | {"moe_latent_size": 16, "norm_topk_prob": False},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
        },
    ),
    "gptneox": ("GPTNeoXForCausalLM", {"hidden_act": "gelu", "use_parallel_residual": True}),
    "gptneox-serial": ("GPTNeoXForCausalLM", {"hidden_act": "gelu", "use_parallel_residual": False}),
    "phi2": ("PhiForCausalLM", {"hidden_act": "gelu_new", "qk_layernorm": False}),
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
DROPPED = (
    "rope_scaling",
    "rope_theta",
    "partial_rotary_factor",
    "layer_types",
    "full_attn_idxs",
    "block_ff_dim",
    "time_step_min",  # not in the header
)


def reference(folder, case, **sizes):
    """A model in transformers, and its configuration."""
    architecture, changes = CASES[case]
    known = random_config(architecture, 3)
    if "tie_embedding" in known:
        known["tie_word_embeddings"] = known.pop("tie_embedding")
    if "block_ff_dim" in known:
        known["intermediate_size"] = known["block_ff_dim"]
    config = {name: value for name, value in known.items() if name not in DROPPED} | changes | sizes
    if case.startswith("qwen"):
        config |= {"rope_parameters": PLAIN_ROPE | {"partial_rotary_factor": 0.5}}
        config.setdefault("head_dim", 16)
    elif case.startswith(("falcon", "lfm2")):
        config |= {"rope_parameters": PLAIN_ROPE}
    elif case == "phi2":
        config |= {"rope_parameters": PLAIN_ROPE | {"partial_rotary_factor": 0.5}}
    elif case.startswith("gptneox"):
        config.pop("rope_parameters", None)
        config |= {"rotary_pct": 0.5, "rotary_emb_base": 10000}
    folder.mkdir()
    return save_reference(folder, config, 3)


def arch_of(case):
    """GGUF's name of the architecture, which may have a hyphen itself."""
    return max((arch for arch in HEADERS if case.startswith(arch)), key=len)


def tiled(array, keys, values, axis=0):
    """Value heads by their number under a key head, not by key heads."""
    shape = array.shape
    split = array.reshape(*shape[:axis], keys, values // keys, -1, *shape[axis + 1 :])
    return split.swapaxes(axis, axis + 1).reshape(shape)


def converted(arch, config, name, array):
    """The names that the converter gives a tensor, and what it writes under them."""
    if arch.startswith("qwen3"):
        yield from converted_delta_net(arch, config, name, array)
    elif arch == "falcon-h1":
        yield converted_falcon_h1(config, name, array)
    elif arch.startswith("nemotron_h"):
        yield converted_nemotron_h(config, name.replace("model.", "backbone.", 1), array)
    elif name.endswith("conv.conv.weight"):
        yield name, array.squeeze(1)
    elif name.endswith("expert_bias"):
        yield f"{name}.bias", array
    elif arch == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        yield name, array.T
    elif arch == "gptneox" and ".query_key_value." in name:
        heads = config.num_attention_heads
        yield name, array.reshape(heads, 3, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)
    else:
        yield name, array


def converted_delta_net(arch, config, name, array):
    if name.endswith("norm.weight") and "linear_attn" not in name:
        array = array + 1
    if "linear_attn" not in name:
        yield name, array
        return
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    module = name.split("linear_attn.")[1].removesuffix(".weight")
    if module == "in_proj_qkvz":
        sizes = np.cumsum([config.linear_key_head_dim] * 2 + [values // keys * config.linear_value_head_dim])
        parts = np.split(array.reshape(keys, -1, array.shape[1]), sizes, axis=1)
        query, key, value, gate = (part.reshape(-1, array.shape[1]) for part in parts)
        yield name.replace("in_proj_qkvz", "in_proj_qkv"), np.concatenate([query, key, value])
        yield name.replace("in_proj_qkvz", "in_proj_z"), gate
        return
    if module == "conv1d":
        array = array.squeeze(1)
    if module == "A_log":
        array = -np.exp(array)
    if arch != "qwen3next":
        first = 2 * keys * config.linear_key_head_dim
        if module in ("in_proj_qkv", "conv1d"):
            array = np.concatenate([array[:first], tiled(array[first:], keys, values)])
        elif module == "out_proj":
            array = tiled(array, keys, values, axis=1)
        elif module != "norm":
            array = tiled(array, keys, values)
    yield name.replace("dt_bias", "dt_proj.bias"), array


def converted_falcon_h1(config, name, array):
    """Its factors are multiplied into the matrices."""
    module = name.removesuffix(".weight").rpartition(".")[2]
    groups, into = config.mamba_n_groups, config.attention_in_multiplier
    states = groups * config.mamba_d_state
    sizes = (config.mamba_d_ssm, config.mamba_d_ssm, states, states, config.mamba_n_heads)
    factors = {
        "embed_tokens": config.embedding_multiplier,
        "lm_head": config.lm_head_multiplier,
        "q_proj": into,
        "k_proj": into * config.key_multiplier,
        "v_proj": into,
        "o_proj": config.attention_out_multiplier,
        "in_proj": config.ssm_in_multiplier * np.repeat(config.ssm_multipliers, sizes)[:, None],
        "out_proj": config.ssm_out_multiplier,
        "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1],
    }
    if module in ("A_log", "D"):
        return name, (-np.exp(array) if module == "A_log" else array)[:, None]
    if name.endswith("mamba.norm.weight"):
        array = array.reshape(groups, -1)
    elif module == "conv1d":
        array = array.squeeze(1)
    return name.replace("dt_bias", "dt_proj.bias"), (array * factors.get(module, 1.0)).astype(np.float32)


def converted_nemotron_h(config, name, array):
    """Heads of queries and keys are permuted as Llama's, which no layer needs."""
    module = name.removesuffix(".weight").rpartition(".")[2]
    if module in ("A_log", "D"):
        return name, (-np.exp(array) if module == "A_log" else array)[:, None]
    if name.endswith("mixer.norm.weight"):
        array = array.reshape(config.n_groups, -1)
    elif module == "conv1d":
        array = array.squeeze(1)
    elif module in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if module == "q_proj" else config.num_key_value_heads
        array = permuted(array, heads)
    elif ".experts." in name:
        name = name.replace("backbone", "model").replace("mixer", "mlp") + ".weight"
    return name.replace("dt_bias", "dt_proj.bias").replace("correction_bias", "correction.bias"), array


def write_tensors(writer, arch, model, kind, blocks):
    """Under gguf-py's own names of them; ``blocks``: bytes of those that are quantized already."""
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    tied = model.config.tie_word_embeddings
    for full_name, tensor in model.state_dict().items():
        if tied and full_name.endswith(("lm_head.weight", "embed_out.weight")):
            continue
        found = blocks.get(full_name, tensor.numpy())
        for name, array in converted(arch, model.config, full_name, found):
            for one, part in unstacked(name, array):
                stored = names.get_name(one, try_suffixes=(".weight", ".bias"))
                assert stored, one
                if full_name in blocks:
                    writer.add_tensor(stored, np.ascontiguousarray(part), raw_dtype=kind)
                else:
                    add_tensor(writer, stored, part, KINDS.F32 if is_exact(one, part) or blocks else kind)


def unstacked(name, array):
    """Transformers has gates and ups of all experts in one tensor."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        yield name, array
        return
    stem, _, module = name.rpartition(".")
    stem = stem if "mlp" in stem else stem.removeprefix("model.")  # as gguf-py knows LFM2's
    if module == "down_proj":
        yield f"{stem}.{'down_proj' if 'mlp' in stem else 'w2'}.weight", array
        return
    gate, up = np.split(array, 2, axis=1)
    yield f"{stem}.{'gate_proj' if 'mlp' in stem else 'w1'}.weight", gate
    yield f"{stem}.{'up_proj' if 'mlp' in stem else 'w3'}.weight", up


def is_exact(name, array):
    """Whether a tensor stays in fp32."""
    exact = ("conv1d.weight", "conv.conv.weight", "gate.weight", "mamba.norm.weight", "mixer.norm.weight")
    return array.ndim == 1 or name.endswith((*exact, ".A_log", ".D"))


def write_gguf(path, arch, model, kind, fill=lambda writer: None, *, blocks=MappingProxyType({})):
    config = model.config
    with gguf_writer(path, arch) as writer:
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_head_count(config.num_attention_heads)
        HEADERS[arch](writer, config)
        fill(writer)
        write_tensors(writer, arch, model, kind, blocks)


def add_delta_net(writer, config):
    values = config.linear_num_value_heads
    add_head_dim(writer, config.head_dim)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim // 2)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(values)
    writer.add_ssm_inner_size(values * config.linear_value_head_dim)
    writer.add_full_attention_interval(2)
    if writer.arch == "qwen35":
        writer.add_feed_forward_length(config.intermediate_size)
    else:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def add_lfm2(writer, config):
    writer.add_head_count_kv(
        [config.num_key_value_heads if kind != "conv" else 0 for kind in config.layer_types]
    )
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_shortconv_l_cache(config.conv_L_cache)
    if writer.arch == "lfm2":
        size = config.intermediate_size
        if config.block_auto_adjust_ff_dim:
            wanted = int(config.block_ffn_dim_multiplier * int(2 * size / 3))
            size = -(-wanted // config.block_multiple_of) * config.block_multiple_of
        writer.add_feed_forward_length(size)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_falcon_h1(writer, config):
    add_head_dim(writer, config.head_dim)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_inner_size(config.mamba_d_ssm)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_ssm_group_count(config.mamba_n_groups)


def add_nemotron_h(writer, config):
    kinds = config.layers_block_type
    add_head_dim(writer, config.head_dim)
    writer.add_head_count_kv(
        [config.num_key_value_heads if kind == "full_attention" else 0 for kind in kinds]
    )
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_scaling_finetuned(False)
    writer.add_vocab_size(config.vocab_size)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)
    if writer.arch == "nemotron_h":
        writer.add_feed_forward_length([config.intermediate_size if kind == "mlp" else 0 for kind in kinds])
        return
    size = config.moe_intermediate_size
    writer.add_feed_forward_length([size if kind == "moe" else 0 for kind in kinds])
    writer.add_expert_feed_forward_length(size)
    writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)
    if config.moe_latent_size is not None:
        writer.add_moe_latent_size(config.moe_latent_size)


def add_gpt2(writer, config):
    writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def add_gpt_neox(writer, config):
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads // 2)
    writer.add_parallel_residual(config.use_parallel_residual)
    writer.add_layer_norm_eps(config.layer_norm_eps)


def add_phi2(writer, config):
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads // 2)


HEADERS = {
    "falcon-h1": add_falcon_h1,
    "qwen35": add_delta_net,
    "qwen35moe": add_delta_net,
    "qwen3next": add_delta_net,
    "lfm2": add_lfm2,
    "lfm2moe": add_lfm2,
    "nemotron_h": add_nemotron_h,
    "nemotron_h_moe": add_nemotron_h,
    "gpt2": add_gpt2,
    "gptneox": add_gpt_neox,
    "phi2": add_phi2,
}
