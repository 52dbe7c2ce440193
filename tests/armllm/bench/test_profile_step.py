"""The profile of a step counts every second once, where it was spent."""

from __future__ import annotations

import pytest
import torch

import profile_step as tool
from armllm import kernels
from armllm.layers.norm import RMSNorm
from armllm.smoke.passages import MODEL


def test_what_is_nested_is_counted_once():
    now = [0.0]
    shares = tool.Shares(lambda: now[0])

    def pass_time(seconds):
        now[0] += seconds

    with shares.of("model"):
        pass_time(1)
        with shares.of(tool.PRODUCTS):
            pass_time(2)
            shares.around(tool.PRODUCTS, pass_time)(4)
        shares.around(tool.ATTENTION, pass_time)(8)
    with shares.of("sample"):
        pass_time(16)
    assert shares.seconds == {tool.MODEL: 1, tool.PRODUCTS: 6, tool.ATTENTION: 8, tool.OUTSIDE: 16}


def test_the_shares_of_a_real_step_make_up_the_whole():
    before, threads = (kernels.paged_attention, RMSNorm.__call__), torch.get_num_threads()
    ((shares, seconds),) = tool.profile(str(MODEL), [(3, 20, 8)], threads=1, dtype="float32")
    torch.set_num_threads(threads)
    kernels.set_num_threads(threads)
    assert seconds > 0
    assert all(shares[column] > 0 for column in tool.COLUMNS)
    assert sum(shares.values()) == pytest.approx(1, abs=0.1)
    assert (kernels.paged_attention, RMSNorm.__call__) == before, "it must leave nothing behind"


def test_steps_that_are_replayed_are_compared_with_computed_ones(monkeypatch):
    monkeypatch.setattr(tool, "ROUNDS", 1)
    threads = torch.get_num_threads()
    ((computed, replayed, ratio),) = tool.compare(str(MODEL), [(2, 20, 4)], threads=1, dtype="float32")
    torch.set_num_threads(threads)
    kernels.set_num_threads(threads)
    assert ratio == pytest.approx(computed / replayed)
