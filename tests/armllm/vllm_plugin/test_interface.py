"""Another vLLM may call a method with other arguments: that is found before it does."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from armllm.vllm_plugin.interface import check_attributes, check_methods


class Known:
    def apply(self, layer, x, bias=None, extra=None):
        """What vLLM has."""


class Ours(Known):
    def apply(self, layer, x, *args, extra=None, **kwargs):
        """What takes its place."""


class Renamed(Known):
    def apply(self, layer, inputs, *args):
        """The same in a vLLM that calls it ``x``."""


class Fewer(Known):
    def apply(self, layer, x, *, scale=None):
        """A name that vLLM never gives."""


def test_the_same_arguments_are_taken():
    check_methods(Ours, ["apply"])


class Shorter(Known):
    def apply(self, layer, x, bias=None):
        """What a vLLM may give one more argument than it takes."""


@pytest.mark.parametrize("ours", [Renamed, Fewer, Shorter])
def test_other_arguments_are_named(ours):
    with pytest.raises(TypeError, match=r"its Known.apply takes layer, x, bias, extra"):
        check_methods(ours, ["apply"])


def test_a_method_that_is_gone_is_named():
    with pytest.raises(TypeError, match="its Known has no forward"):
        check_methods(Ours, ["forward"])


class Norm(torch.nn.Module):
    scale = 1

    def __init__(self):
        super().__init__()
        self.eps: float = 1e-5
        self.register_buffer("table", torch.zeros(1))

    @property
    def weight(self):
        """Computed."""


@dataclasses.dataclass
class Config:
    dtype: str


class Deeper(Norm, Config):
    """What both have."""


def test_attributes_are_found_before_there_is_an_object():
    check_attributes(Deeper, ["scale", "eps", "table", "weight", "dtype"])


def test_an_attribute_that_is_gone_is_named():
    """It would catch a plugin that fails in the first step of a model."""
    with pytest.raises(TypeError, match="its Deeper has no bias, epsilon"):
        check_attributes(Deeper, ["epsilon", "bias", "eps"])
