"""``python -m armllm.smoke`` as people and pipelines call it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from armllm import kernels
from armllm.smoke import __main__ as command
from armllm.smoke.passages import MODEL


def test_json_is_one_document_and_progress_goes_to_stderr(capsys):
    assert command.main(["--json", "--batch", "2", "--prompts", "cache,queue"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["schema"] == 1
    assert report["ok"] is True
    assert report["kernels"] == {op: entry["target"] for op, entry in kernels.report().items()}
    assert report["targets"] == list(kernels.targets())
    assert [(run["dtype"], run["case"], run["ok"]) for run in report["runs"]] == [
        ("float32", "batch of 2", True),
        ("bfloat16", "batch of 2", True),
    ]
    assert all(
        run["tokens"] > 0 and run["seconds"] > 0 and run["first_difference"] is None for run in report["runs"]
    )
    assert "passed" in captured.err


def test_usual_cases_pass_for_people(capsys):
    assert command.main(["--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    assert "alone" in out
    assert "preemptions: " in out
    assert "paged_attention_f32" in out


def test_wrong_kernel_gives_status_1_and_shows_the_words(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "rotary_embedding", lambda *_, **__: None)
    assert command.main(["--json", "--dtype", "float32", "--batch", "1", "--prompts", "cache"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    difference = report["runs"][0]["first_difference"]
    assert difference["passage"] == "cache"
    assert difference["expected"] != difference["got"]
    assert "rotary_embedding_f32 differs" in report["reason"]
    assert not report["ops"]["rotary_embedding_f32"]["ok"]


def test_engine_options_reach_the_engine(monkeypatch):
    seen = []

    class Spy:
        def __init__(self, *_, **options):
            seen.append(options)
            raise RuntimeError("enough")

    monkeypatch.setattr("armllm.smoke.recite.LLM", Spy)
    given = ["--max-num-batched-tokens", "5", "--block-size", "32", "--max-num-seqs", "3"]
    assert (
        command.main(["--dtype", "bfloat16", "--batch", "1", "--num-gpu-blocks-override", "99", *given]) == 1
    )
    options = seen[0]
    assert options["dtype"] == "bfloat16"
    assert options["max_num_batched_tokens"] == 5
    assert options["block_size"] == 32
    assert options["max_num_seqs"] == 3
    assert options["num_gpu_blocks_override"] == 99


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompts", "weel"], "no text is called 'weel'"),
        (["--dtype", "float16"], "'float16' is not one of"),
        (["--batch", "0"], "'0' is not a positive number"),
        (["--batch", "2,x"], "'x' is not a positive number"),
        (["--model", "/nowhere"], "is not a smoke model"),
    ],
)
def test_wrong_usage_gives_status_2_and_one_line(arguments, said, capsys):
    try:
        status = command.main(arguments)
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert said in capsys.readouterr().err


def test_wrong_usage_is_a_json_document_too(capsys):
    assert command.main(["--json", "--prompts", "weel"]) == 2
    assert json.loads(capsys.readouterr().out)["ok"] is False


@pytest.mark.parametrize("module", ["torch", "tokenizers"])
def test_missing_package_names_the_extra(module):
    program = (
        f"import sys, runpy; sys.modules[{module!r}] = None; sys.argv = ['smoke', '--json'];"
        "runpy.run_module('armllm.smoke', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert module in report["reason"]
    assert "armllm[engine]" in report["reason"]


def test_damaged_weights_are_a_failure_in_one_line(tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    assert command.main(["--model", str(folder), "--dtype", "float32", "--batch", "1"]) == 1
    assert "FAILED" in capsys.readouterr().out
