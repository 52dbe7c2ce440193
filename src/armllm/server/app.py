"""The ASGI application: which path is answered by what."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import TYPE_CHECKING

from starlette._utils import get_route_path
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from armllm.server import openapi
from armllm.server.clients import ClientMark
from armllm.server.docs import show_docs
from armllm.server.errors import ApiError, answer_error, error_handlers
from armllm.server.lora import load_adapter, unload_adapter
from armllm.server.origins import OriginGuard

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from armllm.server.service import Service

PAGE = Path(__file__).parent / "page"
PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    # Answers of a model are shown as Markdown. Should a sanitizer fail, nothing may run, load or send.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types dompurify"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
GUARDED = (
    "/v1/",
    "/v2/",
    "/classify",
    "/detokenize",
    "/pooling",
    "/rerank",
    "/score",
    "/tokenize",
)


def create_app(service: Service) -> Starlette:
    """The application around a loaded model."""
    middleware = [Middleware(LoadCounter, service=service)]
    if service.options.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(service.options.allowed_origins),
                allow_methods=["*"],
                allow_headers=["*"],
            )
        )
    if service.options.api_keys:
        keys = service.options.api_keys
        middleware += [Middleware(KeyGuard, keys=keys), Middleware(ClientMark, several_keys=len(keys) > 1)]
    else:
        hosts, origins = service.options.allowed_hosts, service.options.allowed_origins
        middleware.insert(0, Middleware(OriginGuard, allowed_hosts=hosts, allowed_origins=origins))
        middleware.append(Middleware(ClientMark, several_keys=False))
    if service.options.root_path:
        middleware.insert(0, Middleware(Prefix, root_path=service.options.root_path))
    changes = (
        Route("/v1/load_lora_adapter", load_adapter, methods=["POST"]),
        Route("/v1/unload_lora_adapter", unload_adapter, methods=["POST"]),
    )
    app = Starlette(
        routes=[
            *openapi.routes(),
            *(changes if service.options.may_change_adapters else ()),
            Route("/health", health),
            Route("/ping", health, methods=["GET", "POST"]),
            Route("/load", load),
            Route("/docs", show_docs),
            Route("/metrics", metrics),
            Route("/", page),
            Mount("/page", StaticFiles(directory=PAGE)),
        ],
        middleware=middleware,
        exception_handlers=error_handlers(),
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


async def health(request: Request) -> Response:
    """Status 200 while requests are served, 503 once the engine has failed."""
    service: Service = request.app.state.service
    if service.engine.errored:
        raise ApiError(str(service.engine.dead_error), status=503, code="engine_error")
    return Response()


async def load(request: Request) -> Response:
    """How many requests are being answered, those that wait included."""
    service: Service = request.app.state.service
    return JSONResponse({"server_load": service.num_requests})


async def metrics(request: Request) -> Response:
    """Prometheus's text format."""
    service: Service = request.app.state.service
    return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def page(_request: Request) -> Response:
    """The page to chat with the model."""
    return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)


class Prefix:
    """Takes paths with the prefix of a proxy and without it: some proxies remove it, some do not.

    ASGI wants it in the path and in ``root_path``. Routes and guards look at what is behind it.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; the links of the page need the slash after the prefix."""
        path = scope["path"]
        if path == self._root_path:
            await RedirectResponse(f"{path}/")(scope, receive, send)
            return
        if not path.startswith(f"{self._root_path}/"):
            path = self._root_path + path
        await self._app({**scope, "root_path": self._root_path, "path": path}, receive, send)


class LoadCounter:
    """Counts the requests for the API that are being answered, streams until their end."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it until it is done."""
        counted = scope["type"] == "http" and scope["method"] == "POST"
        self._service.num_requests += counted
        try:
            await self._app(scope, receive, send)
        finally:
            self._service.num_requests -= counted


class KeyGuard:
    """Lets requests for the API through only with one of the keys, compared in constant time."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        # digests have one length, so that the comparison's time tells nothing about a key's
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or pass the request on."""
        if (
            scope["type"] == "http"
            and get_route_path(scope).startswith(GUARDED)
            and scope["method"] != "OPTIONS"
            and not self._admits(dict(scope["headers"]).get(b"authorization", b""))
        ):
            error = ApiError(
                "an API key is needed: send it as 'Authorization: Bearer KEY'",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            response = await answer_error(Request(scope), error)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admits(self, header: bytes) -> bool:
        scheme, _, key = header.partition(b" ")
        key_digest = _digest(key.strip())
        matches = [hmac.compare_digest(key_digest, digest) for digest in self._digests]
        return scheme.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
