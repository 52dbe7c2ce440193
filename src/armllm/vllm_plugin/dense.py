"""vLLM's linear layers with weights in 16 or 32 bits."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.custom_op import PluggableLayer
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

import armllm.kernels.torch_ops  # noqa: F401 - registers the operators
from armllm import kernels
from armllm.layers.cpu import (
    cpu_computes_bfloat16,
    has_fast_kernel,
    has_own_products,
    has_torch_product,
)
from armllm.vllm_plugin.interface import check_attributes, check_methods

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]

LINEAR = (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
# vLLM has products for few outputs, such as those of a router, which start sooner.
FEWEST_OUTPUTS = 64
PANELS = "armllm_panels"


def _can_multiply(layer: Any) -> bool:
    weight: Tensor = layer.weight
    return (
        not weight.is_meta
        and weight.ndim == 2
        and len(weight) >= FEWEST_OUTPUTS
        and weight.dtype is getattr(layer, "params_dtype", weight.dtype)
        and (weight.dtype is torch.bfloat16 or has_own_products(weight.dtype))
    )


def _product(weight: Tensor) -> tuple[Tensor, Product]:
    """The weight in the order of the kernels, and the product of inputs with it and a bias."""
    if has_fast_kernel(weight.dtype):
        return weight.contiguous(), torch.ops.armllm.linear
    panels = kernels.pack_panels(weight)
    outputs, inputs = panels.out_features, panels.in_features

    def multiply(x: Tensor, data: Tensor, bias: Tensor | None) -> Tensor:
        result: Tensor = torch.ops.armllm.panel_linear(x, data, bias, outputs, inputs)
        return result

    return panels.data, multiply


class ArmllmLinearMethod(UnquantizedLinearMethod):  # type: ignore[misc]
    """``x W^T + bias`` in the dtype of both, with sums in fp32."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Bring the weight into the order of the kernels in place of the one that was loaded."""
        self.multiply: Product | None = None
        if getattr(layer, "_cpu_skip_gemm_dispatch", False) or not _can_multiply(layer):
            super().process_weights_after_loading(layer)
            return
        data, self.multiply = _product(layer.weight.data)
        layer.weight = torch.nn.Parameter(data, requires_grad=False)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x[..., in_features]`` to ``[..., out_features]``, same dtype."""
        if self.multiply is not None:
            return self.multiply(x, layer.weight, bias)
        product: Tensor = super().apply(layer, x, bias)
        return product


class ArmllmTableMethod(UnquantizedEmbeddingMethod):  # type: ignore[misc]
    """vLLM's method for a table of embeddings that is the weight of heads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.panels: dict[ArmllmHeadMethod, torch.nn.Parameter] = {}

    def process_weights_after_loading(self, layer: Any) -> None:
        """Order the weight for the heads again: when vLLM loads it once more, it does not ask them."""
        super().process_weights_after_loading(layer)
        for panels in self.panels.values():
            panels.data.copy_(_product(layer.weight.data)[0])


class ArmllmHeadMethod(UnquantizedEmbeddingMethod):  # type: ignore[misc]
    """The same for the head, whose weight stays: it may be the table of embeddings, too."""

    table: ArmllmTableMethod | None = None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Store the weight a second time, in the order of the kernels."""
        self.multiply: Product | None = None
        if not _can_multiply(layer):
            super().process_weights_after_loading(layer)
            return
        data, self.multiply = _product(layer.weight.data)
        panels = torch.nn.Parameter(data, requires_grad=False)
        layer.register_parameter(PANELS, panels)
        if self.table is not None:
            self.table.panels.setdefault(self, panels)

    def tie_weights(self, layer: Any, embed_tokens: Any) -> Any:
        """Let ``layer`` have the weight of the table ``embed_tokens``."""
        if type(embed_tokens.quant_method) is UnquantizedEmbeddingMethod:
            embed_tokens.quant_method = ArmllmTableMethod()
        method = embed_tokens.quant_method
        self.table = method if isinstance(method, ArmllmTableMethod) else None
        return super().tie_weights(layer, embed_tokens)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x[..., in_features]`` to ``[..., out_features]``, same dtype."""
        if self.multiply is not None:
            return self.multiply(x, getattr(layer, PANELS), bias)
        product: Tensor = super().apply(layer, x, bias)
        return product


def _with_method(layer: type, plain: type, ours: type) -> type:
    """The class of a layer that takes ``ours`` where it would take ``plain``."""

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        layer.__init__(self, *args, **kwargs)  # type: ignore[misc]
        if type(self.quant_method) is plain:
            self.quant_method = ours()

    return type(f"Armllm{layer.__name__}", (layer,), {"__init__": initialize})


def why_slower() -> str:
    """Why vLLM's own products are the faster ones on this CPU, or ""."""
    if not has_torch_product(torch.bfloat16):  # oneDNN has only portable loops
        return ""
    # Without such instructions oneDNN takes four times as long for prompts (docs/vllm.md).
    has_slow_torch = platform.machine() == "aarch64" or not cpu_computes_bfloat16()
    if has_own_products(torch.bfloat16) and has_slow_torch:
        return ""
    return "vLLM's own are faster on this CPU from a few sequences on"


def register() -> None:
    """Let vLLM build its layers with our products."""
    for method in (ArmllmLinearMethod, ArmllmHeadMethod):
        check_methods(method, ("process_weights_after_loading", "apply"))
    check_methods(ArmllmTableMethod, ("process_weights_after_loading",))
    check_methods(ArmllmHeadMethod, ("tie_weights",))
    for layer in (*LINEAR, ParallelLMHead, VocabParallelEmbedding):
        check_attributes(layer, ("quant_method",))
    for layer in LINEAR:
        ours = _with_method(layer, UnquantizedLinearMethod, ArmllmLinearMethod)
        PluggableLayer.register_oot(ours, name=layer.__name__)
    head = _with_method(ParallelLMHead, UnquantizedEmbeddingMethod, ArmllmHeadMethod)
    PluggableLayer.register_oot(head, name=ParallelLMHead.__name__)
