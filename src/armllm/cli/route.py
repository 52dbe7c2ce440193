"""`armllm route`: one address for several servers."""

from __future__ import annotations

from typing import Annotated

import typer

from armllm.cli.options import Verbose, only
from armllm.cli.serve import LOG_LEVELS, keys_of, texts_of
from armllm.errors import RequestError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="route")(route_command)


def route_command(  # noqa: PLR0917 - typer reads options from parameters
    urls: Annotated[
        list[str], typer.Argument(metavar="URL...", help="Servers of one model: http://HOST:PORT.")
    ],
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on. Default: 0.0.0.0 with --api-key, else 127.0.0.1."),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8000,
    uds: Annotated[str | None, typer.Option(help="Listen on this Unix socket instead.")] = None,
    policy: Annotated[
        str,
        typer.Option(help="cache_aware: who has the fewest tokens to compute; round_robin: the next one."),
    ] = "cache_aware",
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Ask clients for this key; may be repeated. The servers see the same header."),
    ] = None,
    allowed_origins: Annotated[
        str, typer.Option(help="Web pages that may use the router: a JSON list of origins, or ['*'].")
    ] = "[]",
    allowed_hosts: Annotated[
        str, typer.Option(help="Public host names of a router without a key: a JSON list, or ['*'].")
    ] = "[]",
    health_check_interval_secs: Annotated[
        float, typer.Option(help="Time between two questions to /health of a server.", min=0.05)
    ] = 1.0,
    health_check_timeout_secs: Annotated[
        float, typer.Option(help="Time that a server has to answer one.", min=0.05)
    ] = 5.0,
    health_failure_threshold: Annotated[
        int, typer.Option(help="So many questions without an answer put a server out.", min=1)
    ] = 2,
    ssl_certfile: Annotated[str | None, typer.Option(help="Certificate, for HTTPS.")] = None,
    ssl_keyfile: Annotated[str | None, typer.Option(help="Its key, if it is in another file.")] = None,
    uvicorn_log_level: Annotated[str, typer.Option(help=", ".join(LOG_LEVELS) + ".")] = "info",
    disable_uvicorn_access_log: Annotated[
        bool, typer.Option("--disable-uvicorn-access-log", help="No line per request.")
    ] = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> int:
    """Share requests among servers of one model, each to the server that has the least to compute for it."""
    only("--policy", policy, ("cache_aware", "round_robin"), "these are the policies")
    only("--uvicorn-log-level", uvicorn_log_level, LOG_LEVELS, "these are the levels")

    from armllm.server.router.replica import HealthChecks, Replicas  # noqa: PLC0415 - --help needs none of it
    from armllm.server.router.run import RouterOptions, route  # noqa: PLC0415
    from armllm.server.router.upstream import Address  # noqa: PLC0415
    from armllm.server.tls import tls_context  # noqa: PLC0415

    if len(set(urls)) < len(urls):
        raise RequestError("each URL may be given once")
    checks = HealthChecks(health_check_interval_secs, health_check_timeout_secs, health_failure_threshold)
    options = RouterOptions(
        host=host,
        port=port,
        uds=uds,
        api_keys=keys_of(api_key),
        allowed_origins=texts_of("--allowed-origins", allowed_origins),
        allowed_hosts=(*texts_of("--allowed-hosts", allowed_hosts), *([host] if host else [])),
        tls=tls_context(ssl_certfile=ssl_certfile, ssl_keyfile=ssl_keyfile),
        log_level=uvicorn_log_level,
        access_log=not disable_uvicorn_access_log,
    )
    return route(Replicas([Address.of(url) for url in urls], policy, checks), options)  # type: ignore[arg-type]
