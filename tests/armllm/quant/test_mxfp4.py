"""MXFP4 as gpt-oss is published: the values are transformers', and only the inputs are rounded."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.armllm.checkpoint.test_fuzz import run
from tests.armllm.checkpoint.test_fuzz_loading import FEW, folder_file, generate
from tests.armllm.models.reference import Spy, expected_logits, random_prompts, save_reference
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from armllm import LLM, kernels
from armllm.convert.pack import pack_checkpoint
from armllm.errors import CheckpointError
from armllm.quant.mxfp4 import MXFP4

CONFIG = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 5,  # with no choice, a rounded input can't send a token elsewhere
    "max_position_embeddings": 128,
    "sliding_window": 16,
    "eos_token_id": 1,
}
LEFT = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
QUANTIZATION = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": LEFT}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """(folder, the model in transformers with the same experts in fp32)"""
    folder = tmp_path_factory.mktemp("mxfp4")
    model = save_reference(folder, CONFIG, 5)
    path = folder / "model.safetensors"
    generator = torch.Generator().manual_seed(5)
    stored, state = load_file(path), model.state_dict()
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, rows = stored.pop(name).shape
        shape = (count, rows, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 124, shape, generator=generator, dtype=torch.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        state[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(stored, path, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG | QUANTIZATION))
    return folder, model


def test_every_value_and_scale_is_that_of_transformers():
    """All 256 bytes, with all scales but the largest, whose products with 6 fp32 does not hold."""
    blocks = torch.arange(256, dtype=torch.uint8).repeat(16).view(1, 8, 32, 16)
    scales = torch.arange(252, dtype=torch.uint8)[torch.arange(256) % 252].view(1, 8, 32)

    class Stored:
        def read(self, name):
            return blocks if name.endswith("blocks") else scales

    (weight,) = MXFP4().read_stack(Stored(), "w")
    exact = convert_moe_packed_tensors(blocks, scales, dtype=torch.float64)[0].t()
    assert torch.equal(weight.dequantize().double(), exact)


def test_only_the_rounding_of_inputs_tells_the_logits_from_transformers(checkpoint):
    """An input moves by half a step of 1/127 of its row's largest number: each product by 1% at most."""
    folder, model = checkpoint
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True))
    for prompt in random_prompts((1, 30), 5):
        tokens, logits = llm.generate(prompt, 4)
        expected = expected_logits(model, prompt, tokens)
        assert (logits - expected).norm() / expected.norm() < 0.01 * (2 * CONFIG["num_hidden_layers"]) ** 0.5


def test_experts_of_4_bits_compute_what_8_bits_would(checkpoint, monkeypatch):
    """Each logit, bit for bit, in 4.5 bits of memory for a weight and its scale: 8.5 as plain integers."""
    pack = kernels.pack_weight

    def computed(stored):
        packed = []

        def store(*arguments, values, **options):
            assert values == "e2m1"
            packed.append(pack(*arguments, values=stored, **options))
            return packed[-1]

        monkeypatch.setattr(kernels, "pack_weight", store)
        llm = Spy(LLM(checkpoint[0], dtype="float32", skip_tokenizer_init=True))
        logits = [llm.generate(prompt, 4)[1] for prompt in random_prompts((1, 30, 90), 5)]
        weights = sum(weight.out_features * weight.in_features for weight in packed)
        return torch.cat(logits), 8 * sum(weight.nbytes for weight in packed) / weights

    (ours, bits), (theirs, wide_bits) = computed("e2m1"), computed("integers")
    assert torch.equal(ours, theirs)
    assert (bits, wide_bits) == (4.5, 8.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t["model.layers.1.mlp.experts.down_proj_scales"].fill_(255), "which stands for NaN"),
        (lambda t: t.pop("model.layers.1.mlp.experts.down_proj_scales"), "down_proj_scales is missing"),
        (lambda t: t.pop("model.layers.0.mlp.experts.gate_up_proj_blocks"), "gate_up_proj is missing"),
        (
            lambda t: t.update(
                {"model.layers.0.mlp.experts.down_proj_blocks": torch.zeros(5, 64, 48, dtype=torch.uint8)}
            ),
            "config.json wants [5, 64, 3, 16]",
        ),
    ],
)
def test_damaged_blocks_and_scales_are_named(checkpoint, tmp_path, change, words):
    folder, _ = checkpoint
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError) as caught:
        LLM(tmp_path, dtype="float32", skip_tokenizer_init=True)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stack_of_experts_is_not_packed(checkpoint, tmp_path):
    """Catches a folder without them, or with matrices that nobody finds."""
    with pytest.raises(CheckpointError, match="holds several matrices in one tensor and can't be packed"):
        pack_checkpoint(str(checkpoint[0]), tmp_path / "packed")
    assert not list(tmp_path.iterdir())


def test_changed_checkpoints(checkpoint, tmp_path):
    """Blocks and scales of other shapes, types, places and values: refused in a line, or computed."""
    run("mxfp4", checkpoint[0], tmp_path / "changed", folder_file, generate, count=2 * FEW)
