"""vLLM's linear layers whose weights are integers of 4 or 8 bits, and whose inputs are 16 or 32 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
from vllm.model_executor.kernels.linear.mixed_precision.dynamic_4bit import Dynamic4bitLinearKernel
from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import (
    MPLinearKernel,
    MPLinearLayerConfig,
)
from vllm.scalar_type import scalar_types

from armllm.checkpoint.matrix import IntegerWeight
from armllm.checkpoint.scheme import largest_group
from armllm.quant.bit_packing import centered, unpack
from armllm.vllm_plugin.interface import check_attributes, check_methods
from armllm.vllm_plugin.products import PackedProduct, release
from armllm.vllm_plugin.selection import check_interface, prefer

if TYPE_CHECKING:
    from torch import Tensor

TYPES = (
    scalar_types.int4,
    scalar_types.uint4,
    scalar_types.uint4b8,
    scalar_types.uint8,
    scalar_types.uint8b128,
)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class ArmllmWNA16LinearKernel(MPLinearKernel):  # type: ignore[misc]
    """``x W^T`` with weights of 4 or 8 bits in groups; each row of x is rounded to 8 bits.

    The sums of a group are exact. See `armllm.kernels.matmul_w4a8` for the rest of the arithmetic.
    """

    @classmethod
    def get_min_capability(cls) -> int:
        """Any CPU."""
        return -1

    @classmethod
    def can_implement(cls, config: MPLinearLayerConfig) -> tuple[bool, str | None]:
        """Whether the kernels have products of this kind, else why not."""
        inputs, group = config.partition_weight_shape[0], config.group_size
        if config.weight_type not in TYPES:
            return False, f"armllm has no products with weights of type {config.weight_type}"
        if config.act_type not in DTYPES:
            return False, f"armllm has no products with inputs of {config.act_type}"
        if config.zero_points and config.weight_type not in {scalar_types.uint4, scalar_types.uint8}:
            return False, f"armllm has no zero points for weights of type {config.weight_type}"
        if getattr(config, "has_g_idx", False):  # a field of vLLM 0.29 and before
            return False, "armllm has no groups of inputs in another order (desc_act) in vLLM"
        if group not in {-1, inputs} and (group <= 0 or inputs % group or not largest_group(group)):
            return False, f"armllm has no groups of {group} for {inputs} inputs"
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Bring the weight into the order of the kernels, and release what was loaded."""
        quantized, scales, zero_points = self._get_weight_params(layer)[:3]  # the fourth orders inputs
        kind = self.config.weight_type
        half = 2 ** (kind.size_bits - 1)
        zeros = None
        if self.config.zero_points:
            stored = _rows_first(zero_points)
            zeros = centered(unpack(stored.t().contiguous(), kind.size_bits), kind.size_bits).t().contiguous()
        elif not kind.is_signed() and kind.bias != half:
            zeros = torch.full(_rows_first(scales).shape, -half, dtype=torch.int8)
        weight = IntegerWeight(
            q=self._integers(quantized),
            scales=_rows_first(scales).float().contiguous(),
            zeros=zeros,
            bits=kind.size_bits,
        )
        self.product = PackedProduct(layer, weight)
        release(layer, [self.w_q_name, self.w_s_name, self.w_zp_name])

    def _integers(self, quantized: torch.nn.Parameter) -> Tensor:
        """The weight as int8 [out_features, in_features], around zero."""
        values = _rows_first(quantized)
        bits = self.config.weight_type.size_bits
        if values.dtype is torch.int8:  # not packed into words
            return values.contiguous()
        return centered(unpack(values, bits), bits)

    def apply_weights(self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x[..., in_features]`` to ``[..., out_features]``, same dtype."""
        return self.product(layer, x, bias)


def _rows_first(parameter: torch.nn.Parameter) -> Tensor:
    """The data with output features (or words of them) in the first dimension."""
    data = parameter.data
    if getattr(parameter, "output_dim", 0) == 0 or data.ndim == 1:
        return data
    return data.t()


def register() -> str:
    """Let vLLM choose `ArmllmWNA16LinearKernel` before its own, or say what switches it off."""
    fields = ("partition_weight_shape", "weight_type", "act_type", "group_size", "zero_points")
    check_interface(ArmllmWNA16LinearKernel, MPLinearLayerConfig, fields)
    methods = ("process_weights_after_loading", "apply_weights", "_get_weight_params")
    check_methods(ArmllmWNA16LinearKernel, methods)
    check_attributes(MPLinearKernel, ("config", "w_q_name", "w_s_name", "w_zp_name"))
    return prefer(ArmllmWNA16LinearKernel, [Dynamic4bitLinearKernel, CPUWNA16LinearKernel], "mp")
