"""vLLM's RMS norms, where each is an operator (see `operators`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

import armllm.kernels.torch_ops  # noqa: F401 - registers the operators
from armllm.vllm_plugin.interface import check_attributes
from armllm.vllm_plugin.operators import replace_operators

if TYPE_CHECKING:
    from torch import Tensor

    Result = Tensor | tuple[Tensor, Tensor]

OPS = torch.ops.armllm


class ArmllmRMSNorm(RMSNorm):  # type: ignore[misc]
    """``x / sqrt(mean(x^2) + eps) * weight``, rounded once; with a residual, of the sum of both."""

    def forward_cpu(self, x: Tensor, residual: Tensor | None = None) -> Result:
        """The norm, and the sum where there is a residual; both take the place of the inputs then."""
        result: Result
        known = self.has_weight and self.variance_size_override is None and self.weight.dtype == x.dtype
        if residual is None:
            eps = self.variance_epsilon
            result = OPS.rms_norm(x, self.weight, eps, 0.0) if known else self.forward_native(x)
        elif known and residual.dtype == x.dtype and x.is_contiguous() and residual.is_contiguous():
            OPS.fused_add_rms_norm(x, residual, self.weight, self.variance_epsilon, 0.0)
            result = x, residual
        else:
            result = self.forward_native(x, residual)
        return result


class ArmllmGemmaRMSNorm(GemmaRMSNorm):  # type: ignore[misc]
    """The same with ``weight + 1``; it writes over nothing."""

    def forward_cpu(self, x: Tensor, residual: Tensor | None = None) -> Result:
        """The norm, and the sum where there is a residual."""
        result: Result
        if self.weight.dtype != x.dtype or (residual is not None and residual.dtype != x.dtype):
            result = self.forward_native(x, residual)
        elif residual is None:
            result = OPS.rms_norm(x, self.weight, self.variance_epsilon, 1.0)
        else:
            sums = x + residual
            result = OPS.rms_norm(sums, self.weight, self.variance_epsilon, 1.0), sums
        return result


def register() -> None:
    """Put our RMS norms in the place of vLLM's."""
    rms = ("weight", "variance_epsilon")
    check_attributes(RMSNorm, (*rms, "has_weight", "variance_size_override"))
    check_attributes(GemmaRMSNorm, rms)
    replace_operators([(RMSNorm, ArmllmRMSNorm), (GemmaRMSNorm, ArmllmGemmaRMSNorm)])
