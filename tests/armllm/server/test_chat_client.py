"""`armllm chat --url` talks to a running server as to a model of its own."""

from __future__ import annotations

import io
import sys

import pytest

from armllm.cli import main

QUICK = ["--quick", "Hello", "--max-tokens", "5", "--temperature", "0"]


def test_a_server_answers_as_the_model_itself_does(served, folder, capsys):
    assert main(["chat", "--url", f"{served.url}/v1", *QUICK]) == 0
    remote = capsys.readouterr().out
    assert main(["chat", str(folder), "--dtype", "float32", *QUICK]) == 0
    assert remote == capsys.readouterr().out
    assert remote.strip()
    for where in (["--url", served.url], [str(folder), "--dtype", "float32"]):
        assert main(["chat", *where, *QUICK, "--stats"]) == 0
        shown = capsys.readouterr().out.removeprefix(remote).splitlines()
        assert shown[0].startswith("TTFT: ")
        assert "(5 tokens in" in shown[1]


def test_a_conversation_is_kept_and_an_error_ends_only_its_turn(served, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"Hello\n{'long ' * 5000}\nAgain\n\n"))
    assert main(["chat", "--url", served.url, "--max-tokens", "3"]) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") >= 2
    assert said.err.startswith("armllm: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "at http://localhost:8000: "),
        (["--url", "http://127.0.0.1:9"], "no server"),
        (["model", "--url", "http://127.0.0.1:9"], "MODEL beside --url"),
        (["--url", "http://127.0.0.1:9", "--dtype", "float32"], "--dtype"),
        (["model", "--model-name", "x"], "--model-name"),
    ],
)
def test_wrong_usage_is_one_line(capsys, arguments, words):
    assert main(["chat", "-q", "Hello", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_complete_asks_a_server(served, capsys):
    url = f"{served.url}/v1"
    line = ["complete", "--url", url, "-q", "A wheel left the workshop", "--max-tokens", "4"]
    assert main([*line, "--stats"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].startswith("TTFT: ")
    assert "(4 tokens in" in shown[2]
    assert main([*line, "--model-name", "another"]) == 2
    assert "'another' does not exist" in capsys.readouterr().err
    assert main(["complete", "--url", "http://127.0.0.1:1/v1", "-q", "x"]) == 2
    assert "no server with OpenAI's API" in capsys.readouterr().err
