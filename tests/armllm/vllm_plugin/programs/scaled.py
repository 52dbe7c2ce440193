"""A layer of two matrices, with a scale for each, whose inputs have one scale or one per row."""

import torch
from vllm.model_executor.kernels.linear.scaled_mm import Int8ScaledMMLinearLayerConfig

from armllm.vllm_plugin.scaled import ArmllmInt8ScaledMMLinearKernel

torch.manual_seed(0)  # an input above 3.8 would not fit the static scale
names = ["weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj"]
for static in (False, True):
    layer = torch.nn.Module()
    layer.logical_widths = [32, 64]
    q = torch.randint(-128, 128, (96, 64), dtype=torch.int8)
    scales = torch.tensor([0.01, 0.02])
    layer.weight = torch.nn.Parameter(q, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scales, requires_grad=False)
    layer.input_scale = torch.nn.Parameter(torch.tensor(0.03), requires_grad=False) if static else None
    config = Int8ScaledMMLinearLayerConfig(
        is_static_input_scheme=static, is_channelwise=False, input_symmetric=True
    )
    kernel = ArmllmInt8ScaledMMLinearKernel(config, names)
    kernel.process_weights_after_loading(layer)
    x = torch.randn(2, 3, 64)
    exact = x @ (q * torch.cat([scales[:1].expand(32), scales[1:].expand(64)])[:, None]).T
    assert not layer.weight.numel()
    torch.testing.assert_close(kernel.apply_weights(layer, x), exact, rtol=0.02, atol=0.3)
config.input_symmetric = False
assert not ArmllmInt8ScaledMMLinearKernel.can_implement(config)[0]
