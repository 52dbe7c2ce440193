"""The engine's figures under the names of vLLM's metrics."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from armllm.engine.stats import EngineStats


@dataclasses.dataclass
class Metric:
    """A figure with its name and labels; ``description`` is one line."""

    name: str
    labels: dict[str, str]
    value: float
    description: str = dataclasses.field(default="", kw_only=True, repr=False)


@dataclasses.dataclass
class Counter(Metric):
    """A total since the start, an integer."""


@dataclasses.dataclass
class Gauge(Metric):
    """A figure of this moment."""


@dataclasses.dataclass
class Vector(Metric):
    """Figures in a row, for programs that look for them; the engine has none."""


@dataclasses.dataclass
class Histogram(Metric):
    """A distribution, for programs that look for them; /metrics of the server has them, the engine none."""


def read_metrics(stats: EngineStats, model: str) -> list[Metric]:
    """Gauges and counters of the scheduler, its cache and its steps; ``model`` is their label."""
    labels = {"model_name": model}
    gauges = (
        ("vllm:num_requests_running", "Sequences in the batch.", stats.num_running),
        ("vllm:num_requests_waiting", "Sequences in the queue.", stats.num_waiting),
        ("vllm:kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.", stats.kv_cache_usage),
        ("armllm:load_seconds", "Time that loading the weights took.", stats.load.seconds),
        ("armllm:load_peak_bytes", "Most memory in use until they were there.", stats.load.peak_bytes),
        ("armllm:weight_bytes", "Memory that the weights take.", stats.load.weight_bytes),
    )
    counters = (
        ("vllm:num_preemptions", "Sequences put back into the queue.", stats.num_preemptions),
        ("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", stats.num_prefix_queries),
        ("vllm:prefix_cache_hits", "Prompt tokens found there.", stats.num_prefix_hits),
        ("vllm:prompt_tokens", "Prompt tokens computed or found.", stats.num_prompt_tokens),
        ("vllm:generation_tokens", "Tokens generated.", stats.num_generation_tokens),
        ("armllm:steps", "Steps of the engine.", stats.num_steps),
    )
    return [
        *(Gauge(name, labels, value, description=text) for name, text, value in gauges),
        *(Counter(name, labels, value, description=text) for name, text, value in counters),
    ]
