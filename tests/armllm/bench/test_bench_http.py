"""The cost of HTTP per token is that of tokens which came."""

from __future__ import annotations

import pytest

import bench_http as tool


def test_answers_with_all_tokens_are_measured():
    assert 0 < tool.measure(clients=2, tokens=3) < 1


def test_refused_requests_are_not_counted(capfd):
    """It would catch the time of a refusal, divided by tokens that nobody sent."""
    with pytest.raises(SystemExit) as ended:
        tool.measure(clients=1, tokens=1_000_000)
    assert ended.value.code == 1
    assert "the server answered 400, not 200" in capfd.readouterr().err
