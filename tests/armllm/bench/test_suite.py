"""A suite becomes the commands that it describes; filters and errors are about its cases."""

from __future__ import annotations

import json

import pytest

from armllm.cli import main
from armllm.smoke.passages import MODEL

SUITE = {
    "defaults": {"server_parameters": {"max_num_seqs": 64}, "qps_list": [1, "inf"]},
    "tests": [
        {
            "test_name": "serving_small",
            "server_environment_variables": {"VLLM_CPU_KVCACHE_SPACE": 4},
            "server_parameters": {"model": "org/small", "dtype": "bfloat16", "disable_log_stats": ""},
            "client_parameters": {"model": "org/small", "dataset_name": "random", "num_prompts": 20},
            "max_concurrency_list": [2, 4],
        },
        {
            "test_name": "serving_large",
            "tier": "full",
            "server_parameters": {"model": "org/large", "dtype": "float32", "port": 8100},
        },
    ],
}


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "suite.json"
    path.write_text(json.dumps(SUITE))
    return str(path)


def test_a_dry_run_prints_the_commands_of_the_filtered_cases(suite, capsys):
    assert main(["bench", "suite", suite, "--dry-run", "--dtype-filter", "bfloat16"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "# 1 of 1: serving_small",
        (
            "VLLM_CPU_KVCACHE_SPACE=4 armllm serve org/small --max-num-seqs 64 --dtype bfloat16"
            " --disable-log-stats &"
        ),
        *(
            "armllm bench serve --ready-check-timeout-sec 1800 --dataset-name random --num-prompts 20"
            f" --request-rate 1,inf --max-concurrency {limit} --result-dir results"
            f" --result-filename serving_small_concurrency_{limit}.json"
            for limit in (2, 4)
        ),
        "kill $!",
    ]
    for only in (["--model-filter", "org/large"], ["--tier-filter", "full"]):
        assert main(["bench", "suite", suite, "--dry-run", *only]) == 0
        shown = capsys.readouterr().out
        assert "--port 8100 --request-rate" in shown
        assert "# 1 of 1: serving_large" in shown
    assert main(["bench", "suite", suite, "--dry-run", "--model-filter", "org/other"]) == 2
    assert "--model-filter" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "no JSON"),
        pytest.param("[" * 100_000, "no JSON", id="deep"),
        ("3", "list of tests"),
        ('[{"test_name": "latency_a"}]', "name no model"),
        ('[{"test_name": "speed_a", "parameters": {"model": "x"}}]', "must begin with latency"),
        ('[{"test_name": "latency_a", "parameters": {"model": "x"}, "gpus": 1}]', "'gpus'"),
        ('[{"parameters": {}}]', "test_name"),
        ('[{"test_name": "latency_a", "parameters": []}]', "parameters"),
    ],
)
def test_a_wrong_suite_is_one_line(tmp_path, capsys, document, words):
    path = tmp_path / "suite.json"
    path.write_text(document)
    assert main(["bench", "suite", str(path), "--dry-run"]) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1


@pytest.mark.slow
def test_a_case_that_fails_does_not_end_the_suite(tmp_path, capfd):
    model = {"model": str(MODEL), "dtype": "float32"}
    lengths = {"input_len": 8, "output_len": 4}
    tests = [
        {"test_name": "serving_gone", "server_parameters": {"model": "/nowhere"}},
        {"test_name": "throughput_small", "parameters": {**model, **lengths, "num_prompts": 3}},
    ]
    path = tmp_path / "suite.json"
    path.write_text(json.dumps(tests))
    assert main(["bench", "suite", str(path), "--output", str(tmp_path / "out")]) == 1
    assert json.loads((tmp_path / "out" / "throughput_small.json").read_text())["num_requests"] == 3
    assert "1 of 2 cases failed: serving_gone" in capfd.readouterr().err
