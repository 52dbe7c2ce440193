"""The engine's own figures count what came out, not what was asked for."""

from __future__ import annotations

import contextlib

import pytest

from armllm.api.llm import LLM
from armllm.bench.dataset import BenchRequest
from armllm.bench.offline import measure_latency, measure_throughput
from armllm.errors import RequestError
from armllm.smoke.passages import MODEL


def test_answers_that_end_at_the_models_length_count_as_long_as_they_are():
    llm = LLM(str(MODEL), max_model_len=48, max_num_seqs=2)
    result = measure_throughput(llm, [BenchRequest([5] * 40, 100), BenchRequest([5] * 8, 4)])
    assert result["total_input_tokens"] == 48
    assert result["total_output_tokens"] == 8 + 4
    assert result["total_num_tokens"] == 60
    assert round(result["output_tokens_per_second"] * result["elapsed_time"], 6) == 12


def test_the_time_of_answers_that_would_be_cut_is_not_taken():
    llm = LLM(str(MODEL), max_model_len=48, max_num_seqs=2)
    for lengths, fits in (((40, 8), True), ((40, 9), False)):
        requests = [BenchRequest([5] * 8, 2), BenchRequest([5] * lengths[0], lengths[1])]
        with (
            contextlib.nullcontext()
            if fits
            else pytest.raises(RequestError, match="49 tokens, and the model has 48")
        ):
            measure_latency(llm, requests, warmups=0, repeats=1, progress=str)


def test_warm_ups_are_run_and_not_counted():
    llm = LLM(str(MODEL), max_model_len=48, max_num_seqs=2)
    lines = []
    result = measure_latency(llm, [BenchRequest([5] * 8, 2)], warmups=1, repeats=2, progress=lines.append)
    assert len(result["latencies"]) == 2
    assert len(lines) == 3
