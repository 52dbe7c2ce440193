"""uvicorn's server, with signals as a container wants them, ending when the engine has failed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

import uvicorn

from armllm.server.greeting import greeting_lines

if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable, Iterator

    from armllm.server.service import Service

PATIENCE = 10.0  # seconds, at the end, for clients that keep a request open with nothing to compute
LOOK_EVERY = 0.1  # seconds


class DrainingServer(uvicorn.Server):
    """Drains at the first of ``signals``, calls ``stop_now`` at the second."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        address: str,
        *,
        signals: tuple[signal.Signals, ...],
        stop_now: Callable[[], Any],
    ) -> None:
        super().__init__(config)
        self.service = service
        self.address = address
        self.signals = signals
        self.stop_now = stop_now

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say what was found."""
        await super().startup(sockets)
        for line in greeting_lines(self.service, self.address):
            _say(line)

    async def on_tick(self, counter: int) -> bool:
        """Whether to end."""
        return self.service.engine.errored or await super().on_tick(counter)

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
        _say(f"armllm: stopping after the {running} requests that are running; a second signal stops now")

    async def _leave_silent_clients(self) -> None:
        """Who sends half a body, or doesn't read the answer, would else keep the process for ever."""
        idle = 0.0
        while idle < PATIENCE:
            await asyncio.sleep(LOOK_EVERY)
            idle = 0.0 if self._computes() else idle + LOOK_EVERY
        left: list[Any] = list(self.server_state.connections)
        _say(f"armllm: closing {len(left)} connections whose clients neither send nor read")
        for connection in left:
            connection.transport.abort()

    def _computes(self) -> bool:
        if self.service.engine.errored:
            return False
        stats = self.service.engine.stats()
        return stats.num_running + stats.num_waiting > 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
