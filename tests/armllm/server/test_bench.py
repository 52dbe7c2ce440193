"""`armllm bench serve` measures a running server, and says so when there is none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.armllm.hub import fake_hub_of, variables_for

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


def test_the_figures_asked_for_are_kept_in_a_file(served, folder, tmp_path, capsys):
    arguments = ["bench", "serve", "--base-url", served.url, "--num-prompts", "3", "--input-len", "9"]
    arguments += [
        "--output-len",
        "4",
        "--tokenizer",
        str(folder),
        "--save-result",
        "--result-dir",
        str(tmp_path),
    ]
    assert main([*arguments, "--percentile-metrics", "itl,e2el", "--metric-percentiles", "50,99.9"]) == 0
    assert "P99.9 ITL (ms):" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    (result,) = json.loads(path.read_text())["results"]
    assert {"p50_itl_ms", "p99.9_itl_ms", "p50_e2el_ms", "p99.9_e2el_ms"} <= set(result)
    assert not [name for name in result if "ttft" in name or "p99_" in name]
    assert result["p50_e2el_ms"] == pytest.approx(result["median_e2el_ms"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--base-url", "http://127.0.0.1:9"], "no server"),
        (["--base-url", "nonsense"], "no server"),
        (["--request-rate", "fast"], "--request-rate"),
        (["--request-rate", "0"], "--request-rate"),
        (["--backend", "grpc"], "--backend"),
        (["--percentile-metrics", "ttft,tps"], "--percentile-metrics"),
        (["--percentile-metrics", "itl", "--plot", "curve"], "--percentile-metrics"),
        (["--metric-percentiles", "50,101"], "--metric-percentiles"),
        (["--num-prompts", "0"], "--num-prompts"),
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


def test_a_tokenizer_that_is_not_there_is_one_line(served, capsys):
    assert main(["bench", "serve", "--base-url", served.url, "--tokenizer", "/nowhere"]) == 1
    shown = capsys.readouterr()
    assert "--tokenizer '/nowhere'" in shown.err
    assert shown.err.count("\n") == 1


def test_a_name_on_the_hub_names_a_tokenizer(serving, folder, tmp_path):
    """It would catch a benchmark that takes folders only, or downloads weights to make prompts."""
    with fake_hub_of(folder) as hub, serving(served_model_names=("someone/tiny",)) as server:
        command = [sys.executable, "-m", "armllm", "bench", "serve", "--base-url", server.url, "--json"]
        command += ["--model", "someone/tiny", "--num-prompts", "2", "--input-len", "5", "--output-len", "3"]
        variables = variables_for(hub, tmp_path)
        run = subprocess.run(command, check=False, capture_output=True, text=True, env=variables, timeout=120)
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout)["results"][0]["total_output_tokens"] == 6
        files = {path.rpartition("/")[2] for path in hub.paths if "/resolve/" in path}
        assert "tokenizer.json" in files
        assert "model.safetensors" not in files
