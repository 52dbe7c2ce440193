"""Refused requests wait, so that many of them take little time from other clients.

Each peer address has a leaky bucket of refusals, as `limit_req` of nginx has one of requests. What overflows
is answered late. Requests that are answered well never wait.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

AT_ONCE = 40
BYTES = 256 << 10  # of a body that count as one more refusal
PER_SECOND = 20.0
MOST_SECONDS = 5.0
MOST_WAITING = 256  # answers; more are sent at once
MOST_ADDRESSES = 4096
CLIENT_WENT_AWAY = 499
IPV6_NETWORK_BITS = 64  # what one subscriber has


class Refusals:
    """How long refusals wait, by the address that asked."""

    def __init__(self) -> None:
        self.waiting = 0
        self._paid_until: dict[str, float] = {}  # in the order of the latest refusals

    def delay(self, address: str, size: int = 0) -> float:
        """Seconds that one more refusal of this address waits, after ``size`` bytes were read for it."""
        now = time.monotonic()
        key = network(address)
        paid = max(self._paid_until.pop(key, 0.0), now - AT_ONCE / PER_SECOND)
        paid += (1 + size / BYTES) / PER_SECOND
        self._paid_until[key] = min(paid, now + MOST_SECONDS)
        if len(self._paid_until) > MOST_ADDRESSES:
            del self._paid_until[next(iter(self._paid_until))]
        if self.waiting >= MOST_WAITING:
            return 0.0
        return max(0.0, self._paid_until[key] - now)

    def owed(self, address: str) -> float:
        """Seconds that the refusals of this address would take at the rate that it has."""
        paid = self._paid_until.get(network(address)) if self._paid_until else None
        return 0.0 if paid is None else max(0.0, paid - time.monotonic())

    async def wait(self, address: str, size: int = 0) -> None:
        """Wait that long."""
        seconds = self.delay(address, size)
        self.waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.waiting -= 1


class RefusalGuard:
    """Holds back whole answers of status 4xx, so that nothing of their requests stays in memory."""

    def __init__(self, app: ASGIApp, refusals: Refusals) -> None:
        self._app = app
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        held: list[Message] = []
        size = 0

        async def count() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            return message

        async def hold(message: Message) -> None:
            refused = message["type"] == "http.response.start" and (
                HTTPStatus.BAD_REQUEST <= message["status"] < CLIENT_WENT_AWAY
            )
            if held or refused:
                held.append(message)
            else:
                await send(message)

        await self._app(scope, count, hold)
        if held:
            client = scope.get("client")
            await self._refusals.wait(client[0] if client else "", size)
        for message in held:
            await send(message)


@functools.lru_cache(MOST_ADDRESSES)
def network(address: str) -> str:
    """An IPv4 address, or the network of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a Unix socket, or what a proxy says
        return address[:64]
    if found.version == 4 or found.ipv4_mapped:
        return address
    return str(ipaddress.IPv6Network((int(found), IPV6_NETWORK_BITS), strict=False))
