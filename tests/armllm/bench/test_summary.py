"""The figures are what their names say, and the curves show them."""

from __future__ import annotations

import itertools
import json
import statistics

import pytest
from matplotlib.text import Text

from armllm.bench.dataset import random_requests, sharegpt_requests
from armllm.bench.plot import draw_plot
from armllm.bench.summary import Outcome, as_text, percentile, summarize
from armllm.errors import RequestError
from armllm.smoke.passages import MODEL
from armllm.tokenizer import Tokenizer

OUTCOMES = [
    Outcome(10, output_tokens=5, ttft=0.1, intervals=[0.1, 0.1, 0.1, 0.1], latency=0.5),
    Outcome(20, output_tokens=1, ttft=0.3, latency=0.3),
    Outcome(30, error="status 500"),
]


def test_figures_leave_failures_and_first_tokens_out():
    result = summarize(OUTCOMES, 2.0, 4.0)
    assert (result["completed"], result["failed"]) == (2, 1)
    assert result["total_input_tokens"] == 30
    assert result["output_throughput"] == 3.0
    assert result["request_throughput"] == 1.0
    assert result["mean_ttft_ms"] == pytest.approx(200)
    assert result["mean_tpot_ms"] == pytest.approx(100)
    assert result["p99_e2el_ms"] == pytest.approx(498)
    lines = as_text(result).splitlines()
    assert "Failed requests:                         1" in lines
    assert "Request rate configured (RPS):           4.00" in lines
    assert "Total generated tokens:                  6" in lines
    assert "P99 E2EL (ms):                           498.00" in lines


def test_peaks_are_of_one_second_and_of_one_moment():
    outcomes = [
        Outcome(1, output_tokens=4, started=5.0, ttft=0.5, intervals=[0.1, 0.1, 1.0], latency=1.7),
        Outcome(1, output_tokens=6, started=5.2, ttft=0.6, intervals=[0.1], latency=0.7),  # 3 tokens an event
        Outcome(1, output_tokens=1, started=6.8, ttft=0.1, latency=0.1),
        Outcome(1, error="status 500", started=5.0, latency=9.0),
    ]
    result = summarize(outcomes, 2.0, float("inf"), max_concurrency=3)
    assert (result["max_output_tokens_per_s"], result["max_concurrent_requests"]) == (9, 2)
    lines = as_text(result).splitlines()
    assert "Maximum request concurrency:             3" in lines
    assert not any("Request rate" in line for line in lines), "all at once is no rate"
    assert "Peak output token throughput (tok/s):    9.00" in lines
    assert "Peak concurrent requests:                2.00" in lines
    nothing = summarize([Outcome(1, error="status 500")], 2.0, 1.0)
    assert (nothing["max_output_tokens_per_s"], nothing["max_concurrent_requests"]) == (0, 0)
    assert "Maximum" not in as_text(nothing)


def test_a_figure_without_measurements_is_there_and_says_so():
    whole = [Outcome(10, output_tokens=4, ttft=0.1, latency=0.1)]  # all its tokens came in one event
    result = summarize(whole, 1.0, 4.0, percentiles=(50, 99.9))
    assert [result[f"{kind}_itl_ms"] for kind in ("mean", "median", "p50", "p99.9")] == [None] * 4
    assert "none" in as_text(result)


def test_percentiles_are_those_of_statistics():
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    expected = statistics.quantiles(values, n=100, method="inclusive")
    for rank in (1, 25, 50, 90, 99):
        assert percentile(values, rank) == pytest.approx(expected[rank - 1])
    assert percentile([7.0], 99) == 7.0


def test_curves_are_written_as_png_and_svg_with_a_point_per_rate(tmp_path):
    results = [summarize(OUTCOMES, 2.0, rate) for rate in (1.0, 4.0, float("inf"))]
    paths = draw_plot(results, tmp_path / "curve", "model")
    assert sorted(path.name for path in paths) == [
        "curve-tpot.png",
        "curve-tpot.svg",
        "curve-ttft.png",
        "curve-ttft.svg",
    ]
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")
        if path.suffix == ".svg":
            assert all(
                f"<!-- {rate} -->".encode() in content
                for rate in ("1 request/s", "4 requests/s", "all at once")
            )


def test_labels_of_rates_that_are_as_fast_can_all_be_read(tmp_path, monkeypatch):
    """It would catch labels that cover one another where a server is far from busy."""
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    results = [summarize(OUTCOMES, 2.0, rate) for rate in (0.5, 1.0, 2.0, 4.0)]
    draw_plot(results, tmp_path / "curve", "model")
    for figure in figures:
        figure.draw_without_rendering()
        boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]
        assert len(boxes) == 4
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_random_requests_have_the_lengths_asked_for():
    fixed = random_requests(20, input_len=8, output_len=4, range_ratio=0, vocab_size=100, seed=1)
    assert {len(request.prompt_token_ids) for request in fixed} == {8}
    assert {request.output_len for request in fixed} == {4}
    spread = random_requests(200, input_len=10, output_len=10, range_ratio=0.5, vocab_size=100, seed=1)
    assert {len(request.prompt_token_ids) for request in spread} == set(range(5, 16))
    assert all(10 <= token < 100 for request in spread for token in request.prompt_token_ids)
    with pytest.raises(RequestError, match="range-ratio"):
        random_requests(1, input_len=8, output_len=4, range_ratio=1, vocab_size=100, seed=1)


def test_conversations_are_read_and_what_does_not_fit_is_left_out(tmp_path):
    path = tmp_path / "talk.json"
    turns = [{"from": "human", "value": "What is a wheel?"}, {"from": "gpt", "value": "A round thing."}]
    talks = [{"conversations": turns}, {"conversations": turns[:1]}, {"conversations": turns}, {}]
    talks.append({"conversations": [{"value": "x" * 5000}, turns[1]]})
    path.write_text(json.dumps(talks))
    tokenizer = Tokenizer(MODEL)
    options = {"tokenizer": tokenizer, "max_model_len": 500, "seed": 0}
    found = sharegpt_requests(str(path), 10, output_len=None, **options)
    assert [request.prompt_token_ids for request in found] == [tokenizer.encode("What is a wheel?")] * 2
    assert found[0].output_len == len(tokenizer.encode("A round thing.", add_special_tokens=False))
    assert sharegpt_requests(str(path), 1, output_len=9, **options)[0].output_len == 9
    for content in ("[", '{"a": 1}', "[1]", "[" * 100_000):
        path.write_text(content)
        with pytest.raises(RequestError, match="JSON list"):
            sharegpt_requests(str(path), 1, output_len=None, **options)
    with pytest.raises(RequestError, match="nowhere"):
        sharegpt_requests("/nowhere", 1, output_len=None, **options)
