"""Which layers of 4 and 8 bits the plugin takes, by what vLLM says of them; vLLM itself is not needed."""

from __future__ import annotations

import dataclasses
import types

import pytest
import torch
from tests.armllm.vllm_plugin.own_vllm import plugin_module

LINEAR = "vllm.model_executor.kernels.linear"
MIXED = f"{LINEAR}.mixed_precision"


@dataclasses.dataclass(frozen=True)
class ScalarType:
    """What the plugin asks of vLLM's class of this name."""

    size_bits: int
    bias: int = 0
    signed: bool = False

    def is_signed(self):
        return self.signed


TYPES = {
    "int4": ScalarType(4, signed=True),
    "uint4": ScalarType(4),
    "uint4b8": ScalarType(4, 8),
    "uint8": ScalarType(8),
    "uint8b128": ScalarType(8, 128),
}


class Kernel:
    def __init__(self, config):
        self.config = config
        self.w_q_name, self.w_s_name, self.w_zp_name = "q", "s", "z"

    def _get_weight_params(self, layer):
        order = (None,) if hasattr(self.config, "has_g_idx") else ()
        return layer.q, layer.s, getattr(layer, "z", None), *order


@dataclasses.dataclass
class Config:
    weight_type: ScalarType
    group_size: int
    zero_points: bool = False
    act_type: torch.dtype = torch.bfloat16
    partition_weight_shape: tuple[int, int] = (256, 32)


@pytest.fixture
def ours():
    """The class of the plugin, with vLLM's names as they are here."""
    names = {
        f"{MIXED}.cpu": {"CPUWNA16LinearKernel": Kernel},
        f"{MIXED}.dynamic_4bit": {"Dynamic4bitLinearKernel": Kernel},
        f"{MIXED}.MPLinearKernel": {"MPLinearKernel": Kernel, "MPLinearLayerConfig": Config},
        "vllm.scalar_type": {"scalar_types": types.SimpleNamespace(**TYPES)},
        LINEAR: {"register_linear_kernel": None},
        "vllm.platforms": {"PlatformEnum": None},
    }
    with plugin_module("mixed_precision", names, "selection") as module:
        yield module.ArmllmWNA16LinearKernel


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("group", [-1, 32, 64, 96, 128, 256])
def test_groups_and_types_that_the_kernels_have_are_taken(ours, kind, group):
    shape = (192 if group == 96 else 256, 32)
    assert ours.can_implement(Config(TYPES[kind], group, partition_weight_shape=shape)) == (True, None)


@pytest.mark.parametrize("group", [0, -2, 16, 48, 512])
def test_other_groups_stay_with_vllm(ours, group):
    """It would catch a division by a group of 0, which ends vLLM."""
    taken, why = ours.can_implement(Config(TYPES["uint4b8"], group))
    assert (taken, why) == (False, f"armllm has no groups of {group} for 256 inputs")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"weight_type": ScalarType(2)}, "weights of type"),
        ({"act_type": torch.int8}, "inputs of torch.int8"),
        ({"zero_points": True}, "zero points for weights of type"),
    ],
)
def test_what_the_kernels_lack_is_named(ours, change, why):
    taken, reason = ours.can_implement(dataclasses.replace(Config(TYPES["uint4b8"], 64), **change))
    assert not taken
    assert why in reason


@dataclasses.dataclass
class OlderConfig(Config):
    """That of vLLM 0.29, which knows of inputs in another order."""

    has_g_idx: bool = False


def test_inputs_in_another_order_stay_with_vllm(ours):
    """It would catch groups of the wrong inputs, with a vLLM that has `desc_act`."""
    config = OlderConfig(TYPES["uint4b8"], 64)
    assert ours.can_implement(config) == (True, None)
    taken, reason = ours.can_implement(dataclasses.replace(config, has_g_idx=True))
    assert (taken, "desc_act" in reason) == (False, True)


@pytest.mark.parametrize("config", [Config, OlderConfig])
def test_a_layer_means_its_integers_and_scales(ours, config):
    """It would catch a vLLM whose layers have one parameter more, which ends it while it loads a model."""
    layer, q, scales = torch.nn.Module(), torch.randint(-8, 8, (16, 2, 64)), torch.rand(16, 2) + 0.5
    layer.q = torch.nn.Parameter(q.reshape(16, 128).to(torch.int8), requires_grad=False)
    layer.s = torch.nn.Parameter(scales.clone())
    kernel = ours(config(TYPES["int4"], 64, partition_weight_shape=(128, 16)))
    kernel.process_weights_after_loading(layer)
    x = torch.randn(3, 128)
    wanted = x @ (q * scales[..., None]).view(16, 128).T
    # inputs are rounded to 8 bits
    torch.testing.assert_close(kernel.apply_weights(layer, x), wanted, rtol=0, atol=0.02 * wanted.abs().max())
