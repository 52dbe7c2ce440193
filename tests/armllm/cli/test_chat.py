"""`armllm chat` keeps the conversation, and `armllm doctor` and other commands answer in their formats."""

from __future__ import annotations

import functools
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
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


@pytest.fixture
def seen(monkeypatch):
    """The roles of the messages of each turn."""
    from armllm.rendering import Renderer  # noqa: PLC0415

    seen, render = [], Renderer.render

    def watched(self, messages, **options):
        seen.append([message["role"] for message in messages])
        return render(self, messages, **options)

    monkeypatch.setattr(Renderer, "render", watched)
    return seen


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


def test_lines_are_answered_in_one_conversation_until_an_empty_one(folder, capsys, monkeypatch, seen):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\nAgain\n\nNever asked\n"))
    assert main(["chat", folder, "--max-tokens", "4", "--system-prompt", "x", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out.count("\n") >= 2
    assert seen == [["system", "user"], ["system", "user", "assistant", "user"]]


def test_a_model_without_a_template_is_an_error_line(capsys):
    assert main(["chat", str(MODEL), "-q", "Hello", "--dtype", "float32"]) == 2
    assert "chat template" in capsys.readouterr().err


def test_commands_are_obeyed_and_not_sent(folder, capsys, monkeypatch, seen):
    """It would catch a command that reaches the model, and a reset that loses the system prompt."""
    lines = ["Hello", "/help", "/nonsense", "/etc/hosts is a file", "/reset", "Again", "/exit", "Never asked"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    assert main(["chat", folder, "--max-tokens", "2", "--system-prompt", "x", "--dtype", "float32"]) == 0
    assert seen == [["system", "user"], ["system", "user", "assistant", "user"], ["system", "user"]]
    error = capsys.readouterr().err
    assert "/reset" in error
    assert "/nonsense is no command" in error


@pytest.mark.parametrize("form", ["file", "text"])
def test_a_template_of_the_user_is_taken(capsys, tmp_path, form):
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    template = str(tmp_path / "template.jinja") if form == "file" else TEMPLATE
    arguments = ["chat", str(MODEL), "--dtype", "float32", "--max-tokens", "2", "-q", "Hello"]
    assert main([*arguments, "--chat-template", template]) == 0
    assert main([*arguments, "--chat-template", "/nowhere.jinja"]) == 2
    assert main(["chat", "--url", "http://127.0.0.1:9", "--chat-template", template, "-q", "x"]) == 2
    assert capsys.readouterr().err.count("--chat-template") == 2


def test_an_interrupt_stops_the_answer_and_not_the_program(folder, capsys, monkeypatch, seen):
    """It would catch an interrupt that ends a step half way, and one that ends the conversation."""
    from armllm.api.llm_engine import LLMEngine  # noqa: PLC0415

    step, interrupted = LLMEngine.step, []

    def interrupt_once(self):
        if not interrupted:
            interrupted.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        outputs = step(self)
        self.check_integrity()
        return outputs

    monkeypatch.setattr(LLMEngine, "step", interrupt_once)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\nAgain\n"))
    assert main(["chat", folder, "--max-tokens", "3", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out.count("[stopped]") == 1
    assert seen == [["user"], ["user", "assistant", "user"]]
    interrupted.clear()
    assert main(["chat", folder, "--max-tokens", "3", "--dtype", "float32", "-q", "Hello"]) == 130


def test_a_terminal_has_line_editing_and_an_interrupt_drops_the_line(folder):
    program = "import sys; from armllm.cli import main; sys.exit(main(sys.argv[1:]))"
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", program, "chat", folder, "--dtype", "float32"]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower) as process:
        os.close(follower)
        try:
            read_until(leader, "> ")
            os.write(leader, b"never sent")
            read_until(leader, "never sent")
            interrupt = functools.partial(process.send_signal, signal.SIGINT)
            interrupt()
            # readline may miss a signal that comes between its key and its wait: people press again.
            read_until(leader, "Ctrl-D ends", "> ", when_silent=interrupt)
            os.write(leader, b"/hlp\x1b[D\x1b[De\n")  # two cursor keys
            read_until(leader, "forget the conversation", "> ")
            os.write(leader, b"\x04")
            assert process.wait(180) == 0
        finally:
            process.kill()
            os.close(leader)


def read_until(terminal, *texts, when_silent=lambda: None):
    """Read until the texts were shown, one after the other. A key before a prompt may be lost."""
    shown, silent = "", 0
    while not re.search(".*".join(map(re.escape, texts)), shown, re.DOTALL):
        if select.select([terminal], [], [], 10)[0]:
            shown, silent = shown + os.read(terminal, 4096).decode(errors="replace"), 0
            continue
        silent += 1
        assert silent < 18, shown
        when_silent()


def test_doctor_says_what_is_missing_and_how_to_get_it(capsys, monkeypatch):
    assert main(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["torch"]["status"] == checks["kernels"]["status"] == "ok"
    assert checks["server"]["status"] == "ok"
    assert checks["allocator"]["status"] == "ok"
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert main(["doctor"]) == 0
    assert "LD_PRELOAD" in capsys.readouterr().out


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


def test_collect_env_tells_versions_and_no_secret(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HOME", "/models")
    assert main(["collect-env"]) == 0
    text = capsys.readouterr().out
    assert "hf_secret" not in text
    assert main(["collect-env", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    variables = document["variables"]
    assert [variables["HF_TOKEN"], variables["HF_HOME"]] == ["(set)", "/models"]
    assert document["packages"]["torch"]
    assert "kernels" in document["findings"]
