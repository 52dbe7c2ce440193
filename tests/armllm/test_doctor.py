"""What `armllm doctor` says of a vLLM beside it. Its other checks are in `cli/test_chat.py`."""

from __future__ import annotations

import sys
import types

import pytest

from armllm import doctor, vllm_plugin
from armllm.vllm_plugin import Status

FORMATS = "vllm.model_executor.layers.quantization"


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """vllm(parts, formats): the finding about a vLLM with these."""
    (tmp_path / "vllm.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def examine(parts, formats=("awq", "gptq")):
        monkeypatch.setattr(vllm_plugin, "activate", lambda: parts)
        module = types.ModuleType(FORMATS)
        module.QUANTIZATION_METHODS = formats
        monkeypatch.setitem(sys.modules, FORMATS, module)
        return doctor.examine()[-1]

    return examine


def test_what_is_active_and_what_is_not_is_named(vllm):
    found = vllm([Status("int4"), Status("moe", "switched off by ARMLLM_VLLM")])
    assert found.status == "ok"
    assert found.found == (
        "kernels of armllm in vLLM: int4 "
        "(moe: switched off by ARMLLM_VLLM; GGUF: this vLLM has no loader for it)"
    )


def test_what_the_compiler_takes_is_named(vllm):
    """It would catch norms that are called active where torch's compiler computes them."""
    found = vllm([Status("moe"), Status("norm"), Status("rotary")])
    assert found.found == (
        "kernels of armllm in vLLM: moe, norm, rotary "
        "(norm, rotary: where vLLM does not compile, as with --enforce-eager)"
    )


def test_a_loader_of_gguf_is_not_missed(vllm):
    assert vllm([Status("int4")], ["gguf"]).found == "kernels of armllm in vLLM: int4"


def test_a_vllm_with_its_list_of_formats_elsewhere_is_described(vllm, monkeypatch):
    """It would catch a doctor that ends with a traceback."""
    vllm([])
    monkeypatch.setitem(sys.modules, FORMATS, None)
    monkeypatch.setattr(vllm_plugin, "activate", lambda: [Status("int4")])
    assert doctor.examine()[-1].found == "kernels of armllm in vLLM: int4"


def test_parts_with_one_reason_have_it_once(vllm):
    """It would catch a broken vLLM whose one error fills the screen."""
    found = vllm(
        [Status("int4", "no hook"), Status("moe"), Status("dense", "slower"), Status("int8", "no hook")]
    )
    assert found.found == "kernels of armllm in vLLM: moe (int4, int8: no hook; dense: slower)"


def test_a_part_that_should_be_active_is_a_warning(vllm):
    """It would catch an "ok" beside kernels that another vLLM does not take."""
    found = vllm([Status("int4", "this vLLM has another interface: it has no hook", is_problem=True)])
    assert (found.status, found.found) == (
        "warn",
        "kernels of armllm in vLLM: none (int4: this vLLM has another interface: it has no hook)",
    )
    assert found.advice
