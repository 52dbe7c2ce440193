"""The plugin without a vLLM, and with one that has another interface."""

from __future__ import annotations

import os
import sys
import types

import pytest

from armllm import kernels, vllm_plugin


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Each test activates anew."""
    vllm_plugin.activate.cache_clear()
    for module in vllm_plugin.PARTS.values():
        monkeypatch.delitem(sys.modules, f"armllm.vllm_plugin.{module}", raising=False)
    monkeypatch.delenv(vllm_plugin.VARIABLE, raising=False)
    yield
    vllm_plugin.activate.cache_clear()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("all", set(vllm_plugin.PARTS)),
        ("none", set()),
        ("", set()),
        (" INT4 ", {"int4"}),
        ("int8,int4", {"int4", "int8"}),
        ("-int8,-moe", set(vllm_plugin.PARTS) - {"int8", "moe"}),
        ("all,-moe", set(vllm_plugin.PARTS) - {"moe"}),
        ("all,int8", set(vllm_plugin.PARTS)),
    ],
)
def test_the_variable_names_parts(text, parts):
    assert vllm_plugin.wanted_parts(text) == parts


@pytest.mark.parametrize("text", ["int2", "none,int4", "int4;int8", "1", "int4,-int8", "-all", "all,int2"])
def test_what_is_no_part_is_named(text):
    with pytest.raises(ValueError, match=r"ARMLLM_VLLM has .*; it takes all, none, or of: int4, int8,"):
        vllm_plugin.wanted_parts(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("int5", "'int5'"), ("int5\n\udcff", r"'int5\n\udcff'"), ("x" * 9000, f"'{'x' * 300}'")],
    ids=["a word", "what no terminal shows", "long"],
)
def test_a_wrong_variable_leaves_vllm_as_it_is(monkeypatch, caplog, text, shown):
    """It would catch lines that a log cannot take."""
    monkeypatch.setenv(vllm_plugin.VARIABLE, text)
    vllm_plugin.register()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"armllm: ARMLLM_VLLM has {shown}; it takes all, none, or of: int4, int8, dense")
    assert line.endswith("vLLM keeps its own kernels")


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
    for part, line in zip(vllm_plugin.PARTS, lines, strict=True):
        assert line.startswith(f"armllm: {part}: this vLLM has another interface: ModuleNotFoundError")
        assert line.endswith("vLLM keeps its own kernels")
        assert "\n" not in line


def test_an_error_of_many_lines_becomes_one(monkeypatch, caplog):
    platforms = types.ModuleType("vllm.platforms")
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)

    def fail():
        raise ValueError("2 errors\n  first" + " and more" * 100)

    platforms.current_platform = types.SimpleNamespace(is_cpu=fail)
    vllm_plugin.register()
    for line in [record.getMessage() for record in caplog.records]:
        assert "interface: ValueError: 2 errors first and more" in line
        assert len(line) < 500
    assert len(caplog.records) == len(vllm_plugin.PARTS)


def test_a_vllm_for_gpus_keeps_all_its_kernels(monkeypatch, caplog):
    """It would catch weights of a GPU in the hands of our kernels."""
    platforms = types.ModuleType("vllm.platforms")
    platforms.current_platform = types.SimpleNamespace(is_cpu=lambda: False)
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    vllm_plugin.register()
    assert not caplog.records
    assert {status.reason for status in vllm_plugin.activate()} == {"this vLLM does not compute on the CPU"}


@pytest.fixture
def scaled(monkeypatch):
    """A vLLM of which one part can be used, and its compile key."""
    platforms, envs = types.ModuleType("vllm.platforms"), types.ModuleType("vllm.envs")
    platforms.current_platform = types.SimpleNamespace(is_cpu=lambda: True)
    envs.environment_variables = {}
    part = types.ModuleType("armllm.vllm_plugin.scaled")
    part.register = lambda: None
    for module in (types.ModuleType("vllm"), platforms, envs, part):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    part.variables = envs.environment_variables
    return part


def test_a_slower_part_is_active_only_where_it_is_named(monkeypatch, scaled):
    scaled.why_slower = lambda: "it has no dot products"
    found = {status.part: status for status in vllm_plugin.activate()}
    assert found["int8"].reason == "it has no dot products; ARMLLM_VLLM=int8 takes ours nevertheless"
    assert not found["int8"].is_problem
    for text in ("int8", "all,int8"):
        vllm_plugin.activate.cache_clear()
        monkeypatch.setenv(vllm_plugin.VARIABLE, text)
        assert [status.part for status in vllm_plugin.activate() if status.is_active] == ["int8"]


def test_what_vllm_s_own_variable_switches_off_is_not_active(scaled):
    """It would catch `armllm doctor` calling a kernel active that vLLM must not choose."""
    scaled.register = lambda: "switched off by VLLM_DISABLED_KERNELS"
    [found] = [one for one in vllm_plugin.activate() if one.part == "int8"]
    assert found == vllm_plugin.Status("int8", "switched off by VLLM_DISABLED_KERNELS")


def test_a_process_has_its_own_parts(monkeypatch):
    """It would catch a vLLM without any kernel, started with ARMLLM_VLLM=none by one that has ours."""
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "CPUWNA16LinearKernel,Disliked")
    monkeypatch.setenv("ARMLLM_VLLM_DISABLED", "CPUWNA16LinearKernel")
    monkeypatch.setenv(vllm_plugin.VARIABLE, "none")
    vllm_plugin.activate()
    assert os.environ["VLLM_DISABLED_KERNELS"] == "Disliked"
    assert "ARMLLM_VLLM_DISABLED" not in os.environ


def test_vllm_s_key_of_a_compiled_model_has_the_parts_and_the_targets(monkeypatch, scaled):
    """It would catch a stored model that calls our kernels with weights in the order of vLLM's."""
    monkeypatch.setenv(vllm_plugin.VARIABLE, "none")
    vllm_plugin.activate()
    assert not scaled.variables
    vllm_plugin.activate.cache_clear()
    monkeypatch.setenv(vllm_plugin.VARIABLE, "int8")
    vllm_plugin.activate()
    [(name, value)] = scaled.variables.items()
    assert name == vllm_plugin.VARIABLE
    assert value().endswith(" int8")
    assert {entry["target"] for entry in kernels.report().values()} < set(value().split())


def test_a_vllm_without_such_a_key_keeps_its_kernels(monkeypatch, caplog, scaled):
    monkeypatch.setenv(vllm_plugin.VARIABLE, "int8")
    monkeypatch.delattr(sys.modules["vllm.envs"], "environment_variables")
    scaled.register = lambda: pytest.fail("it was registered")
    vllm_plugin.register()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("armllm: int8: this vLLM has another interface: AttributeError")
