"""Runs are compared figure by figure; what is better is said by its sign and by a word."""

from __future__ import annotations

import json

import pytest

from armllm.bench.compare import compare_results
from armllm.bench.summary import Outcome, summarize
from armllm.cli import main


def write(path, document):
    path.write_text(json.dumps(document))
    return str(path)


def serving(seconds, latency):
    outcomes = [Outcome(10, output_tokens=5, ttft=latency / 5, intervals=[latency / 5] * 4, latency=latency)]
    return {"results": [summarize(outcomes, seconds, rate) for rate in (4.0, float("inf"))]}


def test_servers_are_compared_rate_by_rate_in_a_table_and_a_plot(tmp_path, capsys):
    files = [
        write(tmp_path / "before.json", serving(2.0, 0.5)),
        write(tmp_path / "after.json", serving(1.0, 0.75)),
    ]
    for ending, magic in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        plot = tmp_path / f"plot.{ending}"
        assert main(["bench", "compare", *files, "--plot", str(plot)]) == 0
        assert plot.read_bytes().startswith(magic)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "before after"
    assert "output tokens/s at 4 req/s 2.5 5 (+100.0%, better)" in lines
    assert "mean E2EL (ms), all at once 500 750 (+50.0%, worse)" in lines
    assert main(["bench", "compare", *files, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert {
        "figure": "p99 TTFT (ms) at 4 req/s",
        "values": [100.0, 150.0],
        "higher_is_better": False,
    } in figures


def test_offline_runs_are_compared_and_missing_figures_are_none(tmp_path):
    first = tmp_path / "a.json"
    second = tmp_path / "b.json"
    write(first, {"avg_latency": 2.0, "latencies": [2.0], "percentiles": {"50": 2.0, "99": 3.0}})
    write(second, {"avg_latency": 1.0, "latencies": [1.0], "percentiles": {"50": 1.0}})
    rows = {one.label: (one.values, one.higher) for one in compare_results([first, second])}
    assert rows["mean latency (s)"] == ([2.0, 1.0], False)
    assert rows["p99 latency (s)"] == ([3.0, None], False)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("[1]", "no result of"),
        ("{", "no result of"),
        ("{}", "no result of"),
        pytest.param("[" * 100_000, "no result of", id="deep"),
        (None, "No such file"),
    ],
)
def test_what_is_no_result_is_one_line(tmp_path, capsys, second, words):
    first = write(tmp_path / "a.json", serving(1.0, 1.0))
    if second is not None:
        (tmp_path / "b.json").write_text(second)
    assert main(["bench", "compare", first, str(tmp_path / "b.json")]) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1


def test_runs_of_two_kinds_are_not_compared(tmp_path, capsys):
    first = write(tmp_path / "a.json", {"avg_latency": 2.0})
    assert main(["bench", "compare", first, write(tmp_path / "b.json", serving(1.0, 1.0))]) == 2
    assert "no figure in common" in capsys.readouterr().err
    assert main(["bench", "compare", first]) == 2
