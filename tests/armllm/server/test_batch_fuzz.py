"""Whatever stands in a file of requests, the others are answered, or one line says what is wrong."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from tests.armllm.server.odd_bodies import ENDPOINTS, plausible, value

from armllm.cli import main
from armllm.errors import RequestError
from armllm.server import batch


def test_no_line_of_a_batch_ends_the_others(folder, tmp_path, capsys):
    """It would catch an error that ends the command, and the answers of other lines with it."""
    rng = random.Random(5)  # noqa: S311 - test data
    lines = []
    for number in range(120):
        path = rng.choice(list(ENDPOINTS))
        model, base = ENDPOINTS[path]
        fields = {name: plausible(rng, name) for name in rng.sample(sorted(model.model_fields), 2)}
        odd = value(rng) if rng.random() < 0.1 else {**base, **fields, "model": "smoke"}
        sent = odd if isinstance(odd, dict) else base
        lines.append({"custom_id": str(number), "method": "POST", "url": path, "body": sent})
    lines += [{**lines[0], "method": value(rng), "url": value(rng)} for _ in range(20)]
    texts = [json.dumps(line) for line in lines]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(texts))
    command = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(folder)]
    assert main([*command, "--served-model-name", "smoke", "--max-model-len", "64"]) in (1, 2), (
        capsys.readouterr()
    )
    answers = [json.loads(text) for text in target.read_text().splitlines()]
    assert len(answers) == len(texts), capsys.readouterr().err
    for line, answer in zip(texts, answers, strict=True):
        assert answer["response"]["status_code"] < 500, (line, answer)


def damaged(rng, text):
    """A line of a batch in which a few characters were changed, lost, doubled or put in."""
    odd = (
        "",
        '"',
        "{",
        "]",
        ",",
        ":",
        "\\",
        "\\ud800",
        "\0",
        "\ufeff",
        "\r",
        "9" * 5000,
        "NaN",
        "[" * 100_000,
    )
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text))
        length = rng.choice((0, 1, 1, 30))
        text = text[:at] + rng.choice((*odd, text[:at], text[at:])) + text[at + length :]
    return text.replace("\n", "")


def test_no_damage_to_a_file_of_requests_ends_the_command_with_a_traceback(folder, tmp_path, capsys):
    """A line that can't be read is refused by its number; the others are answered."""
    rng = random.Random(8)  # noqa: S311 - test data
    kept, refusals = [], []
    for number in range(1500):
        path = rng.choice(list(ENDPOINTS))
        line = {"custom_id": str(number), "method": "POST", "url": path, "body": ENDPOINTS[path][1]}
        text = damaged(rng, json.dumps(line))
        try:
            batch._parse(text, 1)
        except RequestError as error:
            refusals.append(str(error))
        else:
            kept.append(text)
    for refusal in refusals:
        assert refusal.startswith("--input-file, line 1: "), refusal
        assert "\n" not in refusal, refusal
        assert len(refusal) < 500, refusal
    assert len(kept) > 100
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(kept))
    command = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(folder)]
    assert main([*command, "--max-model-len", "64"]) == 1, capsys.readouterr().err
    answers = [json.loads(text) for text in target.read_text().splitlines()]
    assert len(answers) == len(kept)
    assert {answer["response"]["status_code"] for answer in answers} <= {200, 400, 404, 413}
    source.write_bytes(b"{}\n\xff\xfe")
    assert main(command) == 2
    assert str(source) in capsys.readouterr().err


def test_a_line_of_a_batch_that_is_just_not_too_deep_to_be_read_has_an_answer():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": deep}}
    answer = asyncio.run(batch._answer(None, line))
    assert answer["response"]["status_code"] == 400
    assert answer["error"]["message"] == "the body is nested too deeply"


@pytest.mark.parametrize(
    "line", ["[", "1", "[]", "{}", '{"body":' * 5000, "9" * 9999, "null", '"\\ud800"', "\x00"]
)
def test_a_line_of_a_batch_that_is_no_request_is_named(folder, tmp_path, capsys, line):
    (tmp_path / "in.jsonl").write_text(line)
    command = [
        "run-batch",
        "-i",
        str(tmp_path / "in.jsonl"),
        "-o",
        str(tmp_path / "out"),
        "--model",
        str(folder),
    ]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "line 1" in message
    assert len(message) < 500
