"""vLLM's linear layers whose weights and inputs are integers of 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.model_executor.kernels.linear.scaled_mm import (
    Int8ScaledMMLinearKernel,
    Int8ScaledMMLinearLayerConfig,
)
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUInt8ScaledMMLinearKernel

from armllm import kernels
from armllm.checkpoint.matrix import IntegerWeight
from armllm.vllm_plugin.interface import check_attributes, check_methods
from armllm.vllm_plugin.products import PackedProduct, release
from armllm.vllm_plugin.selection import check_interface, prefer

if TYPE_CHECKING:
    from torch import Tensor


# vLLM's oneDNN takes 0.80 to 0.93 of the CPU time of avx512_vnni, and 0.78 to 1.06 of that of amx. Of that of
# avx2 it takes 0.55 for prompts, though steps take it longer (docs/vllm.md). Nobody measured the other two.
NOT_FASTER_TARGETS = ("scalar", "avx2", "avx512", "avx512_vnni", "amx")


class ArmllmInt8ScaledMMLinearKernel(Int8ScaledMMLinearKernel):  # type: ignore[misc]
    """``x W^T`` with weights of 8 bits, a scale per output; x is rounded by one scale or one per row."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """On any CPU."""
        del compute_capability  # of a GPU
        return True, None

    @classmethod
    def can_implement(cls, config: Int8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        """Whether the kernels have products of this kind, else why not."""
        if not config.input_symmetric:
            return False, "armllm has no zero points of inputs in vLLM"
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Bring the weight into the order of the kernels, and release what was loaded."""
        q, scales, input_scale, _, _ = self._get_layer_params(layer)
        if scales.numel() != len(q):  # one for each of the matrices that lie one after another
            widths = torch.tensor(layer.logical_widths)
            scales = scales.flatten().expand(len(widths)).repeat_interleave(widths)
        static = self.config.is_static_input_scheme
        weight = IntegerWeight(
            q=q.data.contiguous(),
            scales=scales.float().reshape(-1, 1).contiguous(),
            zeros=None,
            bits=8,
            input_scale=float(input_scale.max()) if static else None,
        )
        self.product = PackedProduct(layer, weight)
        release(layer, list(self.layer_param_names))

    def apply_weights(self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x[..., in_features]`` to ``[..., out_features]``, same dtype."""
        return self.product(layer, x, bias)


def why_slower() -> str:
    """Why vLLM's own products may be the faster ones on this CPU, or ""."""
    target = kernels.weight_target(8)
    reason = f"those of the target {target} are not known to be faster than vLLM's own"
    return reason if target in NOT_FASTER_TARGETS else ""


def register() -> str:
    """Let vLLM choose `ArmllmInt8ScaledMMLinearKernel` before its own, or say what switches it off."""
    fields = ("input_symmetric", "is_static_input_scheme")
    check_interface(ArmllmInt8ScaledMMLinearKernel, Int8ScaledMMLinearLayerConfig, fields)
    methods = ("process_weights_after_loading", "apply_weights", "_get_layer_params")
    check_methods(ArmllmInt8ScaledMMLinearKernel, methods)
    check_attributes(Int8ScaledMMLinearKernel, ("config", "layer_param_names"))
    return prefer(ArmllmInt8ScaledMMLinearKernel, [CPUInt8ScaledMMLinearKernel], "int8")
