"""Prometheus metrics under vLLM's names, so that its dashboards and autoscalers work as they are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from armllm.engine.metrics import Counter as EngineCounter
from armllm.engine.metrics import read_metrics
from armllm.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from prometheus_client.core import Metric

    from armllm.api.async_llm import AsyncLLM
    from armllm.outputs import RequestOutput
    from armllm.sampling_params import SamplingParams
    from armllm.server.engine_process import EngineProcess

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Metrics:
    """What requests were like, and, when asked, how the engine is."""

    def __init__(self, engine: AsyncLLM | EngineProcess, model: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine, model))
        self._model = model

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(f"vllm:{name}", text, ["model_name"], buckets=buckets, registry=self.registry)
            return metric.labels(model_name=model)

        self.success = Counter(
            "vllm:request_success",
            "Requests that ended, by how they did.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self.first = histogram("time_to_first_token_seconds", "Time to the first token, streams.", SECONDS)
        self.between = histogram("inter_token_latency_seconds", "Time between tokens, streams.", STEP_SECONDS)
        self.whole = histogram("e2e_request_latency_seconds", "Time of a request.", SECONDS)
        self.prompt_size = histogram("request_prompt_tokens", "Prompt tokens per request.", TOKENS)
        self.output_size = histogram("request_generation_tokens", "Tokens generated per request.", TOKENS)

    def render(self) -> bytes:
        """The text that /metrics answers."""
        return generate_latest(self.registry)

    async def observed(
        self, stream: AsyncIterator[RequestOutput], params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        """The same outputs; what they show is counted."""
        started = last = time.monotonic()
        tokens, reasons = 0, []
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            try:
                async for output in stream:
                    now = time.monotonic()
                    new = sum(len(completion.token_ids) for completion in output.outputs)
                    if params.streams:
                        if tokens == 0:
                            self.first.observe(now - started)
                        elif new:
                            self.between.observe((now - last) / new)
                    tokens, last = tokens + new, now
                    reasons += [one.finish_reason for one in output.outputs if one.finish_reason is not None]
                    if output.finished:
                        self.prompt_size.observe(len(output.prompt_token_ids))
                        self.output_size.observe(tokens)
                        self.whole.observe(now - started)
                    yield output
            except EngineError:
                reasons.append("error")
                raise
            except (GeneratorExit, asyncio.CancelledError):  # the client has gone
                reasons.append("abort")
                raise
            finally:
                for reason in reasons:
                    self.success.labels(model_name=self._model, finished_reason=reason).inc()


class EngineCollector(Collector):
    """Reads the engine's state at the moment of a scrape."""

    def __init__(self, engine: AsyncLLM | EngineProcess, model: str) -> None:
        self._engine = engine
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters of the scheduler, its cache and its steps."""
        stats = self._engine.stats()
        for figure in read_metrics(stats, self._model):
            family = CounterMetricFamily if isinstance(figure, EngineCounter) else GaugeMetricFamily
            metric = family(figure.name, figure.description, labels=list(figure.labels))
            metric.add_metric(list(figure.labels.values()), figure.value)
            yield metric
        seconds = CounterMetricFamily(
            "armllm:step_seconds", "Where the steps' time goes.", labels=["model_name", "part"]
        )
        for part, value in stats.seconds.items():
            seconds.add_metric([self._model, part], value)
        yield seconds
        info = InfoMetricFamily("vllm:cache_config", "The KV cache.", labels=["model_name"])
        cache = {
            "block_size": str(stats.block_size),
            "cache_dtype": stats.cache_dtype,
            "num_gpu_blocks": str(stats.num_blocks),
        }
        info.add_metric([self._model], cache)
        yield info
