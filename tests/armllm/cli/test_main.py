"""The armllm command: results on stdout, errors in a line on stderr, exit statuses that scripts can use."""

from __future__ import annotations

import json
import os
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


def test_run_honors_the_seed_and_stops(folder, capsys):
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


def test_an_option_that_is_nested_too_deeply_is_one_line(folder, capsys):
    assert main(["run", folder, "x", "--hf-overrides", "[" * 100_000]) == 2
    assert capsys.readouterr().err.count("\n") == 1


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
        (["serve", "FOLDER", "-dp", "1025"], 2, "less than or equal to 1024"),
        (["run", "FOLDER", "x", "--temperature", "-1"], 2, "temperature"),
        (["run", "FOLDER", "x", "--max-tokens", "many"], 2, "--max-tokens"),
        (["run", "FOLDER"], 2, "PROMPT"),
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


@pytest.mark.parametrize("command", ["", "serve", "bench serve", "quantize", "chat"])
def test_help_shows_whole_names_and_brackets_on_a_narrow_terminal(command, capsys, monkeypatch):
    """It would catch markup that takes brackets away, and tables that cut names."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    if command == "serve":
        assert "--disable-uvicorn-access-log" in shown
        assert "a JSON list of origins, or ['*']" in " ".join(shown.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell, monkeypatch):
    command = [sys.executable, "-m", "armllm"]
    complete = {
        "bash": {"COMP_WORDS": "armllm qua", "COMP_CWORD": "1"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "armllm qua"},
        "fish": {"_TYPER_COMPLETE_ARGS": "armllm qua", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    environment = {**os.environ, "_ARMLLM_COMPLETE": f"complete_{shell}", **complete[shell]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "quantize" in done.stdout
    done = subprocess.run([*command, "--show-completion", shell], capture_output=True, text=True, check=True)
    assert "_ARMLLM_COMPLETE" in done.stdout


def test_a_verdict_has_a_color_on_a_terminal_only(monkeypatch):
    from armllm.cli.options import styled  # noqa: PLC0415

    assert styled("ok", "ok") == "ok"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert styled("ok", "ok") == "\x1b[32mok\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("ok", "ok") == "ok"


@pytest.mark.parametrize("point", ["armllm.api.llm.LLM.__init__", "armllm.api.llm.LLM.generate"])
def test_an_interrupt_is_said_and_has_its_own_status(folder, capsys, monkeypatch, point):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(point, interrupt)
    assert main(["run", folder, "x", "--dtype", "float32"]) == 130
    assert capsys.readouterr().err == "armllm: interrupted\n"


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


VERSION = """
import sys, traceback, typer
from typer.core import TyperGroup
before = set(sys.modules)
from armllm.cli import main
assert main(["--version"]) == 0
print(*(set(sys.modules) - before))
"""


def test_the_version_imports_nothing_that_it_does_not_need():
    """It would catch the modules of commands, and slow ones: tomllib, logging, importlib.abc."""
    done = subprocess.run([sys.executable, "-c", VERSION], capture_output=True, text=True, check=True)
    ours, others = set(), set()
    for name in done.stdout.splitlines()[1].split():
        (ours if name.startswith("arm") else others).add(name)
    assert {name.partition(".")[0] for name in others} <= {
        "__future__",
        "json",
        "_json",
        "typer",
        "click",
    }
    assert {name for name in ours if name.startswith("armllm.cli.")} == {
        "armllm.cli.commands",
        "armllm.cli.options",
    }
    assert len(ours) <= 16


def test_a_command_that_is_misspelled_has_a_hint(capsys):
    assert main(["serv"]) == 2
    assert "'serve'" in capsys.readouterr().err


def test_the_version_is_answered(capsys):
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
    assert main(["bench", command, "--model", folder, "--data_parallel_rank", "2"]) == 2
    assert "--data-parallel-rank can only be 0 here, not 2" in capsys.readouterr().err


def test_it_calls_itself_by_the_name_of_the_command_wherever_it_was_started(capsys, monkeypatch):
    """An image starts it through a module of its own."""
    monkeypatch.setattr(sys, "argv", ["python -m somewhere.else"])
    assert main(["serve"]) == 2
    assert "give one MODEL: armllm serve MODEL" in capsys.readouterr().err


def test_a_file_of_options_is_read_before_the_command_line(tmp_path, capsys):
    """`serve --config`: the file's options are checked as flags are, and flags win."""
    file = tmp_path / "options.yaml"
    file.write_text("model: /nowhere\nport: 99999\nserved_model_name: [one, two]\nuvicorn-log-level: loud\n")
    assert main(["serve", "--config", str(file)]) == 2
    assert "'--port'" in capsys.readouterr().err
    assert main(["serve", "--port", "0", "--config", str(file)]) == 2
    assert "--uvicorn-log-level must be one of" in capsys.readouterr().err
    assert main(["serve", "--port=0", f"--config={file}", "--uvicorn_log_level", "info"]) == 1
    assert "/nowhere" in capsys.readouterr().err
    assert main(["serve", "/elsewhere", "--port=0", f"--config={file}", "--uvicorn_log_level", "info"]) == 1
    assert "/elsewhere" in capsys.readouterr().err
    file.write_text("ports: 1\n")
    assert main(["serve", "/nowhere", "--config", str(file)]) == 2
    assert "--ports" in capsys.readouterr().err
    assert main(["serve", "/nowhere", "--config"]) == 2
    assert "--config needs a file" in capsys.readouterr().err


def test_a_flag_of_several_values_takes_them_as_vllms_does(tmp_path, monkeypatch):
    """`--api-key A B` after MODEL, and a list in the file of options."""
    seen = []
    monkeypatch.setattr(
        "armllm.server.run.serve", lambda _model, _engine, options, **_: seen.append(options) or 0
    )
    file = tmp_path / "options.yaml"
    file.write_text("allowed-origins: ['https://a.example']\nserved-model-name: [one, two]\n")
    line = ["--api-key", "A", "B", "--config", str(file), "--enable-auto-tool-choice"]
    assert main(["serve", "MODEL", *line, "--tool-call-parser", "hermes"]) == 0
    assert seen[0].api_keys == ("A", "B")
    assert seen[0].served_model_names == ("one", "two")
    assert seen[0].allowed_origins == ("https://a.example",)
    assert main(["serve", "--api-key", "A", "MODEL"]) == 0
    assert seen[1].served_model_names == ("MODEL",)


@pytest.mark.parametrize("command", [[], ["bench"]])
def test_no_command_shows_the_help_as_it_is(capsys, command):
    assert main(command) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("Usage: armllm")
    assert shown.err.count("\n") > 5
    assert "error:" not in shown.err
