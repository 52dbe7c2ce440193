"""Adapters of families whose layers are not Llama's: logits are those of weights with the adapter in them."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.armllm.adapters import CONFIG, merge, write_adapter
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import Spy, check_logits, random_prompts, save_reference
from tests.armllm.models.test_renamed_families import FAMILIES as RENAMED
from tests.armllm.models.test_renamed_families import INTERNLM2, config_of, renamed
from transformers.pytorch_utils import Conv1D

from armllm import LLM, LoRARequest
from armllm.errors import CheckpointError

SEED = 300
FAMILIES = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "FalconH1ForCausalLM",
    "Gemma3nForCausalLM",
    "Gemma4ForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GPT2LMHeadModel",
    "GPTJForCausalLM",
    "GPTNeoXForCausalLM",
    "GptOssForCausalLM",
    "InternLM3ForCausalLM",
    "Lfm3ForCausalLM",
    "Llama4ForCausalLM",
    "MiniCPM3ForCausalLM",
    "NemotronHForCausalLM",
    "PhiForCausalLM",
)
# In fp32, transformers' own roundings take all of the bound; few other families of it run in fp64.
IN_DOUBLE = "FalconH1ForCausalLM"
PREFIX = "base_model.model."
# Numbers that are no products of the engine's, or never those of one matrix.
NOT_MATRICES = {"altup.modality_router", "altup.prediction_coefs", "altup.correction_coefs"}


def ends_of(model):
    """The last parts of the names of the layers' matrices."""
    return tuple(
        sorted(
            {
                name.rpartition(".")[2]
                for name, module in model.named_modules()
                if isinstance(module, (torch.nn.Linear, Conv1D))
                and (".layers." in name or ".h." in name)
                and ".".join(name.split(".")[-2:]) not in NOT_MATRICES
            }
        )
    )


def check(base, adapter, merged, config):
    """A short prompt, and one in two chunks."""
    options = {"skip_tokenizer_init": True, "max_num_batched_tokens": 50, "enable_lora": True}
    llm = Spy(LLM(base, dtype="float32", **options))
    request = LoRARequest("one", 1, str(adapter))
    check_logits(llm, merged, random_prompts((1, 62), SEED), 6, config, lora_request=request)


@pytest.mark.parametrize(
    ("architecture", "seed"), [*((name, SEED) for name in FAMILIES), ("Gemma4ForCausalLM", SEED + 1)]
)
def test_logits_are_those_of_merged_weights(tmp_path, architecture, seed):
    """Catches a matrix whose adapter is left out, such as one of latent attention, or a router."""
    config = random_config(architecture, seed)
    model = save_reference(tmp_path / "base", config, SEED)
    adapter = write_adapter(tmp_path / "adapter", model, ends_of(model))
    merged = merge(model, adapter)
    check(tmp_path / "base", adapter, merged.double() if architecture == IN_DOUBLE else merged, config)


@pytest.mark.parametrize(
    ("architecture", "changes", "targets", "named"),
    [
        ("OPTForCausalLM", {"word_embed_proj_dim": 24}, ("project_in", "project_out"), {}),
        ("MixtralForCausalLM", {}, ("gate",), {"target_modules": [], "target_parameters": ["gate.weight"]}),
        ("GPT2LMHeadModel", {}, ("c_attn", "c_proj"), {"fan_in_fan_out": True}),
    ],
)
def test_adapters_as_peft_saves_them(tmp_path, architecture, changes, targets, named):
    """Catches a product outside of the layers that is left out, and names and keys that PEFT 0.21 writes."""
    config = random_config(architecture, SEED) | changes
    model = save_reference(tmp_path / "base", config, SEED)
    adapter = write_adapter(tmp_path / "adapter", model, targets, **named)
    check(tmp_path / "base", adapter, merge(model, adapter), config)


def test_gates_that_an_adapter_lacks_are_named(tmp_path):
    """LFM3's, which PEFT calls otherwise than the checkpoint does."""
    model = save_reference(tmp_path / "base", random_config("Lfm3ForCausalLM", SEED), SEED)
    adapter = write_adapter(tmp_path / "adapter", model, ("q_proj",), target_modules=["q_proj", "g_proj"])
    llm = LLM(tmp_path / "base", dtype="float32", skip_tokenizer_init=True, enable_lora=True)
    with pytest.raises(
        CheckpointError, match=r"target_modules names .*gate_proj, and .* has no change of it"
    ):
        llm.generate([5], lora_request=LoRARequest("one", 1, str(adapter)), use_tqdm=False)


def test_parameters_that_are_stored_transposed_are_refused(tmp_path):
    """PEFT's factors change what GPT-2 stores. Catches a change of W that is one of its transpose."""
    model = save_reference(tmp_path / "base", random_config("GPT2LMHeadModel", SEED), SEED)
    named = {"target_modules": [], "target_parameters": ["attn.c_proj.weight"]}
    adapter = write_adapter(tmp_path / "adapter", model, ("c_proj",), **named)
    factors = load_file(adapter / "adapter_model.safetensors")
    kept = {name: tensor for name, tensor in factors.items() if ".attn." in name}
    save_file(kept, adapter / "adapter_model.safetensors")
    llm = LLM(tmp_path / "base", dtype="float32", skip_tokenizer_init=True, enable_lora=True)
    with pytest.raises(CheckpointError, match=r"target_parameters: .*attn\.c_proj is stored transposed"):
        llm.generate([5], lora_request=LoRARequest("one", 1, str(adapter)), use_tqdm=False)


def test_a_router_among_target_parameters(tmp_path):
    """As PEFT 0.21 writes it. Catches a pattern for the module that is taken for its parameter."""
    architecture = "Qwen3MoeForCausalLM"
    config = random_config(architecture, SEED) | {"decoder_sparse_step": 1, "mlp_only_layers": []}
    model = save_reference(tmp_path / "base", config, SEED)
    named = {"target_modules": ["q_proj"], "target_parameters": ["gate.weight"]}
    ranks = {"rank_pattern": {"gate": 7, "gate.weight": 2}, "ranks": {"gate": 2}}
    adapter = write_adapter(tmp_path / "adapter", model, ("q_proj", "gate"), **named, **ranks)
    check(tmp_path / "base", adapter, merge(model, adapter), config)


def test_shared_experts_among_target_parameters(tmp_path):
    """As PEFT 0.21 takes them: their names in target_modules mean the other experts to it."""
    architecture, ends = "Qwen3NextForCausalLM", ("gate_proj", "up_proj", "down_proj")
    config = random_config(architecture, SEED) | {"decoder_sparse_step": 1, "mlp_only_layers": []}
    model = save_reference(tmp_path / "base", config, SEED)
    named = {"target_modules": [], "target_parameters": [f"shared_expert.{end}.weight" for end in ends]}
    adapter = write_adapter(tmp_path / "adapter", model, ends, **named)
    check(tmp_path / "base", adapter, merge(model, adapter), config)


def renamed_factors(architecture, factors, config):
    """By the names of the family; rows of B lie as those of the weight."""
    found = {}
    for kind in ("lora_A", "lora_B"):
        end = f".{kind}.weight"
        part = {name.removesuffix(end) + ".weight": tensor for name, tensor in factors.items() if end in name}
        if kind == "lora_A" and architecture == "InternLM2ForCausalLM":
            own = {name: tensor for name, tensor in part.items() if not re.search("[kv]_proj", name)}
            part = renamed(own, INTERNLM2 | {"self_attn.q_proj": "attention.wqkv"})
        else:
            part, _ = RENAMED[architecture][1](part, config)
        found |= {name.removesuffix(".weight") + end: tensor for name, tensor in part.items()}
    return found


@pytest.mark.parametrize("architecture", RENAMED)
def test_renamed_families_take_adapters_by_their_own_names(tmp_path, architecture):
    """Catches rows of a fused matrix in another's place, and names that only Llama has."""
    config = config_of(architecture, SEED)
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    model = save_reference(base, config, SEED)
    write_adapter(adapter, model, ends_of(model))
    factors = load_file(adapter / "adapter_model.safetensors")
    if architecture == "InternLM2ForCausalLM":  # the parts of its fused matrix have one A
        for name in factors:
            if "lora_A" in name and ("k_proj" in name or "v_proj" in name):
                factors[name] = factors[name.replace("k_proj", "q_proj").replace("v_proj", "q_proj")].clone()
        save_file(factors, adapter / "adapter_model.safetensors")
    merged = merge(model, adapter)
    rename = RENAMED[architecture][1]
    tensors, values = rename(load_file(base / "model.safetensors"), config)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, base / "model.safetensors")
    (base / "config.json").write_text(
        json.dumps(values | {"architectures": [architecture], "model_type": "other"})
    )
    found = renamed_factors(architecture, factors, config)
    ends = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in found})
    save_file(
        {name: tensor.contiguous() for name, tensor in found.items()}, adapter / "adapter_model.safetensors"
    )
    (adapter / "adapter_config.json").write_text(json.dumps({**CONFIG, "target_modules": ends}))
    check(base, adapter, merged, config)


REFUSED = {
    "Llama4ForCausalLM": ("layers.0.feed_forward.experts.gate_up_proj", "changes experts of a mixture"),
    "Gemma3nForCausalLM": ("layers.0.altup.modality_router", "is of a module that this model does not have"),
    "Gemma4ForCausalLM": ("embed_tokens_per_layer", "changes the embedding"),
    "Glm4MoeLiteForCausalLM": ("layers.0.mlp.experts.down_proj", "changes experts of a mixture"),
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_modules_that_are_refused(tmp_path, architecture):
    """The message names the tensor and says why."""
    module, reason = REFUSED[architecture]
    save_reference(tmp_path / "base", random_config(architecture, SEED), SEED)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps({**CONFIG, "target_modules": [module.rpartition(".")[2]]})
    )
    name = f"{PREFIX}model.{module}.lora_A.weight"
    save_file({name: torch.zeros(4, 8)}, adapter / "adapter_model.safetensors")
    llm = LLM(tmp_path / "base", dtype="float32", skip_tokenizer_init=True, enable_lora=True)
    with pytest.raises(CheckpointError, match=f"tensor {name} {reason}"):
        llm.generate([5], lora_request=LoRARequest("one", 1, str(adapter)), use_tqdm=False)
