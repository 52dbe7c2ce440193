"""The armllm command: results on stdout, errors in a line on stderr, exit statuses that scripts can use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import armllm
from armllm.cli import main


@pytest.fixture(scope="module")
def folder(make_checkpoint):
    return str(make_checkpoint().folder)


def test_run_prints_the_completion(folder, capsys):
    arguments = ["run", folder, "The quick", "--dtype", "float32", "--temperature", "0", "--max-tokens", "7"]
    assert main([*arguments, "--ignore-eos"]) == 0
    text = capsys.readouterr().out
    assert main([*arguments, "--ignore-eos", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["outputs"][0]["text"] + "\n" == text
    assert len(document["outputs"][0]["token_ids"]) == 7
    assert document["outputs"][0]["finish_reason"] == "length"
    assert document["prompt"] == "The quick"


def test_run_honours_the_seed_and_stops(folder, capsys):
    arguments = ["run", folder, "x", "--dtype", "float32", "--seed", "3", "--top-p", "0.9", "--top-k", "50"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    stop = first.strip()[3:5]
    assert main([*arguments, "--stop", stop]) == 0
    assert stop not in capsys.readouterr().out


def test_run_reads_the_prompt_from_standard_input(folder, capsys, monkeypatch):
    import io  # noqa: PLC0415

    monkeypatch.setattr(sys, "stdin", io.StringIO("The quick"))
    assert main(["run", folder, "-", "--dtype", "float32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "The quick"


def test_info_tells_shape_and_size(folder, capsys, make_checkpoint):
    assert main(["info", folder, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["architecture"] == "LlamaForCausalLM"
    assert facts["parameters"] == sum(p.numel() for p in make_checkpoint().model.parameters())
    assert facts["stored_as"] == "F32"
    assert facts["kv_cache_bytes_per_token_float32"] == 2 * 2 * 2 * 16 * 4
    assert facts["kv_cache_bytes_per_token_int8"] == 2 * 2 * 2 * (16 + 4)
    assert main(["info", folder]) == 0
    assert "LlamaForCausalLM" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["run", "FOLDER", ""], 0, ""),
        (["run", "FOLDER", "x" * 5000, "--dtype", "float32"], 2, "max_model_len"),
        (["run", "FOLDER", "x", "--dtype", "int3"], 2, "int3"),
        (["run", "FOLDER", "x", "--kv-cache-dtype", "int8"], 0, ""),
        (["run", "FOLDER", "x", "--kv-cache-dtype", "fp8"], 2, "kv_cache_dtype must be 'auto' or 'int8'"),
        (["bench", "latency", "--model", "FOLDER", "--kv-cache-dtype", "fp8"], 2, "kv_cache_dtype must be"),
        (["chat", "FOLDER", "--kv-cache-dtype", "fp8"], 2, "kv_cache_dtype must be"),
        (["serve", "FOLDER", "--kv-cache-dtype", "fp8"], 2, "kv_cache_dtype must be"),
        (["run", "FOLDER", "x", "--temperature", "-1"], 2, "temperature"),
        (["run", "FOLDER", "x", "--max-tokens", "many"], 2, "--max-tokens"),
        (["run", "FOLDER"], 2, "prompt"),
        (["run", "/nowhere", "x"], 1, "/nowhere"),
        (["info", "/nowhere"], 1, "/nowhere"),
        (["run", "FOLDER", "x", "--beam-width", "3"], 2, "--beam-width"),
    ],
)
def test_errors_are_one_line_with_the_right_status(folder, capsys, arguments, status, words):
    arguments = [folder if argument == "FOLDER" else argument for argument in arguments]
    assert main(arguments) == status
    shown = capsys.readouterr()
    if status:
        assert shown.err.startswith("armllm: error: ")
        assert words in shown.err
        assert shown.err.count("\n") <= 2
        assert "Traceback" not in shown.err
        assert main([*arguments, "--json"]) == status
        shown = capsys.readouterr()
        assert json.loads(shown.out)["status"] == status


@pytest.mark.parametrize("point", ["armllm.engine.llm.LLM.__init__", "armllm.engine.llm.LLM.generate"])
def test_an_interrupt_is_said_and_has_its_own_status(folder, capsys, monkeypatch, point):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(point, interrupt)
    assert main(["run", folder, "x", "--dtype", "float32"]) == 130
    assert capsys.readouterr().err == "armllm: error: interrupted\n"


def test_verbose_shows_the_traceback(capsys):
    assert main(["info", "/nowhere", "--verbose"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_importing_the_package_and_help_stay_light():
    code = "import sys, armllm, armllm.cli; print([n for n in ('torch', 'numpy') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
    result = subprocess.run(
        [sys.executable, "-m", "armllm", "--help"], capture_output=True, text=True, check=True
    )
    assert "run" in result.stdout
    assert "info" in result.stdout


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"armllm {armllm.__version__}\n"


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_commands_of_guides_for_vllm_run(folder, capsys, command):
    """What they set beside the model has one meaning here; other values are refused by name."""
    size = {
        "latency": ["--batch-size", "2", "--num-iters", "1", "--num-iters-warmup", "0"],
        "throughput": ["--num-prompts", "2", "--backend", "vllm"],
    }[command]
    guide = ["--tensor-parallel-size", "1", "--trust-remote-code", "--enforce-eager", "--load-format", "auto"]
    guide += ["--task", "generate", "--tokenizer-mode", "auto", "--cpu-offload-gb", "0"]
    lengths = ["--input-len", "4", "--output-len", "2", "--dtype", "float32", "--max-model-len", "64"]
    assert main(["bench", command, "--model", folder, *size, *guide, *lengths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1
    assert main(["bench", command, "--model", folder, "--tensor_parallel_size", "2"]) == 2
    assert "--tensor-parallel-size can only be 1 here, not 2" in capsys.readouterr().err


def test_it_calls_itself_by_the_name_of_the_command_wherever_it_was_started(capsys, monkeypatch):
    """An image starts it through a module of its own."""
    monkeypatch.setattr(sys, "argv", ["python -m somewhere.else"])
    assert main(["serve"]) == 2
    assert "give one MODEL: armllm serve MODEL" in capsys.readouterr().err
