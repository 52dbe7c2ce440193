"""The replicas: their health, their load, and the choice of one for a prompt."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from typing import TYPE_CHECKING, Literal

from prometheus_client.parser import text_string_to_metric_families

from armllm.server.router.prefixes import PrefixTable, Prompt
from armllm.server.router.upstream import (
    Address,
    ExhaustedError,
    MalformedError,
    Pool,
    UnreachableError,
    UpstreamError,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from prometheus_client.core import Metric

logger = logging.getLogger("armllm.server.router")

Policy = Literal["cache_aware", "round_robin"]
METRICS_BYTES = 2 << 20  # a second to read; a server's page has some 50 kB
METRICS_LINES = 1 << 14  # each becomes several objects
METRICS_LINE_BYTES = 8 << 10  # the time to read a line grows with the square of its length


@dataclasses.dataclass(frozen=True)
class HealthChecks:
    """How replicas are asked for their health. After ``failures`` without an answer one is out.

    A refused connection or an error status puts it out at once. Nobody waits for one that does not answer:
    answers that have not begun are asked of others, and the rest are cut after ``stalled`` silent seconds.
    However well it is: an answer that began and is ``silent`` for so long is cut, and after ``malformed``
    answers in a row that were no answers it is out for the ``pause``.
    """

    interval: float = 1.0
    timeout: float = 5.0
    failures: int = 2
    stalled: float = 10.0
    silent: float = 60.0
    malformed: int = 3
    pause: float = 10.0


class Replica:
    """One server. name: the value of the label ``engine`` in metrics."""

    def __init__(self, name: str, address: Address, checks: HealthChecks) -> None:
        self.name = name
        self.pool = Pool(address)
        self.prefixes = PrefixTable()
        self.well = False
        self.outstanding = 0.0  # tokens to compute
        self.num_running = 0
        self.num_requests = 0
        self.last_used = 0
        self.probed = asyncio.Event()
        self._checks = checks
        self._unanswered = 0
        self._malformed = 0  # answers in a row
        self._out_until = 0.0
        self._doubted = asyncio.Event()
        self._reason = ""

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.pool.address.url

    def head(self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], size: int) -> bytes:
        """The head of a request with a body of so many bytes."""
        address = self.pool.address
        lines = [
            method.encode() + b" " + address.prefix + target + b" HTTP/1.1",
            b"host: " + address.host_header,
            *(name + b": " + value for name, value in headers),
        ]
        if size or method in ("POST", "PUT", "PATCH"):
            lines.append(b"content-length: %d" % size)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    async def get(self, path: str, seconds: float, most_bytes: int = 0) -> tuple[int, bytes]:
        """Status and body of a GET; UpstreamError if there is no whole answer in time."""
        target = path.encode()

        async def fetch() -> tuple[int, bytes]:
            answer = await self.pool.ask("GET", self.head("GET", target, [], 0), b"")
            body = bytearray()  # which grows by a small piece without a copy of the whole
            try:
                async with contextlib.aclosing(answer.pieces()) as pieces:
                    async for piece in pieces:
                        body += piece
                        if len(body) > most_bytes:
                            break
                return answer.status, bytes(body)
            finally:
                answer.close()

        try:
            return await within(seconds, fetch())
        except asyncio.TimeoutError:
            raise UpstreamError(f"no answer to {path} within {seconds:g} s") from None

    def doubt(self, error: UpstreamError) -> None:
        """Something went wrong with it: look now. Who can't be connected to is out."""
        if isinstance(error, UnreachableError):
            self._eject(str(error))
        elif isinstance(error, MalformedError):
            self._malformed += 1
            if self._malformed >= self._checks.malformed:
                self._out_until = time.monotonic() + self._checks.pause
                self._eject(f"{self._malformed} answers in a row were none; the last: {error}")
        self._doubted.set()

    def trust(self) -> None:
        """An answer is whole."""
        self._malformed = 0

    def move(self, address: Address) -> None:
        """It listens there now."""
        self.pool.close()
        self.pool = Pool(address)

    def leave(self, reason: str) -> None:
        """It is gone for good, with its answers."""
        self._eject(reason)
        for answer in list(self.pool.answers):
            answer.abort()
        self.pool.close()

    async def watch(self) -> None:
        """Ask for its health again and again."""
        while True:
            await self.check()
            self.probed.set()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._doubted.wait(), self._checks.interval)
                await asyncio.sleep(self._checks.interval / 10)  # many doubts at once are one
            self._doubted.clear()

    async def check(self) -> bool:
        """Ask for its health once; whether it is well."""
        self.pool.prune()
        for answer in list(self.pool.answers):
            if answer.stuck(self._checks.silent):
                answer.late = True
                answer.abort()
        try:
            status, _ = await self.get("/health", self._checks.timeout)
        except ExhaustedError as error:
            logger.warning("replica %s was not asked for its health: %s", self.name, error)
        except UnreachableError as error:
            self._eject(str(error))
        except UpstreamError as error:
            self._unanswered += 1
            if self._unanswered >= self._checks.failures or not self.well:
                self._eject(str(error))
                self._leave_behind()
        else:
            self._unanswered = 0
            if status != 200:
                self._eject(f"/health has status {status}")
            elif not self.well and time.monotonic() >= self._out_until:
                await self._take_back()
        return self.well and self._unanswered == 0

    def _eject(self, reason: str) -> None:
        if self.well or reason != self._reason:
            logger.warning("replica %s at %s is out: %s", self.name, self.url, reason)
        self.well, self._reason = False, reason
        self.prefixes.clear()

    def _leave_behind(self) -> None:
        """Nobody waits for a replica that does not answer."""
        now = time.monotonic()
        for answer in list(self.pool.answers):
            if not answer.begun or now - answer.heard_at > self._checks.stalled:
                answer.abort()

    async def _take_back(self) -> None:
        with contextlib.suppress(UpstreamError):
            _, text = await self.get("/metrics", self._checks.timeout, METRICS_BYTES)
            if (found := await asyncio.to_thread(cache_blocks, text)) is not None:
                self.prefixes.set_capacity(found[0] * found[1])
        self.well = True
        logger.info("replica %s at %s is well", self.name, self.url)


def read_metrics(text: bytes) -> list[Metric]:
    """What a page of metrics has; ValueError if it is none, or would take long to read."""
    lines = text.splitlines()
    longest = max(map(len, lines), default=0)
    if len(text) > METRICS_BYTES or len(lines) > METRICS_LINES or longest > METRICS_LINE_BYTES:
        raise ValueError(f"{len(text)} bytes in {len(lines)} lines of up to {longest} bytes are too many")
    try:
        return list(text_string_to_metric_families(text.decode()))
    except Exception as error:  # noqa: BLE001 - the parser is made for pages that are well-formed
        raise ValueError(f"not Prometheus's format: {type(error).__name__}: {error}") from None


def cache_blocks(text: bytes) -> tuple[int, int] | None:
    """Blocks of a replica's KV cache and tokens per block, by its metrics; None if they don't say."""
    with contextlib.suppress(ValueError, LookupError):  # a replica may say anything
        for family in read_metrics(text):
            for sample in family.samples:
                if sample.name == "vllm:cache_config_info":
                    return int(sample.labels["num_gpu_blocks"]), int(sample.labels["block_size"])
    return None


class Load:
    """The work that one request is to a replica, until `end`."""

    def __init__(self, replica: Replica, prompt: Prompt) -> None:
        self.replica = replica
        self._prefill = replica.prefixes.uncached(prompt)
        self._rest = self._prefill + prompt.output
        replica.prefixes.add(prompt)
        replica.outstanding += self._rest
        replica.num_running += 1
        replica.num_requests += 1

    def begun(self) -> None:
        """The prompt is computed."""
        self.replica.outstanding -= self._prefill
        self._rest -= self._prefill

    def end(self) -> None:
        """Nothing is left to do."""
        self.replica.outstanding -= self._rest
        self.replica.num_running -= 1
        if self.replica.num_running == 0:
            self.replica.outstanding = 0.0  # what rounding left


class Replicas:
    """All of them. ``cache_aware`` takes who has the fewest tokens to compute, ``round_robin`` the next."""

    def __init__(
        self, addresses: Sequence[Address], policy: Policy = "cache_aware", checks: HealthChecks | None = None
    ) -> None:
        self._checks = checks or HealthChecks()
        self._names = itertools.count()
        self.all = [self.create(address) for address in addresses]
        self._policy = policy
        self._turn = itertools.count(1)
        self._watchers: dict[Replica, asyncio.Task[None]] = {}

    def create(self, address: Address) -> Replica:
        """A replica that gets requests once it was added."""
        return Replica(str(next(self._names)), address, self._checks)

    def add(self, replica: Replica) -> None:
        """Ask for its health, and let it answer requests."""
        self.all.append(replica)
        self._watchers[replica] = asyncio.ensure_future(replica.watch())

    def remove(self, replica: Replica, reason: str) -> None:
        """Forget it. What it did not begin to answer is asked of others."""
        if replica in self.all:
            self.all.remove(replica)
            self._watchers.pop(replica).cancel()
            replica.leave(reason)

    @property
    def well(self) -> list[Replica]:
        """Those that answer requests."""
        return [replica for replica in self.all if replica.well]

    def choose(self, prompt: Prompt, tried: Collection[Replica] = ()) -> Replica | None:
        """Who is to answer, of those that were not tried; None if nobody is left."""
        candidates = [replica for replica in self.well if replica not in tried]
        if not candidates:
            return None
        if self._policy == "round_robin":
            best = min(candidates, key=lambda replica: replica.last_used)
        else:
            best = min(
                candidates,
                key=lambda replica: (
                    replica.prefixes.uncached(prompt) + replica.outstanding,
                    replica.num_running,
                    replica.last_used,
                ),
            )
        best.last_used = next(self._turn)
        return best

    def others(self, tried: Collection[Replica]) -> bool:
        """Whether anybody is left to be asked."""
        return any(replica not in tried for replica in self.well)

    async def start(self) -> None:
        """Ask for everybody's health once, and from then on again and again."""
        for replica in self.all:
            if replica not in self._watchers:
                self._watchers[replica] = asyncio.ensure_future(replica.watch())
        await asyncio.gather(*(replica.probed.wait() for replica in self.all))

    async def stop(self) -> None:
        """Ask no more."""
        watchers = self._watchers.values()
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        for replica in self.all:
            replica.pool.close()
