"""The tool that measures the plugin: it must not measure vLLM twice."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

import bench_vllm_plugin as tool
from armllm import vllm_plugin
from armllm.kernels._extension import extension

# What the tool needs of vLLM. As long as it has a model it calls `kernel`, a function of armllm or none.
VLLM = """
import os, types
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
        assert options["dtype"] == "float32"
    def reset_prefix_cache(self):
        pass
    def generate(self, prompts, sampling, use_tqdm):
        if kernel is not None:
            kernel()
        value = types.SimpleNamespace(logprob=-0.5)
        answer = types.SimpleNamespace(token_ids=[7, 8], logprobs=[{7: value, 9: value}, {8: value}])
        return [types.SimpleNamespace(outputs=[answer]) for prompt in prompts]
"""


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--parts", "int5"], "ARMLLM_VLLM has 'int5'; it takes all, none, or of: int4"),
        (["--parts", "-int5"], "ARMLLM_VLLM has '-int5'; it takes all, none, or of: int4"),
        (["--repeats", "0"], "argument --repeats: 0 is not a number from 1 on"),
        (["--turns", "x"], "argument --turns: x is not a number from 1 on"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(model, capsys, options, said):
    with pytest.raises(SystemExit):
        tool.arguments_of(["python", model, *options])
    assert said in capsys.readouterr().err


def test_a_folder_without_a_model_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        tool.arguments_of(["python", str(tmp_path)])
    assert f"{tmp_path} has no config.json; name the folder of a checkpoint" in capsys.readouterr().err


def test_parts_that_are_switched_off_are_no_options(model):
    found = tool.arguments_of(["python", model, "--parts", "-dense", "-int4,-moe", "--enforce-eager"])
    assert found.parts == ["-dense", "-int4,-moe"]
    assert found.enforce_eager


def result(called=(), **reasons):
    return tool.Result(dict.fromkeys(vllm_plugin.PARTS, "") | reasons, list(called), [], [])


def test_every_part_has_functions_that_it_calls():
    assert tool.FUNCTIONS.keys() == vllm_plugin.PARTS.keys()
    for names in tool.FUNCTIONS.values():
        assert names <= set(dir(extension))


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ("none", tool.Result(None, [], [], [])),
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
        ("all", tool.Result(None, [], [], []), "vLLM did not load the plugin"),
        ("all", result(int4="another interface"), "called nothing of armllm: int4: another interface"),
        ("all", result(), "called nothing of armllm: this model needs no part"),
        ("int4,moe", result(["matmul_w4a8"]), "did not use the part moe: this model does not need it"),
        ("dense", result(["paged_attention"], dense="slower"), "did not use the part dense: slower"),
    ],
)
def test_other_figures_are_refused(parts, found, said):
    assert said in tool.problem(parts, found)


def namespace(python):
    return argparse.Namespace(
        python=str(python), model="m", repeats=1, enforce_eager=True, dtype="float32", prompts=["a", "b"]
    )


@pytest.mark.parametrize("name", ["missing", ""])
def test_what_is_no_interpreter_is_one_line(tmp_path, name):
    with pytest.raises(SystemExit, match="; name the interpreter of an environment with vLLM"):
        tool.run(namespace(tmp_path / name), "none")


def test_turns_are_in_turn_and_their_medians_are_shown(model, monkeypatch, capsys):
    """It would catch figures of one turn, and those of one column in another."""
    speeds = {"none": iter((1, 9, 2)), "all": iter((30, 50, 40))}
    ran = []

    def measured(_, parts):
        ran.append(parts)
        return tool.Result({}, [], [(0, next(speeds[parts]))] * len(tool.CASES), [])

    monkeypatch.setattr(tool, "run", measured)
    monkeypatch.setattr(sys, "argv", ["bench", "python", model, "--turns", "3"])
    tool.main()
    assert ran == ["none", "all"] * 3
    shown = capsys.readouterr().out
    assert "| step of 8 sequences | 2.0 | 40.0 |" in shown
    assert "| equal tokens | 0 of 0 | 0 of 0 |" in shown


def answers(*steps):
    return tool.Result({}, [], [], [list(steps)])


SHORT = answers((1, {"1": -0.5, "2": -0.75}), (2, {"2": -1, "1": -1.25}), (3, {"3": -1}))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (SHORT, ("3 of 3", "0.0000")),
        (
            answers((1, {"1": -0.5, "2": -0.875}), (1, {"1": -1, "2": -1.25}), (9, {"3": -9})),
            ("1 of 3", "0.2500"),
        ),
        (answers((4, {"4": -0.5, "1": -0.5}), (4, {"4": -1}), (4, {"4": -1})), ("0 of 3", "inf")),
    ],
    ids=["the same", "a token as likely", "a token that was unlikely"],
)
def test_tokens_are_compared_as_long_as_contexts_are_the_same(other, said):
    """It would catch another model: a token that differs must be one of the likeliest in both."""
    assert tool.agreement(SHORT, other) == said


def test_prompts_are_lines_of_a_file(model, tmp_path, capsys):
    (tmp_path / "prompts").write_text("One.\n\nTwo.\n", encoding="utf-8")
    assert tool.arguments_of(["python", model, f"--prompts={tmp_path}/prompts"]).prompts == ["One.", "Two."]
    for name, said in (
        ("none", "No such file or directory"),
        ("empty", "has no lines; write a prompt on each"),
    ):
        (tmp_path / "empty").write_text("\n", encoding="utf-8")
        with pytest.raises(SystemExit):
            tool.arguments_of(["python", model, f"--prompts={tmp_path / name}"])
        assert said in capsys.readouterr().err


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """measure(what vLLM does, parts)."""
    (tmp_path / "vllm.py").write_text(VLLM, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def run(does, parts):
        monkeypatch.setenv("FAKE_VLLM", does)
        return tool.run(namespace(sys.executable), parts)

    return run


def test_what_vllm_calls_is_noted(measure):
    found = measure("calls", "all")
    assert found.called == ["weight_layouts"]
    assert len(found.figures) == len(tool.CASES)
    assert found.answers == [[[7, {"7": -0.5, "9": -0.5}], [8, {"8": -0.5}]]] * 2


@pytest.mark.parametrize(
    ("does", "said"), [("nothing", "vLLM did not load the plugin"), ("loads", "int4: this vLLM has another")]
)
def test_a_plugin_that_is_not_active_is_one_line(measure, does, said):
    with pytest.raises(SystemExit) as caught:
        measure(does, "all")
    assert said in caught.value.code
    assert "\n" not in caught.value.code


@pytest.mark.parametrize("process", ["", "[rank0]: ", "(EngineCore_0 pid=7) "])
def test_the_error_is_found_behind_the_name_of_a_process(process):
    lines = ["Traceback:", "  ValueError: of a source", "ValueError: no kernel. Reasons: ", " A cannot"]
    assert tool.ERROR.findall("\n".join(process + line for line in lines)) == [lines[2]]


def test_an_error_of_vllm_is_two_lines_and_the_rest_a_file(measure, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "vllm.py").write_text("raise ValueError('no such CPU')", encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        measure("nothing", "all")
    error, rest = caught.value.code.splitlines()
    assert error == f"ARMLLM_VLLM=all of {sys.executable}: ValueError: no such CPU"
    assert "Traceback" in Path(rest.removeprefix("its output: ")).read_text(encoding="utf-8")
