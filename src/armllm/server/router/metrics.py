"""The metrics of all replicas as one page: each sample gets the label ``engine``, as vLLM names it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from armllm.server.router.replica import METRICS_BYTES, read_metrics
from armllm.server.router.upstream import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from armllm.server.router.replica import Replica, Replicas

logger = logging.getLogger("armllm.server.router")

SECONDS = 5.0  # for a replica's page; Prometheus waits 10


class RouterMetrics(Collector):
    """What the router itself counts."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        registry = CollectorRegistry()
        self.retries = Counter(
            "armllm:router_retries", "Requests that another replica was asked.", registry=registry
        )
        self.cut = Counter(
            "armllm:router_cut_answers", "Answers that a replica broke off.", registry=registry
        )
        self._counters = registry
        self._page: asyncio.Future[bytes] | None = None

    def collect(self) -> Iterator[Metric]:
        """The counters, and the replicas as they are now."""
        yield from self._counters.collect()
        well = GaugeMetricFamily(
            "armllm:router_replica_up", "Whether a replica gets requests.", labels=["engine", "url"]
        )
        running = GaugeMetricFamily(
            "armllm:router_requests_running", "Requests at a replica.", labels=["engine"]
        )
        requests = CounterMetricFamily(
            "armllm:router_requests", "Requests that a replica was asked.", labels=["engine"]
        )
        for replica in self._replicas.all:
            well.add_metric([replica.name, replica.url], float(replica.well))
            running.add_metric([replica.name], replica.num_running)
            requests.add_metric([replica.name], replica.num_requests)
        yield from (well, running, requests)

    async def render(self) -> bytes:
        """The page. A replica that doesn't answer in time is missing from it.

        Whoever asks while it is made gets the same one: making it costs far more than asking.
        """
        if self._page is None or self._page.done():
            self._page = asyncio.ensure_future(self._render())
        return await asyncio.shield(self._page)

    async def _render(self) -> bytes:
        pages = await asyncio.gather(*(_page(replica) for replica in self._replicas.well))
        registry = CollectorRegistry()
        registry.register(self)
        registry.register(_Merged([page for page in pages if page is not None]))
        return await asyncio.to_thread(generate_latest, registry)


async def _page(replica: Replica) -> tuple[str, list[Metric]] | None:
    try:
        status, text = await replica.get("/metrics", SECONDS, METRICS_BYTES)
        if status != 200:
            raise ValueError(f"status {status}")  # noqa: TRY301
        return replica.name, await asyncio.to_thread(read_metrics, text)
    except (UpstreamError, ValueError, LookupError) as error:
        logger.warning("replica %s at %s has no metrics: %.200s", replica.name, replica.url, error)
        return None


class _Merged(Collector):
    """Families of the same name and type become one."""

    def __init__(self, pages: list[tuple[str, list[Metric]]]) -> None:
        self._families: dict[str, Metric] = {}
        for engine, families in pages:
            for family in families:
                self._add(engine, family)

    def _add(self, engine: str, family: Metric) -> None:
        merged = self._families.get(family.name)
        if merged is None:
            merged = Metric(family.name, family.documentation, family.type)
            self._families[family.name] = merged
        if merged.type != family.type:
            return
        for sample in family.samples:
            labels = dict(sample.labels)
            if "engine" in labels:  # as Prometheus renames a label that it sets itself
                labels["exported_engine"] = labels.pop("engine")
            # a time may be none that can be written, and Prometheus has its own
            labels = {"engine": engine, **labels}
            merged.samples.append(sample._replace(labels=labels, timestamp=None, exemplar=None))

    def collect(self) -> Iterator[Metric]:
        """All families."""
        return iter(self._families.values())

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead: names may repeat between replicas."""
        return iter(())
