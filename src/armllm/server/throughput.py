"""A line every ten seconds on what the engine does, as vLLM's servers log it, while it does something."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from armllm.engine.stats import EngineStats

logger = logging.getLogger(__name__)
INTERVAL = 10.0  # seconds


async def log_throughput(stats: Callable[[], EngineStats], interval: float = INTERVAL) -> None:
    """Log until cancelled. An interval in which nothing ran or waited, or was computed, has no line."""
    before, then = stats(), time.monotonic()
    while True:
        await asyncio.sleep(interval)
        now, clock = stats(), time.monotonic()
        if now.num_steps != before.num_steps or now.num_running or now.num_waiting:
            logger.info(throughput_line(before, now, clock - then))
        before, then = now, clock


def throughput_line(before: EngineStats, now: EngineStats, seconds: float) -> str:
    """Tokens per second between two snapshots, and the queue and the caches at the second; vLLM's terms.

    The hit rate counts the prompt tokens that were looked up within the interval.
    """
    queries = now.num_prefix_queries - before.num_prefix_queries
    hits = now.num_prefix_hits - before.num_prefix_hits
    return (
        f"Avg prompt throughput: {(now.num_prompt_tokens - before.num_prompt_tokens) / seconds:.1f} tokens/s,"
        " Avg generation throughput:"
        f" {(now.num_generation_tokens - before.num_generation_tokens) / seconds:.1f} tokens/s,"
        f" Running: {now.num_running} reqs, Waiting: {now.num_waiting} reqs,"
        f" KV cache usage: {100 * now.num_used_blocks / now.num_blocks:.1f}%,"
        f" Prefix cache hit rate: {100 * hits / queries if queries else 0.0:.1f}%"
    )
