"""uvicorn's server, with signals as a container wants them."""

from __future__ import annotations

import abc
import asyncio
import collections
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import uvicorn

from armllm.server.arrivals import ArrivalsServer
from armllm.server.connection import protocol
from armllm.server.logs import log_config
from armllm.server.refusals import RefusalGuard
from armllm.server.throughput import log_throughput

if TYPE_CHECKING:
    import signal
    import socket
    import ssl
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

    from armllm.server.engine_process import EngineProcess
    from armllm.server.limits import Limits
    from armllm.server.service import Service

LOOPBACK = ("http://127.", "http://[::1]", "https://127.", "https://[::1]")
PATIENCE = 10.0  # seconds, at the end, for clients that keep a request open with nothing to compute
LOOK_EVERY = 0.1  # seconds
FAILED_SECONDS = 1.0  # in which /health says that the engine has failed


def configured(
    app: ASGIApp,
    limits: Limits,
    tls: ssl.SSLContext | None,
    *,
    log_level: str,
    access_log: bool,
) -> uvicorn.Config:
    """How an application is served: what is refused waits, and connections have limits."""
    return uvicorn.Config(
        RefusalGuard(app, limits.refusals),
        log_level=log_level,
        log_config=log_config(log_level),
        access_log=access_log,
        lifespan="off",
        server_header=False,
        ws="none",
        loop="asyncio",
        http=protocol(limits, tls),  # type: ignore[arg-type]
    )


class DrainingServer(ArrivalsServer, abc.ABC):
    """Drains at the first of ``signals``, calls ``stop_now`` at the second, ends when it has `failed`."""

    def __init__(
        self,
        config: uvicorn.Config,
        limits: Limits,
        *,
        signals: tuple[signal.Signals, ...],
        stop_now: Callable[[], Any],
    ) -> None:
        super().__init__(config, limits)
        self.signals = signals
        self.stop_now = stop_now

    @abc.abstractmethod
    def failed(self) -> bool:
        """Whether there is nothing left to answer requests with."""

    @abc.abstractmethod
    def computes(self) -> bool:
        """Whether there is work for a client: while there is none, what is open waits for clients."""

    async def on_tick(self, counter: int) -> bool:
        """Whether to end."""
        return self.failed() or await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for requests that run, and a while for clients that keep theirs open."""
        watcher = asyncio.ensure_future(self._leave_silent_clients())
        try:
            await super().shutdown(sockets)
        finally:
            watcher.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Within the event loop, until the process ends."""
        loop = asyncio.get_running_loop()
        for number in self.signals:
            loop.add_signal_handler(number, self._drain)
        yield

    def _drain(self) -> None:
        if self.should_exit:
            self.stop_now()
        self.should_exit = True
        running = len(self.server_state.tasks)
        say(f"armllm: stopping after the {running} requests that are running; a second signal stops now")

    async def _leave_silent_clients(self) -> None:
        """Who sends half a body, or doesn't read the answer, would else keep the process for ever."""
        idle = 0.0
        behind: collections.defaultdict[Any, float] = collections.defaultdict(float)  # seconds in sum
        while idle < PATIENCE:
            await asyncio.sleep(LOOK_EVERY)
            idle = 0.0 if self.computes() else idle + LOOK_EVERY
            unread = [one for one in self._connections() if one.flow.write_paused]
            for one in unread:
                behind[one] += LOOK_EVERY
            self._close([one for one in unread if behind[one] >= PATIENCE])
        self._close(self._connections())

    def _connections(self) -> list[Any]:
        return list(self.server_state.connections)

    @staticmethod
    def _close(connections: list[Any]) -> None:
        if connections:
            say(f"armllm: closing {len(connections)} connections whose clients neither send nor read")
        for connection in connections:
            connection.transport.abort()


class EngineServer(DrainingServer):
    """Serves one engine."""

    def __init__(
        self, config: uvicorn.Config, service: Service, engine: EngineProcess, address: str, **options: Any
    ) -> None:
        super().__init__(config, service.limits, **options)
        self.service = service
        self.engine = engine
        self.address = address
        self._log: asyncio.Task[None] | None = None
        self._failed_at: float | None = None

    async def on_tick(self, counter: int) -> bool:
        """Whether to end: a second after the engine has failed, so that who asks for its health is told."""
        if not self.failed():
            return await super().on_tick(counter)
        self._failed_at = self._failed_at or time.monotonic()
        return self.should_exit or time.monotonic() - self._failed_at >= FAILED_SECONDS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say what was found."""
        await self.engine.connect()
        await super().startup(sockets)
        for line in self.engine.lines:
            say(line)
        say(f"  serving {', '.join(self.service.options.served_model_names)}{audience(self.address)}")
        if self.service.options.log_stats:
            self._log = asyncio.ensure_future(log_throughput(self.service.engine.stats))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, and log no more."""
        try:
            await super().shutdown(sockets)
        finally:
            if self._log is not None:
                self._log.cancel()

    def failed(self) -> bool:
        """Whether the engine has failed."""
        return self.service.engine.errored

    def computes(self) -> bool:
        """Whether the engine has something to do."""
        if self.failed():
            return False
        stats = self.service.engine.stats()
        return stats.num_running + stats.num_waiting > 0


def audience(address: str) -> str:
    """Where a server can be reached, and by whom if that is not everybody."""
    local = " to this machine only (--host opens it)" if address.startswith(LOOPBACK) else ""
    return f"{local} on {address}"


def say(line: str) -> None:
    """Write a line to stderr."""
    print(line, file=sys.stderr, flush=True)
