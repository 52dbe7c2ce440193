"""Quantized matrices whose rows or columns llama.cpp's converter has put in another order."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from tests.armllm.checkpoint.gguf_families import DELTA, LFM2, is_exact, reference, tiled, write_gguf
from tests.armllm.checkpoint.gguf_files import KINDS
from tests.armllm.models.reference import Spy, check_logits, random_prompts

from armllm import LLM

QUANTIZED = {
    "qwen35": DELTA | {"linear_num_value_heads": 4, "linear_value_head_dim": 16, "intermediate_size": 96},
    "qwen3next": DELTA
    | {"linear_num_value_heads": 4, "linear_value_head_dim": 16, "linear_key_head_dim": 16},
    "lfm2": LFM2 | {"hidden_size": 64, "block_ff_dim": 96, "block_auto_adjust_ff_dim": False},
    "gpt2": {"n_embd": 64, "n_inner": 96, "n_head": 4},
    "gptneox": {"hidden_size": 64, "intermediate_size": 96},
}


@pytest.mark.parametrize("case", QUANTIZED)
def test_blocks_are_put_in_order_as_they_are_stored(exact_products, tmp_path, case):
    """Catches blocks that are taken apart, also those with columns of two value heads (16 numbers each)."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    sizes |= {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
    if case in ("gpt2", "gptneox"):
        sizes = {"num_attention_heads": 4} if case == "gptneox" else {}
    if case == "lfm2":
        sizes = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = reference(tmp_path / "hf", case, **sizes | QUANTIZED[case])
    path = tmp_path / "model.gguf"
    write_gguf(path, case, model, KINDS.Q8_0)
    for name, parameter in model.named_parameters():
        if not is_exact(name, parameter):
            parameter.data = torch.from_numpy(as_stored(case, name, parameter.detach().numpy()))
    llm = Spy(LLM(path, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((1, 36), 4), 4)


def as_stored(case, name, array):
    """A matrix in blocks of 32 columns, as the file has them, and back."""
    if case == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return as_stored("", name, array.T).T.copy()
    moved = case == "qwen35" and name.endswith("linear_attn.out_proj.weight")
    array = tiled(array, 2, 4, axis=1) if moved else array
    blocks = gguf.quantize(np.ascontiguousarray(array), KINDS.Q8_0)
    array = gguf.dequantize(blocks, KINDS.Q8_0).copy()
    return tiled(array, 2, 4, axis=1).copy() if moved else array
