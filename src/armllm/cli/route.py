"""`armllm route`: one address for several servers."""

from __future__ import annotations

from typing import Annotated

import typer

from armcli.groups import option_of
from armllm.cli.listening import Listening
from armllm.cli.options import Verbose, only, takes
from armllm.errors import RequestError

routing_option = option_of("Routing")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="route")(route_command)


@takes("listening", Listening)
def route_command(  # noqa: PLR0917 - typer reads options from parameters
    urls: Annotated[
        list[str], typer.Argument(metavar="URL", help="Servers of one model, such as http://HOST:PORT.")
    ],
    listening: Listening,
    policy: Annotated[
        str,
        routing_option(
            help="cache_aware: the server with the fewest tokens to compute; round_robin: in turns."
        ),
    ] = "cache_aware",
    health_check_interval_secs: Annotated[
        float, routing_option(help="Seconds between two health checks of a server.", min=0.05)
    ] = 1.0,
    health_check_timeout_secs: Annotated[
        float, routing_option(help="Seconds that a server has to answer one.", min=0.05)
    ] = 5.0,
    health_failure_threshold: Annotated[
        int,
        routing_option(help="Health checks without an answer, after which a server gets no requests.", min=1),
    ] = 2,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> int:
    """Share requests among servers of one model, by what each has to compute."""
    only("--policy", policy, ("cache_aware", "round_robin"), "these are the policies")

    from armllm.server.router.replica import HealthChecks, Replicas  # noqa: PLC0415 - --help needs none of it
    from armllm.server.router.run import route  # noqa: PLC0415
    from armllm.server.router.upstream import Address  # noqa: PLC0415
    from armllm.server.tls import tls_context  # noqa: PLC0415

    if len(set(urls)) < len(urls):
        raise RequestError("each URL may be given once")
    checks = HealthChecks(health_check_interval_secs, health_check_timeout_secs, health_failure_threshold)
    tls = tls_context(ssl_certfile=listening.ssl_certfile, ssl_keyfile=listening.ssl_keyfile)
    return route(Replicas([Address.of(url) for url in urls], policy, checks), listening.router_options(tls))  # type: ignore[arg-type]
