"""A server that works says how fast, and one that rests says nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import re

from armllm.server import throughput


def test_a_line_has_the_figures_of_its_interval(served):
    before = served.engine.stats()
    served.post("/v1/completions", {"prompt": [7] * 40, "max_tokens": 8, "ignore_eos": True})
    served.assert_idle()
    now = dataclasses.replace(served.engine.stats(), num_running=1, num_waiting=2)
    now = dataclasses.replace(now, num_used_blocks=now.num_blocks // 2, num_blocks=now.num_blocks // 2 * 2)
    line = throughput.throughput_line(before, now, 2.0)
    figures = [float(figure) for figure in re.findall(r"[\d.]+", line)]
    assert figures == [20.0, 4.0, 1, 2, 50.0, 0.0]
    served.post("/v1/completions", {"prompt": [7] * 40, "max_tokens": 8, "ignore_eos": True})
    served.assert_idle()
    again = throughput.throughput_line(now, served.engine.stats(), 2.0)
    assert float(re.search(r"hit rate: ([\d.]+)%", again).group(1)) == 80.0  # 32 of 40 fill blocks


def test_an_idle_server_is_silent(served, caplog):
    caplog.set_level("INFO", "armllm")

    async def watch():
        log = asyncio.ensure_future(throughput.log_throughput(served.engine.stats, 0.05))
        await asyncio.sleep(0.3)
        silent = len(caplog.records)
        body = {"prompt": [7] * 20, "max_tokens": 20, "ignore_eos": True}
        await asyncio.to_thread(served.post, "/v1/completions", body)
        await asyncio.sleep(0.2)
        log.cancel()
        return silent

    assert asyncio.run(watch()) == 0
    assert caplog.records
    assert all("generation throughput" in record.getMessage() for record in caplog.records)
