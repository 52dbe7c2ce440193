"""The tool that measures the plugin: it must not measure vLLM twice."""

from __future__ import annotations

import argparse
import os
import sys

import pytest

import bench_vllm_plugin as tool
from armllm import vllm_plugin

# What the tool needs of vLLM. As long as it has a model it calls `kernel`, a function of armllm or none.
VLLM = """
import os
kernel = None
if os.environ["FAKE_VLLM"] == "loads":
    from armllm import vllm_plugin
    vllm_plugin.register()
if os.environ["FAKE_VLLM"] == "calls":
    from armllm import kernels, vllm_plugin
    from armllm.kernels._extension import extension
    vllm_plugin.register()
    kernel = extension.weight_layouts

class SamplingParams:
    def __init__(self, **options):
        pass

class LLM:
    def __init__(self, model, **options):
        pass
    def reset_prefix_cache(self):
        pass
    def generate(self, prompts, sampling, use_tqdm):
        if kernel is not None:
            kernel()
"""


def test_what_is_no_part_is_refused_before_anything_starts(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "python", "model", "--parts", "int5"])
    with pytest.raises(SystemExit):
        tool.main()
    assert "ARMLLM_VLLM has int5; it takes all, none, or of: int4" in capsys.readouterr().err


def result(called=(), **reasons):
    return tool.Result(dict.fromkeys(vllm_plugin.PARTS, "") | reasons, list(called), [])


def test_every_part_has_functions_that_it_calls():
    assert tool.FUNCTIONS.keys() == vllm_plugin.PARTS.keys()


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ("none", tool.Result(None, [], [])),
        ("none", result()),
        ("all", result(["paged_attention"], dense="slower")),
        ("int4,attention", result(["matmul_w8a8", "paged_attention", "write_kv_cache"])),
        ("-dense", result(["matmul_w4a8"])),
    ],
)
def test_figures_of_what_was_wanted_are_good(parts, found):
    assert not tool.problem(parts, found)


@pytest.mark.parametrize(
    ("parts", "found", "said"),
    [
        ("none", result(["linear"]), "vLLM called linear of armllm"),
        ("all", tool.Result(None, [], []), "vLLM did not load the plugin"),
        ("all", result(int4="another interface"), "called nothing of armllm: int4: another interface"),
        ("all", result(), "called nothing of armllm: this model needs no part"),
        ("int4,moe", result(["matmul_w4a8"]), "did not use the part moe: this model does not need it"),
        ("dense", result(["paged_attention"], dense="slower"), "did not use the part dense: slower"),
    ],
)
def test_other_figures_are_refused(parts, found, said):
    assert said in tool.problem(parts, found)


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """measure(what vLLM does, parts)."""
    (tmp_path / "vllm.py").write_text(VLLM, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def run(does, parts):
        monkeypatch.setenv("FAKE_VLLM", does)
        arguments = argparse.Namespace(python=sys.executable, model="m", repeats=1, enforce_eager=True)
        return tool.run(arguments, parts)

    return run


def test_what_vllm_calls_is_noted(measure):
    found = measure("calls", "all")
    assert found.called == ["weight_layouts"]
    assert len(found.figures) == len(tool.CASES)


@pytest.mark.parametrize(
    ("does", "said"), [("nothing", "vLLM did not load the plugin"), ("loads", "int4: this vLLM has another")]
)
def test_a_plugin_that_is_not_active_is_one_line(measure, does, said):
    with pytest.raises(SystemExit) as caught:
        measure(does, "all")
    assert said in caught.value.code
    assert "\n" not in caught.value.code
