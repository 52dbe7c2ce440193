"""GGUF files of families whose tensors llama.cpp's converter changes give the logits of the original."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from tests.armllm.checkpoint.gguf_families import CASES, arch_of, is_exact, reference, write_gguf
from tests.armllm.checkpoint.gguf_files import KINDS, refused
from tests.armllm.models.reference import Spy, check_logits, random_prompts
from tests.armllm.quant.conftest import exact_products  # noqa: F401 - a fixture
from tests.armllm.quant.test_gguf import random_blocks

from armllm import LLM
from armllm.checkpoint.gguf import GGUFCheckpoint


@pytest.mark.parametrize("kind", [KINDS.F32, KINDS.F16])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_original(tmp_path, case, kind):
    """Catches heads, rows and numbers that are not put back as they were."""
    model = reference(tmp_path / "hf", case)
    if kind == KINDS.F16:
        for name, parameter in model.named_parameters():
            if not is_exact(name, parameter):
                parameter.data = parameter.data.half().float()
    path = tmp_path / "model.gguf"
    write_gguf(path, arch_of(case), model, kind)
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((1, 36), 4), 6)


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("case", ["nemotron_h", "nemotron_h_moe-latent"])
def test_matrices_in_blocks_mean_what_gguf_py_reads(tmp_path, case):
    """Catches rows of blocks that are not put back, and experts without gates that are cut wrongly."""
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size"), 256)
    sizes |= {"moe_shared_expert_intermediate_size": 256, "mamba_num_heads": 32, "head_dim": 64}
    if case.endswith("latent"):
        sizes["moe_latent_size"] = 256
    model = reference(tmp_path / "hf", case, **sizes)
    blocks = {}
    for seed, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.ndim == 1 or is_exact(name, parameter):
            continue
        octets = random_blocks("Q4_K", parameter[..., 0].numel(), parameter.shape[-1], seed)
        parameter.data = torch.from_numpy(gguf.dequantize(octets, KINDS.Q4_K).copy()).view(parameter.shape)
        blocks[name] = octets.reshape(*parameter.shape[:-1], -1)
    path = tmp_path / "model.gguf"
    write_gguf(path, arch_of(case), model, KINDS.Q4_K, blocks=blocks)
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((1, 36), 4), 4)


def test_heads_of_nemotron_h_are_put_back(tmp_path):
    """No logit shows it, as no layer has positions; an adapter's numbers need it."""
    model = reference(tmp_path / "hf", "nemotron_h")
    write_gguf(tmp_path / "model.gguf", "nemotron_h", model, KINDS.F32)
    checkpoint = GGUFCheckpoint(tmp_path / "model.gguf")
    for module in ("q_proj", "k_proj"):
        name = f"model.layers.2.mixer.{module}.weight"
        torch.testing.assert_close(checkpoint.read(name), model.state_dict()[name], rtol=0, atol=0)


@pytest.mark.parametrize("arch", ["qwen35", "nemotron_h_moe"])
def test_layers_that_predict_further_tokens_are_left_out(tmp_path, arch):
    """They lie behind the decoder's and are counted among its blocks."""
    model = reference(tmp_path / "hf", arch)
    path = tmp_path / "model.gguf"
    layers = model.config.num_hidden_layers

    def fill(writer):
        writer.kv_data[0].pop(f"{arch}.block_count")
        writer.add_block_count(layers + 1)
        writer.add_nextn_predict_layers(1)
        for key in ("attention.head_count_kv", "feed_forward_length"):
            if arch.startswith("nemotron"):
                writer.kv_data[0][f"{arch}.{key}"].value.append(2)
        writer.add_tensor(f"blk.{layers}.attn_norm.weight", np.ones(64, np.float32))
        writer.add_tensor(f"blk.{layers}.nextn.eh_proj.weight", np.ones((64, 128), np.float32))

    write_gguf(path, arch, model, KINDS.F32, fill)
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((20,), 4), 4)


def test_recurrent_layers_may_be_listed(tmp_path):
    model = reference(tmp_path / "hf", "qwen35", layer_types=["full_attention", *["linear_attention"] * 3])
    path = tmp_path / "model.gguf"
    flags = [False, True, True, True]
    write_gguf(
        path, "qwen35", model, KINDS.F32,
        lambda writer: writer.add_array("qwen35.attention.recurrent_layers", flags),
    )  # fmt: skip
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((20,), 4), 4)


def test_phi_2_may_have_one_matrix_for_queries_keys_and_values(tmp_path):
    """As files of its first version have it."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    model = reference(tmp_path / "hf", "phi2", **heads)
    path = tmp_path / "model.gguf"
    attention = [layer.self_attn for layer in model.model.layers]
    states = [
        {
            ending: np.concatenate([getattr(part, f"{module}_proj").state_dict()[ending] for module in "qkv"])
            for ending in ("weight", "bias")
        }
        for part in attention
    ]
    for part in attention:
        for module in "qkv":
            delattr(part, f"{module}_proj")

    def fill(writer):
        for index, state in enumerate(states):
            for ending, array in state.items():
                writer.add_tensor(f"blk.{index}.attn_qkv.{ending}", array)

    write_gguf(path, "phi2", model, KINDS.F32, fill)
    whole = reference(tmp_path / "twin", "phi2", **heads)
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, whole, random_prompts((20,), 4), 4)


@pytest.mark.parametrize(
    ("arch", "key", "value"),
    [
        ("qwen35", "attention.scale", 0.5),
        ("qwen35", "attention.causal", False),
        ("qwen35moe", "expert_weights_scale", 2.5),
        ("qwen35moe", "expert_gating_func", 2),
        ("lfm2", "attention.sliding_window", 16),
        ("falcon-h1", "attention.scale", 0.5),
        ("lfm2moe", "expert_gating_func", 1),
        ("nemotron_h", "attention.scale", 0.5),
        ("nemotron_h_moe", "expert_gating_func", 1),
        ("nemotron_h_moe", "expert_group_count", 2),
        ("gpt2", "attention.max_alibi_bias", 8.0),
        ("gptneox", "attention.clamp_kqv", 8.0),
        ("phi2", "rope.scaling.yarn_log_multiplier", 0.5),
        ("phi2", "pooling_type", 1),
    ],
)
def test_keys_that_nobody_reads_are_refused(tmp_path, arch, key, value):
    """Catches a file that asks for what is not computed."""
    model = reference(tmp_path / "hf", arch)
    path = tmp_path / "model.gguf"
    add = {bool: "add_bool", int: "add_uint32", float: "add_float32"}[type(value)]

    def fill(writer):
        writer.kv_data[0].pop(f"{arch}.{key}", None)
        getattr(writer, add)(f"{arch}.{key}", value)

    write_gguf(path, arch, model, KINDS.F32, fill)
    refused(path, f"{arch}.{key} {value!r} is not supported")


@pytest.mark.parametrize(
    ("arch", "key", "problem"),
    [
        ("qwen35", "ssm.conv_kernel", "qwen35.ssm.conv_kernel must be a positive integer"),
        ("qwen35", "ssm.inner_size", "ssm.inner_size must be a positive integer"),
        ("falcon-h1", "ssm.inner_size", "falcon-h1.ssm.inner_size must be a positive integer"),
        ("lfm2", "attention.head_count_kv", "must have a number for each layer"),
        ("nemotron_h", "ssm.group_count", "nemotron_h.ssm.group_count must be a positive integer"),
        ("nemotron_h", "feed_forward_length", "feed_forward_length must have a number for each layer"),
        ("nemotron_h", "attention.head_count_kv", "head_count_kv must have a number for each layer"),
        ("nemotron_h_moe", "expert_used_count", "expert_used_count must be a positive integer"),
        ("nemotron_h", "attention.layer_norm_rms_epsilon", "attention.layer_norm_rms_epsilon is missing"),
        ("gpt2", "attention.layer_norm_epsilon", "gpt2.attention.layer_norm_epsilon is missing"),
        ("lfm2", "shortconv.l_cache", "lfm2.shortconv.l_cache must be a positive integer"),
    ],
)
def test_keys_that_are_missing_are_named(tmp_path, arch, key, problem):
    model = reference(tmp_path / "hf", arch)
    path = tmp_path / "model.gguf"
    write_gguf(path, arch, model, KINDS.F32, lambda writer: writer.kv_data[0].pop(f"{arch}.{key}"))
    refused(path, problem)
