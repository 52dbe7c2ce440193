"""gpt-oss from GGUF files, by gguf's own names of its tensors, as llama.cpp's converter writes it."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from tests.armllm.checkpoint.gguf_files import KINDS, add_head_dim, gguf_writer
from tests.armllm.models.reference import Spy, check_logits, random_prompts, save_reference
from tests.armllm.quant.test_mxfp4 import CONFIG as GPT_OSS

from armllm import LLM
from armllm.engine.inspection import inspect_checkpoint
from armllm.errors import CheckpointError

YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
CONFIG = GPT_OSS | {
    "num_hidden_layers": 3,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_scaling": YARN | {"original_max_position_embeddings": 40},
}
NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, CONFIG["num_hidden_layers"])


def add_header(writer):
    add_head_dim(writer, CONFIG["head_dim"])
    writer.add_expert_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(YARN["factor"])
    writer.add_rope_scaling_orig_ctx_len(CONFIG["rope_scaling"]["original_max_position_embeddings"])
    writer.add_expert_count(CONFIG["num_local_experts"])
    writer.add_expert_used_count(CONFIG["num_experts_per_tok"])
    writer.add_sliding_window(CONFIG["sliding_window"])


def parts(name, tensor):
    """What the converter makes of a tensor: gates and ups apart, and rows before inputs."""
    if name.endswith("sinks"):
        return {f"{name}.weight": tensor}
    if ".experts." not in name:
        return {name: tensor}
    ending = "bias" if name.endswith("_bias") else "weight"
    stem = name.removesuffix("_bias")
    tensor = tensor if ending == "bias" else tensor.transpose(1, 2)
    if stem.endswith("down_proj"):
        return {f"{stem}.{ending}": tensor}
    halves = (("gate_proj", tensor[:, ::2]), ("up_proj", tensor[:, 1::2]))
    return {f"{stem.replace('gate_up_proj', part)}.{ending}": half for part, half in halves}


def write(path, model, kind, *, leaves_out=()):
    """The experts in ``kind``; the model gets what they mean."""
    with gguf_writer(path, "gpt-oss", CONFIG) as writer:
        add_header(writer)
        for name, tensor in model.state_dict().items():
            for part, values in parts(name, tensor).items():
                full_name = NAMES.get_name(part, try_suffixes=(".weight", ".bias"))
                assert full_name is not None, part
                experts = full_name.endswith("_exps.weight")
                stored = kind if experts else KINDS.F32
                octets = gguf.quantize(np.ascontiguousarray(values.numpy()), stored)
                if experts:
                    values.copy_(torch.from_numpy(gguf.dequantize(octets, stored).copy()))
                if full_name not in leaves_out:
                    writer.add_tensor(full_name, octets, raw_dtype=stored)


@pytest.mark.parametrize("kind", ["F32", "MXFP4", "Q8_0"])
def test_logits_are_those_of_the_original(request, tmp_path, kind):
    """Catches gates taken for ups, a bias in another's place, and windows in the other layers."""
    if kind != "F32":
        request.getfixturevalue("exact_products")
    model = save_reference(tmp_path / "hf", CONFIG, 5)
    path = tmp_path / "model.gguf"
    write(path, model, KINDS[kind])
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((1, 36, 70), 4), 4)
    assert inspect_checkpoint(str(path))["architecture"] == "GptOssForCausalLM"


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("blk.1.attn_sinks.weight", r"model\.layers\.1\.self_attn\.sinks is missing"),
        ("blk.1.ffn_up_exps.bias", r"model\.layers\.1\.mlp\.experts\.up_proj_bias is missing"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path, left_out, message):
    model = save_reference(tmp_path / "hf", CONFIG, 5)
    write(tmp_path / "model.gguf", model, KINDS.F32, leaves_out=(left_out,))
    with pytest.raises(CheckpointError, match=message):
        LLM(tmp_path / "model.gguf", dtype="float32", skip_tokenizer_init=True)
