"""Which experts the plugin takes, by what vLLM says of them; vLLM itself is not needed."""

from __future__ import annotations

import enum
import types

import pytest
import torch
from tests.armllm.vllm_plugin.own_vllm import plugin_module

from armllm.layers.cpu import has_fast_panels

FUSED = "vllm.model_executor.layers.fused_moe"
MoEActivation = enum.Enum("MoEActivation", "SILU GELU GELU_TANH SWIGLUOAI")


class Experts:
    """vLLM's own."""


class Method:
    def __init__(self, moe):
        self.experts_cls = getattr(moe, "chosen", Experts)
        self.moe_kernel = None

    def process_weights_after_loading(self, layer):
        """As vLLM: it asks the experts once, and later weights are for whom they concern."""
        if self.moe_kernel is None:
            self.moe_kernel = types.SimpleNamespace(fused_experts=self.experts_cls())
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)


@pytest.fixture(scope="module")
def experts():
    """The module of the plugin, with vLLM's names as they are here."""
    names = {
        f"{FUSED}.activation": {"MoEActivation": MoEActivation},
        f"{FUSED}.config": {"FusedMoEConfig": None, "FusedMoEParallelConfig": None},
        f"{FUSED}.experts.cpu_moe": {"CPUUnquantizedExperts": Experts},
        f"{FUSED}.unquantized_fused_moe_method": {"UnquantizedFusedMoEMethod": Method},
    }
    with plugin_module("experts", names) as module:
        yield module


class Triton:
    """What vLLM chooses for adapters."""


def no_guards(entries):
    """What vLLM lets torch's compiler check before it takes a compiled graph: nothing."""
    return [False] * len(entries)


def mixture(x, expert):
    """New weights of two experts, and what one of them makes of ``x[tokens, 64]``."""
    weights = types.SimpleNamespace(
        w13_weight=torch.nn.Parameter(torch.randn(2, 128, 64)),
        w2_weight=torch.nn.Parameter(torch.randn(2, 64, 64)),
    )
    gate, up = weights.w13_weight[expert].chunk(2)
    return weights, (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ weights.w2_weight[expert].T


def layer(**change):
    values = {
        "is_act_and_mul": True,
        "activation": MoEActivation.SILU,
        "in_dtype": torch.bfloat16,
        "swiglu_limit": None,
        "moe_parallel_config": types.SimpleNamespace(enable_eplb=False),
    }
    return types.SimpleNamespace(**values | change)


@pytest.mark.parametrize("activation", [MoEActivation.SILU, MoEActivation.GELU, MoEActivation.GELU_TANH])
def test_experts_that_the_kernels_have_are_taken(experts, activation):
    assert experts.ArmllmMoEMethod(layer(activation=activation)).experts_cls is experts.ArmllmExperts


@pytest.mark.parametrize(
    "change",
    [
        {"swiglu_limit": 7.0},
        {"activation": MoEActivation.SWIGLUOAI},
        {"is_act_and_mul": False},
        {"in_dtype": torch.float64},
        {"moe_parallel_config": types.SimpleNamespace(enable_eplb=True)},
    ],
    ids=["a limit", "gpt-oss", "no gate", "another dtype", "experts that move"],
)
def test_other_experts_stay_with_vllm(experts, change):
    """It would catch answers without the clamp of the model."""
    assert experts.ArmllmMoEMethod(layer(**change)).experts_cls is Experts


def test_experts_that_are_not_for_cpus_stay_with_vllm(experts):
    """It would catch adapters that are given to experts without them."""
    assert experts.ArmllmMoEMethod(layer(chosen=Triton)).experts_cls is Triton


def test_a_compiled_step_asks_for_the_experts_that_its_layer_has_now(experts):
    """It would catch a number in a compiled graph: vLLM loads other weights, and graphs that it stored."""
    method = experts.ArmllmExperts()
    method.w1_bias = method.w2_bias = None
    x, ids, shares = torch.randn(3, 64), torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1)
    options = {"guard_filter_fn": no_guards}
    step = torch.compile(method.apply, backend="eager", fullgraph=True, options=options)

    def check():
        weights, wanted = mixture(x, 0)
        method.process_weights_after_loading(weights)
        out = torch.empty_like(x)
        step(out, x, topk_weights=shares, topk_ids=ids, activation=MoEActivation.SILU)
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-3)

    check()
    check()


def test_an_argument_that_ours_do_not_know_is_named(experts, monkeypatch):
    """It would catch answers without what a newer vLLM asks for in a new argument."""

    class Newer:
        def apply(self, output, hidden_states, w1, *, topk_weights, scale_of_shared):
            """Take what ours do not have."""

    monkeypatch.setattr(experts, "CPUUnquantizedExperts", Newer)
    with pytest.raises(TypeError, match=r"its CPUUnquantizedExperts.apply also takes scale_of_shared$"):
        experts.register()


@pytest.mark.skipif(not has_fast_panels(torch.float32), reason="this CPU takes weights as they are")
def test_other_weights_are_those_of_a_checkpoint_or_refused(experts, monkeypatch):
    """It would catch the old weights after vLLM's `reload_weights`, and numbers that nobody reads."""
    monkeypatch.setattr(experts.ArmllmExperts, "w1_bias", None, raising=False)
    monkeypatch.setattr(experts.ArmllmExperts, "w2_bias", None, raising=False)
    method = experts.ArmllmMoEMethod(layer())
    x, ids, shares = torch.randn(3, 64), torch.ones(3, 1, dtype=torch.int64), torch.ones(3, 1)

    def load():
        weights, wanted = mixture(x, 1)
        method.process_weights_after_loading(weights)
        out = torch.empty_like(x)
        routed = {"topk_weights": shares, "topk_ids": ids, "activation": MoEActivation.SILU}
        method.moe_kernel.fused_experts.apply(out, x, **routed)
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-3)
        return weights.w13_weight

    first, second = load(), load()
    assert first.shape == (2, 128, 64)
    assert first.untyped_storage().nbytes() < 1000
    first.data.copy_(second)  # so vLLM keeps the address of a parameter
    with pytest.raises(ValueError, match="load them as a checkpoint has them"):
        first.copy_(torch.randn(2, 128, 64))


def test_each_rank_has_the_part_of_its_experts(experts):
    """It would catch the experts of other ranks looked for in this one: vLLM gives the numbers of all."""
    gate_up, down = torch.randn(4, 128, 64), torch.randn(4, 64, 64)
    x, ids = torch.randn(3, 64), torch.tensor([[0, 1], [3, 2], [0, 3]], dtype=torch.int32)
    shares = torch.rand(3, 2)

    def part(first, count):
        method = experts.ArmllmExperts()
        method.w1_bias = method.w2_bias = None
        weights = types.SimpleNamespace(
            w13_weight=torch.nn.Parameter(gate_up[first : first + count]),
            w2_weight=torch.nn.Parameter(down[first : first + count]),
        )
        method.process_weights_after_loading(weights)
        here = torch.arange(4, dtype=torch.int32) - first
        expert_map = None if count == 4 else torch.where((here >= 0) & (here < count), here, -1)
        out = torch.empty_like(x)
        routed = {"topk_weights": shares, "topk_ids": ids, "activation": MoEActivation.SILU}
        method.apply(out, x, **routed, expert_map=expert_map)
        return out

    torch.testing.assert_close(part(0, 2) + part(2, 2), part(0, 4), rtol=1e-4, atol=1e-3)
