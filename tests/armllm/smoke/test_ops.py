"""What only one op does wrong, on data where plain torch tells."""

import json

import pytest
import torch

from armllm import kernels
from armllm.kernels import reference
from armllm.smoke import ops
from armllm.smoke.__main__ import main


def test_every_op_of_the_build_is_compared_and_agrees():
    results = ops.compare_ops()
    compared = {result.op for result in results}
    left = {op for op in kernels.report() if op not in compared}
    assert all(op.startswith(ops.COMPARED_WITH_ATTENTION) for op in left)
    assert {"rms_norm_f32", "paged_attention_bf16", "convert_f32_to_bf16"} <= compared
    assert [str(result) for result in results if not result.ok] == []


def test_an_op_that_nobody_compares_is_not_passed_over(monkeypatch):
    monkeypatch.setattr(kernels, "report", lambda: {"new_op_f32": {"target": "neon", "why": ""}})
    with pytest.raises(KeyError, match="new_op"):
        ops.compare_ops()


def scaled(x, factor):
    x.copy_(x * factor)


FAULTS = {
    "rms_norm": lambda out, x, weight, eps, **given: reference.rms_norm(out, x, weight, eps * 1.1, **given),
    "fused_add_rms_norm": lambda x, residual, weight, eps, **given: reference.fused_add_rms_norm(
        x, residual, weight, 0.0, **given
    ),
    "layer_norm": lambda out, x, weight, _bias, eps, **given: reference.layer_norm(
        out, x, weight, None, eps, **given
    ),
    "rotary_embedding": lambda positions, query, key, cache, interleaved: reference.rotary_embedding(
        positions, query, key, cache, interleaved=not interleaved
    ),
    "silu_and_mul": reference.gelu_and_mul,
    "gelu_and_mul": lambda out, x, approximate: reference.gelu_and_mul(out, -x, approximate),
    "relu": lambda out, x: out.copy_(x.abs()),
    "convert": lambda out, x: out.copy_(x.float() * (1 + 2**-7)),
    "write_kv_cache": lambda key, value, *rest: reference.write_kv_cache(key, value.roll(1, 0), *rest),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("suffix", ["f32", "bf16"])
def test_a_fault_in_one_op_is_found_there(monkeypatch, name, suffix):
    for other in ("kv_cache_layout", "allocate_kv_cache", "write_kv_cache", "paged_attention"):
        monkeypatch.setattr(kernels, other, getattr(reference, other))
    monkeypatch.setattr(kernels, name, FAULTS[name])
    special = {"write_kv_cache": "paged_attention", "convert": "convert_f32_to"}
    result = ops.compare(f"{special.get(name, name)}_{'bf16' if name == 'convert' else suffix}")
    assert not result.ok


@pytest.mark.parametrize(
    "option", ["sliding_window", "chunk_size", "logit_soft_cap", "alibi_slopes", "sinks"]
)
def test_an_option_of_attention_that_is_ignored_is_found(monkeypatch, option):
    def ignoring(*given, **options):
        options.pop(option, None)
        kernels_attention(*given, **options)

    kernels_attention = kernels.paged_attention
    monkeypatch.setattr(kernels, "paged_attention", ignoring)
    assert not ops.compare("paged_attention_bf16").ok


def test_not_a_number_is_no_agreement(monkeypatch):
    monkeypatch.setattr(kernels, "relu", lambda out, _x: out.fill_(torch.nan))
    assert not ops.compare("relu_f32").ok


def test_an_op_that_raises_has_failed(monkeypatch):
    def broken(_out, _x):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(kernels, "relu", broken)
    (result,) = [found for found in ops.compare_ops() if not found.ok and found.op == "relu_f32"]
    assert "RuntimeError: no kernel" in str(result)


def test_a_wrong_op_fails_the_smoke_test_although_the_text_is_right(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "relu", lambda out, x: out.copy_(x))
    assert main(["--json", "--dtype", "float32", "--batch", "1"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert "relu_f32 differs from plain torch" in report["reason"]
    assert all(run["ok"] for run in report["runs"])
