"""Which of vLLM's kernels for integers come before ours, by its variable; vLLM itself is not needed."""

from __future__ import annotations

import os
import types

import pytest
from tests.armllm.vllm_plugin.own_vllm import plugin_module


class Ours:
    pass


class First:
    pass


class Second:
    pass


@pytest.fixture
def prefer(monkeypatch):
    """prefer(disabled): the names that are registered after it, and the result."""
    registered = []
    names = {
        "vllm.model_executor.kernels.linear": {
            "register_linear_kernel": lambda kernel, *_: registered.append(kernel.__name__)
        },
        "vllm.platforms": {"PlatformEnum": types.SimpleNamespace(CPU="cpu")},
    }
    monkeypatch.setenv("ARMLLM_VLLM_DISABLED", "")  # monkeypatch puts it back

    with plugin_module("selection", names) as selection:

        def register(disabled):
            monkeypatch.setenv("VLLM_DISABLED_KERNELS", disabled)
            return registered, selection.prefer(Ours, [First, Second], "mp")

        yield register


def test_ours_come_first_and_vllm_s_behind(prefer):
    registered, reason = prefer("Second,Another")
    assert not reason
    assert registered == ["Ours", "FirstAfterArmllm"]
    assert os.environ["VLLM_DISABLED_KERNELS"] == "Second,Another,First"
    assert os.environ["ARMLLM_VLLM_DISABLED"] == "First"


def test_what_the_user_has_disabled_changes_nothing(prefer):
    registered, reason = prefer("Ours")
    assert reason == "switched off by VLLM_DISABLED_KERNELS"
    assert not registered
    assert os.environ["VLLM_DISABLED_KERNELS"] == "Ours"
