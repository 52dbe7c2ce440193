"""The plugin without a vLLM, and with one that has another interface."""

from __future__ import annotations

import sys
import types

import pytest

from armllm import vllm_plugin


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Each test activates anew."""
    vllm_plugin.activate.cache_clear()
    for name in ("armllm.vllm_plugin.mixed_precision", "armllm.vllm_plugin.scaled"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv(vllm_plugin.VARIABLE, raising=False)
    yield
    vllm_plugin.activate.cache_clear()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("all", {"int4", "int8"}),
        ("none", set()),
        ("", set()),
        (" INT4 ", {"int4"}),
        ("int8,int4", {"int4", "int8"}),
    ],
)
def test_the_variable_names_parts(text, parts):
    assert vllm_plugin.wanted_parts(text) == parts


@pytest.mark.parametrize("text", ["int2", "none,int4", "int4;int8", "1"])
def test_what_is_no_part_is_named(text):
    with pytest.raises(ValueError, match=r"ARMLLM_VLLM has .*; it takes all, none, or of: int4, int8"):
        vllm_plugin.wanted_parts(text)


def test_a_wrong_variable_leaves_vllm_as_it_is(monkeypatch, caplog):
    monkeypatch.setenv(vllm_plugin.VARIABLE, "int5")
    vllm_plugin.register()
    assert [record.getMessage() for record in caplog.records] == [
        "armllm: ARMLLM_VLLM has int5; it takes all, none, or of: int4, int8: vLLM keeps its own kernels"
    ]


def test_parts_that_are_not_wanted_are_silent(monkeypatch, caplog):
    monkeypatch.setenv(vllm_plugin.VARIABLE, "none")
    vllm_plugin.register()
    assert not caplog.records
    assert {status.reason for status in vllm_plugin.activate()} == {"switched off by ARMLLM_VLLM"}


def test_another_interface_is_one_line_each(monkeypatch, caplog):
    """It would catch an exception that ends vLLM."""
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.kernels"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    vllm_plugin.register()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    for part, line in zip(("int4", "int8"), lines, strict=True):
        assert line.startswith(f"armllm: {part}: this vLLM has another interface: ModuleNotFoundError")
        assert line.endswith("vLLM keeps its own kernels")
        assert "\n" not in line
