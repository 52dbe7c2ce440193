"""RMS norms take the place of vLLM's also where its layer norm cannot be replaced."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.armllm.vllm_plugin.own_vllm import plugin_module

from armllm import vllm_plugin


class RMSNorm(torch.nn.Module):
    name = "rms_norm"

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, size), requires_grad=False)
        self.variance_epsilon = eps
        self.has_weight = True
        self.variance_size_override = None

    def forward_native(self, x, residual=None):
        """What vLLM computes where ours has no kernel."""
        assert residual is None
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


class GemmaRMSNorm(RMSNorm):
    name = "gemma_rms_norm"


class LayerNorm(torch.nn.Module):
    """That of vLLM before 0.32: a module, no operator."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight, self.bias, self.eps = torch.ones(size), torch.zeros(size), eps

    def forward(self, x):
        """The norm."""


@pytest.fixture
def registered():
    return {}


@pytest.fixture
def vllm(monkeypatch, registered):
    """What vLLM before 0.32 has of norms, with all norms wanted."""
    custom_op = SimpleNamespace(register_oot=lambda ours, name: registered.update({name: ours}))
    norms = {one.__name__: one for one in (RMSNorm, GemmaRMSNorm, LayerNorm)}
    names = {
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: True)},
        "vllm.envs": {"environment_variables": {}},
        "vllm.model_executor.custom_op": {"CustomOp": custom_op},
        "vllm.model_executor.layers.layernorm": norms,
    }
    monkeypatch.setenv(vllm_plugin.VARIABLE, "norm,layer_norm")
    vllm_plugin.activate.cache_clear()
    with plugin_module("norms", names, "operators"):
        yield
    vllm_plugin.activate.cache_clear()


def test_a_layer_norm_that_is_no_operator_is_one_line(vllm, registered, caplog):
    """It would catch RMS norms that stay vLLM's because of layer norms, which most decoders lack."""
    vllm_plugin.register()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("armllm: layer_norm: this vLLM has another interface: ")
    assert line.endswith("'LayerNorm' has no attribute 'forward_native': vLLM keeps its own kernels")
    assert registered.keys() == {"RMSNorm", "GemmaRMSNorm"}


def test_ours_is_the_norm_of_vllm(vllm, registered):
    """It would catch the weight of Gemma, which is one less, as that of other norms."""
    vllm_plugin.activate()
    x = torch.randn(3, 64)
    norm, gemma = registered["RMSNorm"](64), registered["GemmaRMSNorm"](64)
    wanted = norm.forward_native(x)
    torch.testing.assert_close(norm.forward_cpu(x), wanted)
    gemma.weight -= 1
    torch.testing.assert_close(gemma.forward_cpu(x), wanted)
