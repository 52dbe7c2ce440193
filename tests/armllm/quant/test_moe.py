"""Quantized experts of all four families, stored as each program stores them."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.armllm.models.reference import save_reference
from tests.armllm.quant.forms import awq, gptq, int_quantized, packed
from tests.armllm.quant.test_checkpoints import AWQ, GPTQ, TOKENS, agrees, compressed
from tests.armllm.quant.test_gguf_gpt_oss import CONFIG as GPT_OSS
from tests.armllm.quant.test_gguf_gpt_oss import parts

BASE = {
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "num_experts": 5,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
FAMILIES = {
    "MixtralForCausalLM": (
        "mixtral",
        ("moe_intermediate_size", "num_experts", "shared_expert_intermediate_size"),
    ),
    "Qwen2MoeForCausalLM": ("qwen2_moe", ("num_local_experts", "head_dim")),
    "Qwen3MoeForCausalLM": ("qwen3_moe", ("num_local_experts", "shared_expert_intermediate_size")),
    "OlmoeForCausalLM": (
        "olmoe",
        ("num_local_experts", "head_dim", "moe_intermediate_size", "shared_expert_intermediate_size"),
    ),
}
FLOATING = ("embed_tokens", "lm_head", "gate", "shared_expert_gate")


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("method", ["gptq", "awq", "int8", "int4"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_experts_are_read_and_routers_left_alone(tmp_path, architecture, method):
    model_type, unknown = FAMILIES[architecture]
    config = {name: value for name, value in BASE.items() if name not in unknown}
    config |= {"architectures": [architecture], "model_type": model_type}
    source, twin, folder = (tmp_path / name for name in ("source", "twin", "model"))
    save_reference(source, config, 21)
    settings, form = {
        "gptq": lambda: (GPTQ | {"desc_act": True}, gptq(4, 32, act_order=True)),
        "awq": lambda: (AWQ | {"group_size": 32}, awq(32)),
        "int8": lambda: (compressed("int-quantized", inputs=TOKENS, bits=8)[0], int_quantized),
        "int4": lambda: compressed("pack-quantized", bits=4, group_size=32),
    }[method]()
    form = packed(form) if isinstance(form, dict) else form
    # routers are named, or, as transformers 5 counts them no Linear, they are not
    ignore = {"ignore": ["lm_head", "re:.*gate$"]} if method == "int4" else {}
    generator = torch.Generator().manual_seed(6)
    stored, exact = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        stored[name] = exact[name] = tensor
        if tensor.ndim == 2 and name.split(".")[-2] not in FLOATING:
            tensors, exact[name] = form(tensor, generator)
            del stored[name]
            stem = name.removesuffix("weight")
            stored |= {stem + ending: part.contiguous() for ending, part in tensors.items()}
    assert any("experts.4." in name and name not in exact for name in stored) or method == "int8"
    for place, state, extra in (
        (twin, exact, {}),
        (folder, stored, {"quantization_config": settings | ignore}),
    ):
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config | extra))
        save_file(state, place / "model.safetensors", metadata={"format": "pt"})
    agrees(folder, transformers.AutoModelForCausalLM.from_pretrained(twin, dtype=torch.float32).eval())


def write_gpt_oss_by_experts(folder):
    """As llm-compressor writes it: each expert has linear layers of its own. Returns the model."""
    settings, group = compressed("pack-quantized", bits=4, group_size=32)
    model = save_reference(folder, GPT_OSS, 21)
    form, generator, stored = packed(group), torch.Generator().manual_seed(6), {}
    for name, tensor in model.state_dict().items():
        for part, values in parts(name, tensor).items():
            if ".experts." not in name:
                stored[name] = tensor
                continue
            before, after = part.split("experts.")
            for expert, own in enumerate(values):
                stem = f"{before}experts.{expert}.{after}"
                if stem.endswith("weight"):
                    tensors, meant = form(own, generator)
                    own.copy_(meant)  # into the model: a view
                    stored |= {stem.removesuffix("weight") + end: one for end, one in tensors.items()}
                else:
                    stored[stem] = own.contiguous()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    settings["ignore"] = ["lm_head", "re:.*self_attn.*"]
    config = json.dumps(GPT_OSS | {"quantization_config": settings})
    (folder / "config.json").write_text(config)
    return model


@pytest.mark.usefixtures("exact_products")
def test_experts_of_gpt_oss_come_one_by_one_with_their_biases(tmp_path):
    agrees(tmp_path, write_gpt_oss_by_experts(tmp_path))
