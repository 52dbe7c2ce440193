"""Norms, activations and rotary embeddings take the place of vLLM's in groups."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.armllm.vllm_plugin.own_vllm import plugin_module


class Norm:
    name = "norm"

    def forward_native(self, x):
        """What vLLM has."""


class ChangedNorm:
    name = "changed_norm"

    def forward_native(self, inputs):
        """The same with another name for its argument."""


def forward_cpu(self, x):
    """Ours."""


@pytest.fixture
def registered():
    return {}


@pytest.fixture
def operators(registered):
    custom_op = SimpleNamespace(register_oot=lambda ours, name: registered.update({name: ours}))
    with plugin_module("operators", {"vllm.model_executor.custom_op": {"CustomOp": custom_op}}) as module:
        yield module


def ours_of(layer):
    return type("Ours", (layer,), {"forward_cpu": forward_cpu})


def test_ours_are_registered_under_the_names_of_vllm(operators, registered):
    ours = ours_of(Norm)
    ours.name = "registered"  # what vLLM's register does
    operators.replace_operators([(Norm, ours)])
    assert registered == {"Norm": ours}
    assert ours.name == "norm"


def test_a_group_with_one_other_interface_stays_vllm_s(operators, registered):
    """It would catch a model whose layers are vLLM's in part and ours in part."""
    with pytest.raises(TypeError, match=r"its ChangedNorm.forward_native takes inputs"):
        operators.replace_operators((layer, ours_of(layer)) for layer in (Norm, ChangedNorm))
    assert not registered
