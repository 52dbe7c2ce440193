"""vLLM's mixtures of experts with weights in 16 or 32 bits."""

from __future__ import annotations

import inspect
import itertools
import weakref
from typing import TYPE_CHECKING, Any, cast

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEParallelConfig
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from armllm import kernels
from armllm.layers.cpu import has_fast_kernel, has_fast_panels
from armllm.vllm_plugin.interface import check_attributes, check_methods

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.kernels.moe import GatedActivation

ACTIVATIONS = {
    MoEActivation.SILU: "silu",
    MoEActivation.GELU: "gelu",
    MoEActivation.GELU_TANH: "gelu_tanh",
}
OPS = {
    torch.bfloat16: kernels.moe_bf16,
    torch.float16: kernels.moe_f16,
    torch.float32: kernels.moe_f32,
}
# what is read of objects of vLLM
ATTRIBUTES = {
    FusedMoEConfig: ("is_act_and_mul", "activation", "in_dtype", "swiglu_limit", "moe_parallel_config"),
    FusedMoEParallelConfig: ("enable_eplb",),
    CPUUnquantizedExperts: ("w1_bias", "w2_bias"),
    UnquantizedFusedMoEMethod: ("experts_cls", "moe_kernel", "w13_weight", "w2_weight"),
}
# Arguments of vLLM's experts that ours need not have: ours have their own weights and memory, and no scales.
UNUSED = frozenset(
    {
        *("w1", "w2", "global_num_experts", "a1q_scale", "a2_scale"),
        *("workspace13", "workspace2", "expert_tokens_meta"),
    }
)
# The experts of each layer, by the number that the operator takes. It is a tensor: what is none stays in a
# compiled graph, which vLLM stores, and keeps when it loads other weights.
LAYERS: weakref.WeakValueDictionary[int, kernels.Experts] = weakref.WeakValueDictionary()
NUMBERS = itertools.count()
_LIBRARY: Any = torch.library.Library("armllm_vllm", "DEF")  # type: ignore[no-untyped-call]


def _compute(x: Tensor, expert_ids: Tensor, expert_weights: Tensor, layer: Tensor, activation: str) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    OPS[x.dtype](
        out,
        x,
        expert_ids.long(),
        expert_weights.float(),
        LAYERS[int(layer)],
        activation=cast("GatedActivation", activation),
    )
    return out


_LIBRARY.define("experts(Tensor x, Tensor ids, Tensor weights, Tensor layer, str activation) -> Tensor")
_LIBRARY.impl("experts", _compute, "CPU")
torch.library.register_fake(
    "armllm_vllm::experts",
    lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format),
    lib=_LIBRARY,
)


def can_compute(moe: Any) -> bool:
    """Whether the kernels have such experts: gated without a clamp, and each on one rank."""
    return (
        moe.is_act_and_mul
        and moe.activation in ACTIVATIONS
        and moe.in_dtype in OPS
        and moe.swiglu_limit is None
        and not moe.moe_parallel_config.enable_eplb
    )


class ShapeOnly(torch.nn.Parameter):
    """A parameter in place of a weight that the kernels have in another order."""

    def copy_(self, *_: Any, **__: Any) -> Any:
        """Refuse numbers. vLLM loads a checkpoint again by ``data``, from which nothing is read."""
        raise ValueError("armllm has experts in the order of its kernels: load them as a checkpoint has them")


def _empty(weight: Tensor) -> Tensor:
    """A tensor of the same shape that may be written, in the memory of a row and a column."""
    few = weight.new_empty(sum(weight.shape) - weight.ndim + 1)
    return few.as_strided(weight.shape, (1,) * weight.ndim)


class ArmllmExperts(CPUUnquantizedExperts):  # type: ignore[misc]
    """The MLPs to which a router sent each token, weighted and added; vLLM's router, our products."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Bring the weights of each expert into the order of the kernels."""
        gate_up = _ordered(layer.w13_weight.data)
        down = _ordered(layer.w2_weight.data)
        biases = [None if one is None else one.float().contiguous() for one in (self.w1_bias, self.w2_bias)]
        number = next(NUMBERS)
        self.number = torch.tensor(number)
        self.experts = LAYERS[number] = kernels.join_experts(gate_up, down, *biases)
        in_panels = isinstance(gate_up[0], kernels.PanelWeight)
        self.has_copies = in_panels or any(one is not None for one in biases)
        if in_panels:
            # vLLM reads the shapes of the parameters, but not what is in them
            for name in ("w13_weight", "w2_weight"):
                weight = getattr(layer, name)
                setattr(layer, name, ShapeOnly(_empty(weight.data), requires_grad=False))
            # With it, a state that vLLM saves of this model is an error when it is loaded: it has no weights.
            layer.armllm_experts = torch.nn.Parameter(self.number, requires_grad=False)

    def apply(
        self,
        output: Tensor,
        hidden_states: Tensor,
        *,
        topk_weights: Tensor,
        topk_ids: Tensor,
        activation: MoEActivation,
        expert_map: Tensor | None = None,
        apply_router_weight_on_input: bool = False,
        **kwargs: Any,
    ) -> None:
        """``hidden_states[tokens, hidden]`` to ``output`` of the same shape, by the experts of this rank."""
        del kwargs  # `UNUSED`
        if apply_router_weight_on_input:  # the inputs have the weights then
            topk_weights = torch.ones_like(topk_weights)
        if expert_map is not None:  # the number here of each expert, -1 of those on other ranks
            topk_ids = expert_map[topk_ids.long()]
            topk_weights = topk_weights * (topk_ids >= 0)
            topk_ids = topk_ids.clamp(min=0)
        name = ACTIVATIONS[activation]
        output.copy_(torch.ops.armllm_vllm.experts(hidden_states, topk_ids, topk_weights, self.number, name))


def _ordered(weights: Tensor) -> list[kernels.PanelWeight | Tensor]:
    """The matrices of ``weights[experts, out_features, in_features]``."""
    if has_fast_panels(weights.dtype) and not has_fast_kernel(weights.dtype):
        return [kernels.pack_panels(one) for one in weights]
    return [one.contiguous() for one in weights]


class ArmllmMoEMethod(UnquantizedFusedMoEMethod):  # type: ignore[misc]
    """vLLM's method with `ArmllmExperts` in place of its own for CPUs, where the kernels have such experts.

    It chooses others for adapters, and where the user names them.
    """

    experts_cls: type
    moe_kernel: Any

    def __init__(self, moe: Any) -> None:
        super().__init__(moe)
        if issubclass(self.experts_cls, CPUUnquantizedExperts) and can_compute(moe):
            self.experts_cls = ArmllmExperts

    def process_weights_after_loading(self, layer: Any) -> None:
        """Let our experts copy other weights too: vLLM asks them for the first ones alone."""
        is_first = self.moe_kernel is None
        super().process_weights_after_loading(layer)
        experts = getattr(self.moe_kernel, "fused_experts", None)
        if not is_first and isinstance(experts, ArmllmExperts) and experts.has_copies:
            experts.process_weights_after_loading(layer)


def _check_others() -> None:
    """TypeError where vLLM's experts take an argument that ours do not know."""
    found, known = (inspect.signature(one.apply).parameters for one in (CPUUnquantizedExperts, ArmllmExperts))
    if others := found.keys() - known.keys() - UNUSED:
        raise TypeError(f"its CPUUnquantizedExperts.apply also takes {', '.join(sorted(others))}")


def register() -> None:
    """Let vLLM compute experts by our kernels."""
    _check_others()
    check_methods(ArmllmExperts, ("process_weights_after_loading", "apply"))
    check_methods(ArmllmMoEMethod, ("process_weights_after_loading",))
    for kind, names in ATTRIBUTES.items():
        check_attributes(kind, names)
    UnquantizedFusedMoEMethod.register_oot(ArmllmMoEMethod, name=UnquantizedFusedMoEMethod.__name__)
