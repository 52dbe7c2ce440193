"""The smoke model was trained to withstand weights of 8 and 4 bits: it recites in every scheme."""

from __future__ import annotations

import json

import pytest

from armllm.checkpoint.scheme import SCHEMES
from armllm.convert.write import quantize_checkpoint
from armllm.smoke import __main__ as command
from armllm.smoke.arguments import parse
from armllm.smoke.cases import default_cases
from armllm.smoke.command import plan
from armllm.smoke.passages import MIXTURE, MODEL
from armllm.smoke.recite import run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name not in {"int8-g64", "int8-g128"}])
def test_it_recites_in_every_scheme(passages, scheme, dtype):
    for case in default_cases(passages, {}):
        result = run(case, dtype, MODEL, scheme)
        assert result.ok, result.problem
        assert result.quantization == scheme


@pytest.mark.parametrize("scheme", ["int8", "int4-g32"])
def test_it_recites_from_a_checkpoint_that_we_wrote(passages, tmp_path, scheme):
    quantize_checkpoint(str(MODEL), tmp_path / "out", scheme)
    for case in default_cases(passages, {}):
        result = run(case, "float32", tmp_path / "out")
        assert result.ok, result.problem


def test_swapped_nibbles_garble_the_text(passages, monkeypatch):
    """A wrong product must be heard: here one that takes the neighbor's weight."""
    from armllm import kernels  # noqa: PLC0415

    pack = kernels.pack_weight

    def swapped(q, *given, **options):
        return pack(q.view(q.shape[0], -1, 2).flip(-1).reshape(q.shape), *given, **options)

    monkeypatch.setattr(kernels, "pack_weight", swapped)
    case, _ = default_cases(passages, {})
    assert not run(case, "float32", MODEL, "int4-g32").ok


def test_the_command_runs_each_scheme_and_reports_it(capsys):
    options = ["--quantization", "int8,int4-g32", "--dtype", "float32", "--batch", "2", "--prompts", "cache"]
    assert command.main([*options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [entry["quantization"] for entry in report["runs"]] == ["int8", "int4-g32"]


@pytest.mark.parametrize("options", [[], ["--emulated"]])
def test_the_usual_plan_has_every_kind_of_weights_of_both_models(options):
    planned = plan(parse(["--json", *options]))
    schemes = {model: {scheme for other, _, scheme, _ in planned if other == model} for model, *_ in planned}
    assert schemes == {
        MODEL: {None, "int8", "int4-g32", "int4-g128", "int4-channelwise"},
        MIXTURE: {None, "int8", "int4-g32"},
    }
    assert any(case.options.get("kv_cache_dtype") == "int8" for *_, case in planned)


def test_an_unknown_scheme_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(["--quantization", "int3"])
    assert caught.value.code == 2
    assert "'int3' is not one of int8, int8-g32" in capsys.readouterr().err
