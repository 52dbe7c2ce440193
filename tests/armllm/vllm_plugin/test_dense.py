"""Layers with weights in 16 or 32 bits in the plugin, with vLLM's names as they are here."""

from __future__ import annotations

import types

import pytest
import torch
from tests.armllm.vllm_plugin.own_vllm import plugin_module

LAYERS = "vllm.model_executor.layers"
LINEAR = "ColumnParallel MergedColumnParallel QKVParallel Replicated RowParallel"


class Method:
    """vLLM's own."""

    def process_weights_after_loading(self, layer):
        """Change nothing."""

    def apply(self, layer, x, bias=None):
        return torch.nn.functional.linear(x, layer.weight, bias)


class EmbeddingMethod(Method):
    def tie_weights(self, layer, embed_tokens):
        layer.weight = embed_tokens.weight
        return layer


@pytest.fixture
def dense():
    linear = dict.fromkeys(f"{name}Linear" for name in LINEAR.split()) | {"UnquantizedLinearMethod": Method}
    embeddings = dict.fromkeys(["ParallelLMHead", "VocabParallelEmbedding"])
    names = {
        "vllm.model_executor.custom_op": {"PluggableLayer": None},
        f"{LAYERS}.linear": linear,
        f"{LAYERS}.vocab_parallel_embedding": embeddings | {"UnquantizedEmbeddingMethod": EmbeddingMethod},
    }
    with plugin_module("dense", names) as module:
        yield module


def layer(method, rows=128, columns=64):
    made = torch.nn.Module()
    made.weight = torch.nn.Parameter(torch.randn(rows, columns), requires_grad=False)
    made.quant_method = method
    return made


def load(made, weight):
    """vLLM loads a weight once more: it is processed as a new one, and copied into the place of the old."""
    place = made.weight
    made.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    made.quant_method.process_weights_after_loading(made)
    place.data.copy_(weight)
    made.weight = place


def test_heads_that_are_the_table_follow_it_to_other_weights(dense):
    """It would catch the old weights in a head: vLLM's `reload_weights` processes the table alone."""
    table, *heads = layer(EmbeddingMethod()), layer(dense.ArmllmHeadMethod()), layer(dense.ArmllmHeadMethod())
    for head in heads:
        assert head.quant_method.tie_weights(head, table) is head
    x, weight = torch.randn(3, 64), torch.randn(128, 64)

    def check(wanted):
        for head in heads:
            assert head.quant_method.multiply is not None
            torch.testing.assert_close(head.quant_method.apply(head, x), x @ wanted.T, rtol=1e-4, atol=1e-3)

    for one in (table, *heads):
        one.quant_method.process_weights_after_loading(one)
    check(table.weight)
    load(table, weight)
    check(weight)


def test_a_table_of_another_method_stays_as_it_is(dense):
    method = types.SimpleNamespace()
    table, head = layer(method), layer(dense.ArmllmHeadMethod())
    head.quant_method.tie_weights(head, table)
    head.quant_method.process_weights_after_loading(head)
    assert table.quant_method is method
