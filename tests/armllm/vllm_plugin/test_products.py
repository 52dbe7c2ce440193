"""Packed weights in layers of vLLM; vLLM itself is not needed."""

from __future__ import annotations

import torch

from armllm.checkpoint.matrix import IntegerWeight
from armllm.vllm_plugin.products import PackedProduct


def no_guards(entries):
    """What vLLM lets torch's compiler check before it takes a compiled graph: nothing."""
    return [False] * len(entries)


def draw(input_scale):
    """A layer with a weight of 8 bits, the product with it, and the weight in fp32."""
    q, scales = torch.randint(-127, 128, (32, 64), dtype=torch.int8), torch.rand(32, 1) + 0.5
    weight = IntegerWeight(q=q, scales=scales, zeros=None, bits=8, input_scale=input_scale)
    layer = torch.nn.Module()
    return layer, PackedProduct(layer, weight), q * scales


def test_a_compiled_layer_takes_other_weights_with_their_scale_of_inputs():
    """It would catch a scale in a compiled graph: vLLM loads other weights into the same parameters."""
    layer, product, matrix = draw(0.001)
    options = {"guard_filter_fn": no_guards}
    step = torch.compile(lambda x: product(layer, x, None), backend="eager", fullgraph=True, options=options)
    x = torch.rand(3, 64)

    def check(x, matrix):
        wanted = x @ matrix.T
        torch.testing.assert_close(step(x), wanted, rtol=0, atol=0.02 * float(wanted.abs().max()))

    check(x / 10, matrix)
    other, _, matrix = draw(0.01)
    for name, parameter in layer.named_parameters():
        parameter.data.copy_(getattr(other, name))
    check(x, matrix)  # 0.127 would be the greatest input with the first scale
