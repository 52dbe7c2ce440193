"""Which attention the plugin takes, by what vLLM says of it; vLLM itself is not needed."""

from __future__ import annotations

import types

import pytest
import torch
from tests.armllm.vllm_plugin.own_vllm import plugin_module

BACKENDS = "vllm.v1.attention.backends"
MODEL = types.SimpleNamespace(dtype=torch.float32, is_multimodal_model=False, is_diffusion=False)
CONFIG = types.SimpleNamespace(model_config=MODEL, speculative_config=None, kv_transfer_config=None)


class Attention:
    def __init__(self, **values):
        vars(self).update({"attn_type": "decoder", "kv_cache_dtype": "auto"} | values)
        self.num_heads, self.num_kv_heads, self.head_size = 4, 2, values.get("head_size", 8)

    def do_kv_cache_update(self, *args):
        return None

    def forward(self, *args):
        return "vLLM's"


class Backend:
    @staticmethod
    def get_builder_cls():
        return "usual"


@pytest.fixture(scope="module")
def attention():
    """The module of the plugin, with vLLM's names as they are here."""
    names = {
        "vllm.config": {"ModelConfig": None, "VllmConfig": None, "get_current_vllm_config": None},
        "vllm.v1.attention.backend": {"AttentionType": types.SimpleNamespace(DECODER="decoder")},
        f"{BACKENDS}.cpu_attn": {
            "CPUAttentionBackend": Backend,
            "CPUAttentionBackendImpl": Attention,
            "CPUAttentionMetadata": None,
            "CPUAttentionMetadataBuilder": "usual",
        },
        f"{BACKENDS}.registry": {"AttentionBackendEnum": None, "register_backend": None},
    }
    with plugin_module("attention", names) as module:
        yield module


@pytest.fixture
def built(attention, monkeypatch):
    """built(model=..., config=..., **layer): a layer of the plugin, and the result of a step of it."""

    def build(model=None, config=None, **values):
        changed = types.SimpleNamespace(**vars(CONFIG) | (config or {}))
        changed.model_config = types.SimpleNamespace(**vars(MODEL) | (model or {}))
        monkeypatch.setattr(attention, "get_current_vllm_config", lambda: changed)
        return attention.ArmllmAttentionImpl(**values)

    return build


def cache(layer):
    return torch.zeros(3, layer.num_kv_heads, 16, 2 * layer.head_size)


def test_a_decoder_is_taken(built):
    layer = built()
    assert layer._layout(cache(layer)) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"is_diffusion": True}},
        {"model": {"is_multimodal_model": True}},
        {"config": {"speculative_config": "a draft"}},
        {"config": {"kv_transfer_config": "another machine"}},
        {"attn_type": "encoder_only"},
        {"kv_cache_dtype": "fp8"},
        {"head_size": 20},
    ],
    ids=["diffusion", "pictures", "drafts", "transfers", "encoder", "fp8", "head size"],
)
def test_other_attention_stays_with_vllm(built, change):
    """It would catch a diffusion model with a causal mask."""
    layer = built(**change)
    x = torch.zeros(1, layer.num_heads, layer.head_size)
    assert layer.forward(None, x, x, x, cache(layer), object(), x) == "vLLM's"


def test_a_step_that_is_not_causal_is_refused(built):
    """It would catch a causal answer to it: the cache is in our order by then, so vLLM can't compute it."""
    layer = built()
    x = torch.zeros(1, layer.num_heads, layer.head_size)
    with pytest.raises(RuntimeError, match=r"set ARMLLM_VLLM=-attention"):
        layer.forward(None, x, x, x, cache(layer), types.SimpleNamespace(causal=False), x)


def test_a_backend_with_other_metadata_stays_with_vllm(attention):
    """vLLM derives it for prompts whose tokens see each other both ways, as those of HRM-Text."""
    ours = attention.ArmllmAttentionBackend
    assert ours.get_impl_cls() is attention.ArmllmAttentionImpl
    derived = type("Derived", (ours,), {"get_builder_cls": lambda: "another"})
    assert derived.get_impl_cls() is Attention
