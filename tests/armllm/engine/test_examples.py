"""The programs in examples/ run and say what they promise."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def folder(make_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(make_checkpoint().folder, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture
def run(monkeypatch, capsys, folder):
    """Run an example as a program; return what it prints."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, "--model", folder, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_offline_chat_answers_a_conversation_and_a_batch(run):
    options = ("--dtype", "float32", "--max-tokens", "9", "--temperature", "0")
    out = run("offline_chat.py", *options)
    prompts = re.findall("Prompt: '(.*)'", out)
    assert prompts[0].startswith("<system>You are a helpful assistant.<user>Hello<assistant>Hello! How")
    assert prompts[0].endswith("rivers.<assistant>")
    assert prompts[1:] == [
        "<user>Why is the sky blue?<assistant>",
        "<user>Write a haiku about a wheel.<assistant>",
        "<user>Explain in one sentence what a paged KV cache is.<assistant>",
    ]
    assert out == run("offline_chat.py", *options)


def test_offline_chat_takes_another_template(run, tmp_path):
    path = tmp_path / "other.jinja"
    path.write_text("{{ messages | length }} messages")
    out = run("offline_chat.py", "--dtype=bfloat16", "--max-tokens=2", f"--chat-template-path={path}")
    assert re.findall("Prompt: '(.*)'", out) == ["4 messages", "1 messages", "1 messages", "1 messages"]


def test_offline_generate(run):
    out = run("offline_generate.py", "--dtype=float32", "--max-tokens=5", "one", "two words")
    assert re.search(r"^'one' -> .* \(length\)$", out, re.MULTILINE)
    assert re.search(r"^10 tokens in .* tokens/s$", out, re.MULTILINE)


def test_structured_output(run):
    out = run("structured_output.py", "--dtype=float32").splitlines()
    city = ast.literal_eval(out[0])
    assert set(city) == {"name", "population", "on_a_river"}
    assert out[1] in {"positive", "negative"}


def test_stream(run):
    out = run("stream.py", "--dtype=float32")
    assert "boring story: enough" in out
    assert out.count("boring story: ") == 4
    assert len(re.findall("^recipe: ", out, re.MULTILINE)) > 5
    assert re.search(r"\d+ tokens in \d+ steps", out)


def test_embed(run):
    for pooling in ("mean", "last", "cls"):
        out = run("embed.py", "--dtype=float32", f"--pooling={pooling}").splitlines()
        assert out[0] == "an embedding has 64 numbers"
        scores = [float(line.split()[0]) for line in out[1:]]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == 3
