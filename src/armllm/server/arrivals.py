"""Accept connections. New ones of an address that closes many wait: most have gone before they cost much.

To read the start of a request and forget it takes several times the CPU time that its sender needs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Callable

    from armllm.server.limits import Limits

BACKLOG = 2048  # connections that the system has accepted
ACCEPTED_AT_ONCE = 64  # connections for each turn of the event loop
# Until the next are accepted, where one was left or waits: an event loop that wakes up for each of thousands
# takes a core from the engine.
PAUSE_SECONDS = 0.005
RETRY_SECONDS = 1.0  # without memory or open files
LEFT = (7, 8)  # CLOSE, CLOSE_WAIT, the first byte of TCP_INFO: the other end has reset it, or closed it
HELD_SECONDS = 0.05  # at most, and half of it at least; it is little to those that stay

logger = logging.getLogger("uvicorn.error")


class Arrivals:
    """Accepts connections on a socket. ``serve`` gets those that stay.

    Nothing is made for one that waits, and nothing of it is read. It counts as one without a request.
    """

    def __init__(
        self, listening: socket.socket, limits: Limits, serve: Callable[[socket.socket], object]
    ) -> None:
        self._listening = listening
        self._is_local = listening.family == socket.AF_UNIX
        self._limits = limits
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._older: list[_Held] = []
        self._newer: list[_Held] = []

    def start(self) -> None:
        """Listen."""
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        self._resume()

    def stop(self) -> None:
        """Accept no more. Those that wait are still served."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(seconds, self._resume)

    def _accept(self) -> None:
        """Accept a few."""
        rests = False
        try:
            for _ in range(ACCEPTED_AT_ONCE):
                connection, address = self._listening.accept()
                # A Unix socket is a proxy's, for any of its clients.
                if not self._is_local and self._takes(connection, address[0]):
                    rests = True
                else:
                    self._serve(connection)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass
        except OSError as error:
            logger.warning("no connection is accepted for %g s: %s", RETRY_SECONDS, error.strerror)
            self._rest(RETRY_SECONDS)
            return
        if rests:
            self._rest(PAUSE_SECONDS)

    def _takes(self, connection: socket.socket, address: str) -> bool:
        """Whether it was left, or waits now."""
        if _is_left(connection):
            self._close(connection, address)
        elif self._limits.refusals.owed(address) > 0:
            held = _Held(self._limits, connection, address)
            if not self._older and not self._newer:
                self._loop.call_later(HELD_SECONDS / 2, self._release)
            self._newer.append(held)
            self._limits.admit(held, held)
        else:
            return False
        return True

    def _release(self) -> None:
        released, self._older, self._newer = self._older, self._newer, []
        if self._older:
            self._loop.call_later(HELD_SECONDS / 2, self._release)
        for held in released:
            if held.leave() is None:  # its place was needed
                continue
            if _is_left(held.connection):
                self._close(held.connection, held.address)
            else:
                self._serve(held.connection)

    def _close(self, connection: socket.socket, address: str) -> None:
        connection.close()
        self._limits.refusals.delay(address)


class _Held:
    """A connection that waits, among those that `Limits` counts."""

    __slots__ = ("_limits", "address", "connection")

    def __init__(self, limits: Limits, connection: socket.socket, address: str) -> None:
        self._limits = limits
        self.connection = connection
        self.address = address

    def leave(self) -> Any:
        """Give the place of a connection to others; return what ends it, or None if it has left."""
        self._limits.idle.pop(self, None)
        return self._limits.open.pop(self, None)

    def abort(self) -> None:
        """End the connection."""
        self.connection.close()


class ArrivalsServer(uvicorn.Server):
    """uvicorn's server on sockets whose connections come as `Arrivals`."""

    def __init__(self, config: uvicorn.Config, limits: Limits) -> None:
        super().__init__(config)
        self._limits = limits
        self._arrivals: list[Arrivals] = []
        self._begun: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup([])
        for one in sockets or []:
            self._arrivals.append(Arrivals(one, self._limits, self._serve_connection))
            self._arrivals[-1].start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and end."""
        for one in self._arrivals:
            one.stop()
        await super().shutdown(sockets)

    def _serve_connection(self, connection: socket.socket) -> None:
        begun = asyncio.ensure_future(self._begin(connection))
        self._begun.add(begun)  # the event loop does not keep it
        begun.add_done_callback(self._begun.discard)

    async def _begin(self, connection: socket.socket) -> None:
        def make() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg] # as uvicorn does
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        try:
            await asyncio.get_running_loop().connect_accepted_socket(make, connection)
        except OSError:  # it was lost meanwhile
            connection.close()


def _is_left(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in LEFT
