"""New connections of an address that closes many wait a moment: most have gone before they cost much.

To read the start of a request and forget it takes several times the CPU time that its sender needs.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from armllm.server.limits import Limits

ACCEPTED_AT_ONCE = 64  # connections for each turn of the event loop; the event loop itself knows no limit
LEFT = (7, 8)  # CLOSE, CLOSE_WAIT, the first byte of TCP_INFO: the other end has reset it, or closed it
HELD_SECONDS = 0.05  # at most; it is little to those that stay


class ListeningSocket(socket.socket):
    """Accepts a few connections for each turn of the event loop, and none that was left meanwhile.

    Before anything is made for one, it costs a tenth of what it costs after. ``on_left`` hears of addresses.
    """

    on_left: Callable[[str], object] = staticmethod(len)
    _left_of_turn = ACCEPTED_AT_ONCE

    def accept(self) -> tuple[socket.socket, Any]:
        """As `socket.accept`; BlockingIOError if there is none, or if it is the turn of others."""
        while self._left_of_turn:
            self._left_of_turn -= 1
            try:
                connection, address = super().accept()
            except OSError:
                self._left_of_turn = ACCEPTED_AT_ONCE
                raise
            if self.family == socket.AF_UNIX or not _is_left(connection):
                return connection, address
            connection.close()
            self.on_left(address[0])
        self._left_of_turn = ACCEPTED_AT_ONCE
        raise BlockingIOError


class Arrival(asyncio.Protocol):
    """A connection until ``make()`` returns its protocol: at once, or after a moment.

    A held one counts as one that waits for a request. Nothing of it is read, so it costs no more than its
    place, whatever it sends.
    """

    def __init__(self, limits: Limits, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._limits = limits
        self._make = make
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it through, or hold it; on a Unix socket it is a proxy's, for any of its clients."""
        self._transport = cast("asyncio.Transport", transport)
        self._address = _address(transport)
        seconds = min(self._limits.refusals.owed(self._address), HELD_SECONDS) if self._address else 0.0
        if seconds <= 0:
            self._let_through()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._release)
        loop.call_soon(self._transport.pause_reading)  # it begins to read after this call
        self._limits.admit(self, self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it: it has cost little, and left before it was heard."""
        del exc
        if self._timer is not None:
            self._timer.cancel()
            self._limits.refusals.delay(self._address)
        self.leave()

    def leave(self) -> Any:
        """Give the place of a connection to others; return what it was made of."""
        self._limits.idle.pop(self, None)
        return self._limits.open.pop(self, None)

    def _release(self) -> None:
        if self._transport.is_closing() or _is_left(self._transport.get_extra_info("socket")):
            self._transport.abort()
            return
        self.leave()
        self._let_through()
        self._transport.resume_reading()

    def _let_through(self) -> None:
        protocol = self._make()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)


def _is_left(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in LEFT


def _address(transport: asyncio.BaseTransport) -> str:
    """Of the other end; empty on a Unix socket."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""
