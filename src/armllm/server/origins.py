"""Which web pages and host names may use a server that asks for no key.

A page of any site can send requests to a server that its reader's browser reaches. Same-origin rules do not
help where the site's own name is made to point at the server (DNS rebinding): then its name is in the Host
header. Names that nobody else can register are safe, and so are addresses.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.requests import Request

from armllm.errors import RequestError
from armllm.server.errors import ApiError, answer_error

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

# RFC 6761, RFC 6762, RFC 8375, ICANN's .internal, and Kubernetes' services
PRIVATE_SUFFIXES = (".localhost", ".local", ".home.arpa", ".internal", ".svc", ".test")


def check_root_path(root_path: str) -> None:
    """Refuse what is no prefix of paths; empty is none."""
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise RequestError(f"--root-path must be like /prefix, not {root_path!r}")


class OriginGuard:
    """Answers 403 where the Host is a public name, or the Origin another site, that was not allowed."""

    def __init__(
        self, app: ASGIApp, allowed_hosts: Collection[str], allowed_origins: Collection[str]
    ) -> None:
        self._app = app
        self._hosts = {host.lower() for host in allowed_hosts}
        self._origins = set(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request or pass it on."""
        if scope["type"] == "http" and (reason := self._refusal(scope["headers"], scope["method"])):
            error = ApiError(reason, status=403, code="origin_not_allowed")
            response = await answer_error(Request(scope), error)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, fields: list[tuple[bytes, bytes]], method: str) -> str:
        """Why not, empty if nothing is wrong."""
        headers = dict(fields)
        if sum(name in (b"host", b"origin") for name, _ in fields) > len({b"host", b"origin"} & {*headers}):
            return "the Host and the Origin may stand in one header each"
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = _name(host)
        if host and "*" not in self._hosts and name not in self._hosts and not is_private(name):
            return f"the host name {name!r:.80} is not allowed: see --allowed-hosts and --api-key"
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin or method == "OPTIONS" or not self._origins.isdisjoint({"*", origin}):
            return ""
        if host and origin.lower().partition("://")[2] == host:
            return ""
        return f"pages of {origin!r:.80} may not use this server: see --allowed-origins and --api-key"


def is_private(name: str) -> bool:
    """Whether a host is an address or a name that public DNS never resolves."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(PRIVATE_SUFFIXES)
    return True


def _name(host: str) -> str:
    """A Host header without its port; what can't be read stays as it is."""
    try:
        return (urlsplit(f"//{host}").hostname or host).rstrip(".")
    except ValueError:
        return host
