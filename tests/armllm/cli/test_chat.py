"""`armllm chat` keeps the conversation, and `armllm doctor` and other commands answer in their formats."""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest

from armllm.cli import main
from armllm.cli.options import count
from armllm.smoke.passages import MODEL

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = shutil.copytree(MODEL, tmp_path_factory.mktemp("chat") / "model")
    (target / "chat_template.jinja").write_text(TEMPLATE)
    return str(target)


def test_one_message_is_answered_and_that_is_all(folder, capsys):
    arguments = [
        "chat",
        folder,
        "-q",
        "Hello",
        "--max-tokens",
        "4",
        "--temperature",
        "0",
        "--dtype",
        "float32",
    ]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert first.endswith("\n")
    assert main(arguments) == 0
    assert capsys.readouterr().out == first


def test_lines_are_answered_in_one_conversation_until_an_empty_one(folder, capsys, monkeypatch):
    from armllm.chat import ChatTemplate  # noqa: PLC0415

    seen, render = [], ChatTemplate.render

    def watched(self, messages, **options):
        seen.append([message["role"] for message in messages])
        return render(self, messages, **options)

    monkeypatch.setattr(ChatTemplate, "render", watched)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\nAgain\n\nNever asked\n"))
    assert main(["chat", folder, "--max-tokens", "4", "--system-prompt", "x", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out.count("\n") >= 2
    assert seen == [["system", "user"], ["system", "user", "assistant", "user"]]


def test_a_model_without_a_template_is_an_error_line(capsys):
    assert main(["chat", str(MODEL), "-q", "Hello", "--dtype", "float32"]) == 2
    assert "chat template" in capsys.readouterr().err


def test_doctor_says_what_is_missing_and_how_to_get_it(capsys):
    assert main(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["torch"]["status"] == checks["kernels"]["status"] == "ok"
    assert checks["server"]["status"] == "ok"
    if "preloaded" not in checks["allocator"]["found"].removeprefix("glibc's malloc; tcmalloc is not "):
        assert "LD_PRELOAD" in checks["allocator"]["advice"]
    assert main(["doctor"]) == 0
    assert "allocator" in capsys.readouterr().out


def test_more_threads_than_may_run_are_found(capsys, monkeypatch):
    import torch  # noqa: PLC0415

    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    assert main(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["threads"]["status"] == "warn"
    assert "OMP_NUM_THREADS" in checks["threads"]["advice"]
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nonsense")
    assert main(["doctor", "--json"]) == 1
    assert "VLLM_CPU_OMP_THREADS_BIND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "value"), [("4096", 4096), ("4k", 4000), ("4K", 4096), ("25.6k", 25600), ("1M", 1 << 20)]
)
def test_numbers_may_have_suffixes(text, value):
    assert count(text) == value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "latency"], "--model"),
        (["bench", "latency", "--model", "/nowhere"], "/nowhere"),
        (["bench", "latency", "--model", str(MODEL), "--num-iters", "0"], "--num-iters"),
        (["bench", "throughput", "--model", str(MODEL), "--num-prompts", "0"], "--num-prompts"),
        (["bench", "throughput", "--model", str(MODEL), "--input-len", "9999"], "max_model_len"),
        (["bench", "speed"], "speed"),
    ],
)
def test_wrong_benchmarks_are_one_line(capsys, arguments, words):
    assert main(arguments) in (1, 2)
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.err.count("\n") == 1


def test_offline_benchmarks_count_what_was_done(capsys, tmp_path):
    path = tmp_path / "out.json"
    common = ["--model", str(MODEL), "--dtype", "float32", "--input-len", "9", "--output-len", "4", "--json"]
    assert main(["bench", "throughput", "--num-prompts", "5", "--output-json", str(path), *common]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (45, 20)
    assert json.loads(path.read_text())["num_requests"] == 5
    latency = ["--num-iters", "3", "--num-iters-warmup", "1", "--batch-size", "2"]
    assert main(["bench", "latency", *latency, *common]) == 0
    assert len(json.loads(capsys.readouterr().out)["latencies"]) == 3
