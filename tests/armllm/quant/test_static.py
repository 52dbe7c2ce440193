"""W8A8 with static activations: all inputs of a product are rounded by the checkpoint's one scale."""

from __future__ import annotations

import pytest
import torch
from tests.armllm.models.reference import Spy, expected_logits, random_prompts
from tests.armllm.quant.forms import int_quantized, packed, write_quantized
from tests.armllm.quant.test_checkpoints import compressed

from armllm import LLM
from armllm.engine.inspection import inspect_checkpoint

SIZES = {"hidden_size": 128, "intermediate_size": 256}
STATIC = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": True}


def judge(model, scales):
    """transformers' model, whose layers' inputs are rounded by their scales."""
    for name, module in model.named_modules():
        if name in scales:
            scale = scales[name]

            def rounded(_module, given, scale=scale):
                return ((given[0] / scale).round().clamp(-127, 127) * scale, *given[1:])

            module.register_forward_pre_hook(rounded)
    return model


@pytest.mark.parametrize("kind", ["naive-quantized", "int-quantized", "int4"])
@pytest.mark.parametrize("apart", [False, True])
def test_inputs_are_rounded_by_the_scale_that_is_given(make_checkpoint, tmp_path, kind, apart):
    """Scales so small that some inputs are cut off; with ``apart``, those of q, k and v differ."""
    if kind == "int4":
        settings, group = compressed("pack-quantized", inputs=STATIC, bits=4, group_size=32)
        plain = packed(group)
    else:
        settings, _ = compressed(kind, inputs=STATIC, bits=8)
        plain = int_quantized
    drawn = iter(torch.rand(100, generator=torch.Generator().manual_seed(2)).tolist())

    def form(matrix, generator):
        tensors, exact = plain(matrix, generator)
        scale = torch.tensor(0.01 + (0.01 * next(drawn) if apart else 0.0))
        return tensors | {
            "input_scale": scale,
            "input_zero_point": torch.tensor([0], dtype=torch.int8),
        }, exact

    folder = tmp_path / "model"
    model = write_quantized(folder, make_checkpoint(**SIZES), settings, form)
    drawn = iter(torch.rand(100, generator=torch.Generator().manual_seed(2)).tolist())
    names = [name.removesuffix(".weight") for name, _ in model.named_parameters() if "_proj" in name]
    scales = {name: 0.01 + (0.01 * next(drawn) if apart else 0.0) for name in names}
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True))
    judge(model, scales)
    for prompt in random_prompts((1, 36), 4):
        tokens, logits = llm.generate(prompt, 6)
        expected = expected_logits(model, prompt, tokens)
        # an input next to the middle of two integers may go either way: a step of 0.01 in 8 products
        assert (logits - expected).norm() / expected.norm() < 0.01
    text = inspect_checkpoint(str(folder))["quantization"]
    assert text.startswith(f"compressed-tensors (W{4 if kind == 'int4' else 8}A8 (static)")
