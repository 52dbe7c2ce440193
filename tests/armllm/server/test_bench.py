"""`armllm bench serve` measures a running server, and says so when there is none."""

from __future__ import annotations

import json

import pytest

from armllm.cli import main


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_rates_are_measured_and_plotted(served, folder, tmp_path, capsys, backend):
    arguments = ["bench", "serve", "--base-url", served.url, "--backend", backend, "--num-prompts", "6"]
    arguments += ["--input-len", "20", "--output-len", "5", "--request-rate", "50,inf", "--json"]
    status = main([*arguments, "--plot", str(tmp_path / "curve"), "--tokenizer", str(folder)])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    document = json.loads(shown.out)
    assert [result["request_rate"] for result in document["results"]] == [50.0, "inf"]
    for result in document["results"]:
        assert result["completed"] == 6
        assert result["total_output_tokens"] == 30
        assert 0 < result["mean_ttft_ms"] <= result["mean_e2el_ms"]
    assert len(list(tmp_path.glob("curve-*.svg"))) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--base-url", "http://127.0.0.1:9"], "no server"),
        (["--base-url", "nonsense"], "no server"),
        (["--request-rate", "fast"], "--request-rate"),
        (["--request-rate", "0"], "--request-rate"),
        (["--backend", "grpc"], "--backend"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--tokenizer", "/nowhere"], "/nowhere"),
        (["--dataset-name", "sharegpt"], "--dataset-path"),
        (["--dataset-name", "sonnet"], "--dataset-name"),
        (["--input-len", "5000"], "no request was answered"),
    ],
)
def test_wrong_usage_is_one_line(served, capsys, options, words):
    given = [] if "--base-url" in options else ["--base-url", served.url]
    assert main(["bench", "serve", "--num-prompts", "2", "--output-len", "2", *given, *options]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.err.count("\n") == 1
