"""`armllm route`: one address for several servers of a model."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from armllm.server.app import KeyGuard, Prefix
from armllm.server.draining import DrainingServer, audience, configured, say
from armllm.server.errors import ApiError, error_handlers
from armllm.server.limits import Limits
from armllm.server.origins import OriginGuard, check_root_path
from armllm.server.router.forward import Forwarder
from armllm.server.router.metrics import RouterMetrics
from armllm.server.run import SIGNALS, address_of, allow_many_connections, bound, stop_now

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterator

    from starlette.requests import Request

    from armllm.server.router.replica import Replicas

# The replicas know their models' limits; here a body may be as large as any of them lets it be.
MAX_MODEL_LEN = 1 << 20
FILES_EACH = 2  # of a client: its connection, and that to a replica
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterOptions:
    """Where the router listens, and to whom; as `armllm serve` has them."""

    host: str | None = None
    port: int = 8000
    uds: str | None = None
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None
    root_path: str = ""
    log_level: str = "info"
    access_log: bool = True

    def __post_init__(self) -> None:
        check_root_path(self.root_path)


class Router:
    """The application: a few answers of its own, everything else from a replica."""

    def __init__(self, replicas: Replicas, options: RouterOptions) -> None:
        self.replicas = replicas
        self.limits = Limits(MAX_MODEL_LEN, files_each=FILES_EACH)
        self.metrics = RouterMetrics(replicas)
        self.forwarder = Forwarder(replicas, self.limits, self.metrics)
        middleware = []
        if options.allowed_origins:
            allowed = list(options.allowed_origins)
            middleware.append(
                Middleware(CORSMiddleware, allow_origins=allowed, allow_methods=["*"], allow_headers=["*"])
            )
        if options.api_keys:
            middleware.append(Middleware(KeyGuard, keys=options.api_keys))
        else:
            hosts, origins = options.allowed_hosts, options.allowed_origins
            middleware.insert(0, Middleware(OriginGuard, allowed_hosts=hosts, allowed_origins=origins))
        if options.root_path:
            middleware.insert(0, Middleware(Prefix, root_path=options.root_path))
        self.app = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/ping", self.health, methods=["GET", "POST"]),
                Route("/load", self.load),
                Route("/metrics", self.show_metrics),
                Route("/{path:path}", self.forwarder.forward, methods=METHODS),
            ],
            middleware=middleware,
            exception_handlers=error_handlers(),
        )
        self.app.router.redirect_slashes = False

    async def health(self, _request: Request) -> Response:
        """Status 200 while a replica is well, else 503."""
        if not self.replicas.well:
            raise ApiError("no replica is well", status=503, code="no_replica")
        return Response()

    async def load(self, _request: Request) -> Response:
        """How many requests are at replicas."""
        return JSONResponse({"server_load": sum(replica.num_running for replica in self.replicas.all)})

    async def show_metrics(self, _request: Request) -> Response:
        """The replicas' metrics and the router's, in Prometheus's text format."""
        text = await self.metrics.render()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


class RouterServer(DrainingServer):
    """Serves a router, and watches its replicas meanwhile."""

    def __init__(self, router: Router, options: RouterOptions, address: str) -> None:
        config = configured(
            router.app,
            router.limits,
            options.tls,
            log_level=options.log_level,
            access_log=options.access_log,
        )
        super().__init__(config, router.limits, signals=SIGNALS, stop_now=stop_now)
        self.router = router
        self.address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Look for the replicas, then listen."""
        await self.router.replicas.start()
        await super().startup(sockets)
        replicas = self.router.replicas
        found = f"{len(replicas.all)} replicas, {len(replicas.well)} of them well"
        say(f"  routing to {found}; serving{audience(self.address)}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then leave the replicas alone."""
        try:
            await super().shutdown(sockets)
        finally:
            await self.router.replicas.stop()

    def failed(self) -> bool:
        """A router waits for its replicas to come back."""
        return False

    def computes(self) -> bool:
        """Whether a replica has something to do."""
        return self.router.forwarder.num_waiting > 0


def host_of(options: RouterOptions) -> str:
    """Where to listen: without a key for this machine only, as `armllm serve` does."""
    if options.host is not None:
        return options.host
    return "0.0.0.0" if options.api_keys else "127.0.0.1"  # noqa: S104


@contextlib.contextmanager
def listening(options: RouterOptions) -> Iterator[tuple[socket.socket, str]]:
    """The router's socket, and its address for people."""
    with bound(host_of(options), options.port, options.uds) as sock:
        address = address_of(sock, options.uds)
        if options.tls is not None:
            address = address.replace("http://", "https://", 1)
        yield sock, address


def route(replicas: Replicas, options: RouterOptions) -> int:
    """Route until a signal comes; return the exit status."""
    for number in SIGNALS:
        signal.signal(number, stop_now)
    allow_many_connections()
    router = Router(replicas, options)
    with listening(options) as (sock, address):
        RouterServer(router, options, address).run(sockets=[sock])
    return 0
