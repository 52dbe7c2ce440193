"""The client of a request, so that the engine can give each client its share."""

from __future__ import annotations

import contextvars
import hashlib
from typing import TYPE_CHECKING

from armllm.server.refusals import network

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# Of the request that is being answered: a digest of its key where keys tell clients apart, else the address.
current_client: contextvars.ContextVar[str] = contextvars.ContextVar("current_client", default="")


class ClientMark:
    """Notes who asks. ``several_keys``: each client has its own."""

    def __init__(self, app: ASGIApp, *, several_keys: bool) -> None:
        self._app = app
        self._several_keys = several_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            key = dict(scope["headers"]).get(b"authorization") if self._several_keys else None
            address = scope["client"][0] if scope.get("client") else ""
            current_client.set(network(address) if key is None else hashlib.sha256(key).hexdigest())
        await self._app(scope, receive, send)
