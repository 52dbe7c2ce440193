"""Who asks, so that the engine can give each client, and each request, its share."""

from __future__ import annotations

import contextvars
import hashlib
import itertools
from typing import TYPE_CHECKING

from armllm.engine.caller import Caller
from armllm.server.refusals import network

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# Of the request that is being answered. The client is a digest of its key where keys tell clients apart, else
# the address.
current_caller: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("current_caller", default=None)


class ClientMark:
    """Notes who asks. ``several_keys``: each client has its own."""

    def __init__(self, app: ASGIApp, *, several_keys: bool) -> None:
        self._app = app
        self._several_keys = several_keys
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            key = dict(scope["headers"]).get(b"authorization") if self._several_keys else None
            address = scope["client"][0] if scope.get("client") else ""
            client = network(address) if key is None else hashlib.sha256(key).hexdigest()
            current_caller.set(Caller(client, next(self._numbers)))
        await self._app(scope, receive, send)
