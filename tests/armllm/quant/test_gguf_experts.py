"""Models with experts from GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.armllm.checkpoint.gguf_files import (
    KINDS,
    NAMES,
    add_head_dim,
    add_tensor,
    gguf_writer,
    permuted,
    refused,
)
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import Spy, check_logits, random_prompts, save_reference

from armllm import LLM
from armllm.engine.inspection import inspect_checkpoint
from armllm.errors import CheckpointError

CASES = {
    "llama": ("MixtralForCausalLM", {}),
    "olmoe": ("OlmoeForCausalLM", {"norm_topk_prob": False, "clip_qkv": None}),
    "olmoe-clipped": ("OlmoeForCausalLM", {"norm_topk_prob": False, "clip_qkv": 0.5}),
    "qwen2moe": ("Qwen2MoeForCausalLM", {"norm_topk_prob": False, "qkv_bias": True}),
    "qwen3moe": ("Qwen3MoeForCausalLM", {"norm_topk_prob": True, "attention_bias": False}),
}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "use_sliding_window": False,
    "sliding_window": None,
    "attention_bias": False,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
MOE_NAMES = NAMES | {
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
PARTS = {
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}  # fmt: skip
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def reference(folder, case):
    """A checkpoint folder and its config.json."""
    architecture, changes = CASES[case]
    known = random_config(architecture, 5)
    for name in ("rope_scaling", "rope_parameters", "layer_types", "max_window_layers"):
        known.pop(name, None)
    config = (
        known | {name: value for name, value in SIZES.items() if name in known or "rope" in name} | changes
    )
    config |= {name: SIZES[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")}
    if "head_dim" in config:
        config["head_dim"] = 16
    save_reference(folder, config, 5)
    return config


def write_gguf(path, arch, config, state, kind, *, squeeze=False):
    """Stacked experts; norms, biases and routers in fp32."""
    with gguf_writer(path, arch, config) as writer:
        if arch == "qwen3moe":
            add_head_dim(writer, config["head_dim"])
        writer.add_rope_freq_base(config["rope_theta"])
        writer.add_expert_count(config.get("num_experts", config.get("num_local_experts")))
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if config.get("clip_qkv"):
            writer.add_clamp_kqv(config["clip_qkv"])
        add_tensors(writer, arch, config, state, kind, squeeze=squeeze)


def add_tensors(writer, arch, config, state, kind, *, squeeze):
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, tensor in state.items():
        array = tensor.numpy()
        stem, _, ending = name.rpartition(".")
        if stem in OUTSIDE:
            add_tensor(writer, f"{OUTSIDE[stem]}.{ending}", array, kind)
            continue
        _, _, index, rest = stem.split(".", 3)
        if ".experts." in rest:
            _, expert, part = rest.rsplit(".", 2)
            stacks.setdefault(f"blk.{index}.{PARTS[part]}.weight", {})[int(expert)] = array
            continue
        if arch == "llama" and rest.endswith(("q_proj", "k_proj")):
            query = rest.endswith("q_proj")
            array = permuted(array, config["num_attention_heads" if query else "num_key_value_heads"])
        if rest.endswith("shared_expert_gate") and squeeze:
            array = array[0]
        router = rest.endswith("gate")
        add_tensor(writer, f"blk.{index}.{MOE_NAMES[rest]}.{ending}", array, KINDS.F32 if router else kind)
    for name, experts in stacks.items():
        add_tensor(writer, name, np.stack([experts[number] for number in range(len(experts))]), kind)


@pytest.mark.parametrize("squeeze", [False, True])
@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("case", CASES)
def test_experts_have_the_logits_of_the_original(request, tmp_path, case, kind, squeeze):
    """Each expert's slice as the type of its tensor means it."""
    if squeeze and case != "qwen2moe":
        return
    if kind != "F32":
        request.getfixturevalue("exact_products")
    config = reference(tmp_path / "hf", case)
    state = load_file(tmp_path / "hf" / "model.safetensors")
    write_gguf(tmp_path / "model.gguf", case.split("-")[0], config, state, KINDS[kind], squeeze=squeeze)
    for name, tensor in state.items():
        if tensor.ndim == 2 and kind != "F32":
            router = name.endswith(("gate.weight", "shared_expert_gate.weight"))
            if not router:
                blocks = gguf.quantize(tensor.numpy(), KINDS[kind])
                state[name] = torch.from_numpy(gguf.dequantize(blocks, KINDS[kind]).copy())
    save_file(state, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    twin = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    llm = Spy(LLM(tmp_path / "model.gguf", dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, twin, random_prompts((1, 36), 4), 4)
    facts = inspect_checkpoint(str(tmp_path / "model.gguf"))
    assert facts["architecture"] == CASES[case][0]


def test_what_experts_cannot_be_is_named(tmp_path):
    config = reference(tmp_path / "hf", "llama")
    state = load_file(tmp_path / "hf" / "model.safetensors")
    path = tmp_path / "model.gguf"
    write_gguf(path, "qwen2", config, state, KINDS.F32)
    refused(path, "GGUF files with experts are only supported for gpt-oss, lfm2moe, llama, nemotron_h_moe")
    single = {name: tensor for name, tensor in state.items() if ".experts." not in name}
    write_gguf(path, "llama", config, single, KINDS.F32)
    refused(path, "blk.0.ffn_up_exps.weight is missing or not of three dimensions")
    few = {name: tensor for name, tensor in state.items() if ".experts.1." not in name}
    last = max(int(name.split(".experts.")[1].split(".")[0]) for name in state if ".experts." in name)
    few = {name.replace(f".experts.{last}.", ".experts.1."): tensor for name, tensor in few.items()}
    write_gguf(path, "llama", config, few, KINDS.F32)
    with pytest.raises(CheckpointError, match=rf"experts\.{last}\.\w+\.weight is missing"):
        LLM(path, dtype="float32", skip_tokenizer_init=True)
