"""`armllm serve`: the OpenAI-compatible server, with vLLM's flags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armllm.cli.answers import Answers
from armllm.cli.listening import Listening
from armllm.cli.options import (
    EngineCommand,
    Verbose,
    frontend_option,
    model_option,
    only,
    parallelism_option,
    takes,
    takes_engine_options,
)
from armllm.errors import RequestError
from armllm.utils.options import with_config

if TYPE_CHECKING:
    from armllm.server.router.run import RouterOptions


MOST_REPLICAS = 1024  # without lists of CPUs, nothing else bounds them


class ServeCommand(EngineCommand):
    """With the flags of ``vllm serve``, ``--config FILE.yaml``, and lists as argparse writes them."""

    kind = "serve"
    has_argument = True

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Write the file's options and the lists as click takes them."""
        several = [parameter for parameter in self.params if getattr(parameter, "multiple", False)]
        lists = {flag for parameter in several for flag in parameter.opts}

        def repeat(flag: str, values: list[Any]) -> list[str]:
            if flag in lists:
                return [f"{flag}={value}" for value in values]
            return [f"{flag}={json.dumps(values)}"]

        model_first = bool(args) and not args[0].startswith("-")
        if model_first:  # else the last value of a list might be the model
            args = [args[0], *_repeated(args[1:], lists)]
        elif not self.has_argument:
            args = _repeated(args, lists)
        args = with_config(args, repeat)
        if model_first:  # before that of the file
            args = [one for one in args if not one.startswith("--model=")]
        return super().parse_args(ctx, args)


def _repeated(args: list[str], lists: set[str]) -> list[str]:
    """``--flag A B`` as ``--flag A --flag B``."""
    result: list[str] = []
    flag, count = "", 0
    for argument in args:
        if argument.startswith("-"):
            flag, count = argument, 0
        elif flag in lists:
            count += 1
            if count > 1:
                result.append(flag)
        result.append(argument)
    return result


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="serve", cls=ServeCommand)(serve_command)


@takes_engine_options
@takes("answers", Answers)
@takes("listening", Listening)
def serve_command(  # noqa: PLR0917 - typer reads options from parameters
    ctx: typer.Context,
    engine: dict[str, Any],
    listening: Listening,
    answers: Answers,
    model_tag: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Folder of a checkpoint, a .gguf file, or a name on the hub."),
    ] = None,
    model: Annotated[str | None, model_option(help="The same as MODEL.")] = None,
    data_parallel_size: Annotated[
        int | None,
        parallelism_option(
            "--data-parallel-size",
            "-dp",
            help="Replicas behind this port, such as one per NUMA node; default: 1, with ray all machines.",
            min=1,
            max=MOST_REPLICAS,
        ),
    ] = None,
    distributed_executor_backend: Annotated[
        str,
        parallelism_option(
            help="mp: processes of this machine. ray: replicas and stages on the machines of a Ray cluster."
        ),
    ] = "mp",
    headless: Annotated[
        bool, parallelism_option("--headless", help="Be a stage of the model for machine 0, without a port.")
    ] = False,
    ssl_ca_certs: Annotated[
        str | None, frontend_option(help="File of the authorities that sign the clients' certificates.")
    ] = None,
    ssl_cert_reqs: Annotated[
        int, frontend_option(help="Certificates of clients: 0 none, 1 optional, 2 required.")
    ] = 0,
    ssl_ciphers: Annotated[str | None, frontend_option(help="Ciphers of TLS, in OpenSSL's form.")] = None,
    allowed_media_domains: Annotated[
        list[str] | None,
        frontend_option(help="Hosts from which pictures are fetched; default: none. May be repeated."),
    ] = None,
    enable_log_requests: Annotated[
        bool,
        frontend_option(
            "--enable-log-requests/--no-enable-log-requests",
            help="Log sizes and parameters of requests, never their text.",
        ),
    ] = False,
    disable_log_requests: Annotated[
        bool,
        frontend_option("--disable-log-requests", help="The default; accepted because vLLM's guides use it."),
    ] = False,
    disable_log_stats: Annotated[
        bool, frontend_option("--disable-log-stats", help="Log no throughput every 10 s.")
    ] = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> int:
    """Serve a model over HTTP. The API is OpenAI's, the flags are vLLM's. --config FILE.yaml reads flags."""
    if enable_log_requests and disable_log_requests:
        raise RequestError("--enable-log-requests and --disable-log-requests exclude each other")
    if (model_tag is None) == (model is None):
        raise RequestError(f"give one MODEL: {ctx.command_path} MODEL [OPTIONS]")
    name = model_tag or model or ""
    only("--distributed-executor-backend", distributed_executor_backend, BACKENDS, "these start processes")
    on_cluster = distributed_executor_backend == "ray"
    if on_cluster and engine.get("tensor_parallel_size") == "auto":
        raise RequestError(
            "--tensor-parallel-size auto and --distributed-executor-backend ray do not go together: Ray"
            " chooses the machines"
        )
    if on_cluster:
        _check_cluster(ctx)
    if headless:
        return _be_stage(name, engine)

    from armllm.environment import may_change_adapters  # noqa: PLC0415
    from armllm.server.run import serve as run  # noqa: PLC0415 - --help needs none of it
    from armllm.server.tls import tls_context  # noqa: PLC0415

    options = answers.options(
        name,
        engine,
        may_change_adapters=bool(engine.get("enable_lora")) and may_change_adapters(),
        api_keys=listening.keys,
        log_requests=enable_log_requests,
        log_stats=not disable_log_stats,
        root_path=listening.root_path,
        tls=tls_context(
            ssl_certfile=listening.ssl_certfile,
            ssl_keyfile=listening.ssl_keyfile,
            ssl_ca_certs=ssl_ca_certs,
            ssl_cert_reqs=ssl_cert_reqs,
            ssl_ciphers=ssl_ciphers,
        ),
        allowed_origins=listening.origins,
        allowed_hosts=listening.hosts,
        allowed_media_domains=tuple(allowed_media_domains or ()),
    )
    if engine.get("tensor_parallel_size") == "auto":
        data_parallel_size = _choose(ctx, name, engine, may_be_replicas=not options.may_change_adapters)
    if on_cluster or (data_parallel_size or 1) > 1:
        if options.may_change_adapters:
            flag = "--distributed-executor-backend ray" if on_cluster else "--data-parallel-size"
            raise RequestError(
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING and {flag} do not go together: one replica"
                " would load an adapter; name all with --lora-modules"
            )
        router = listening.router_options(options.tls)
        if on_cluster:
            return _serve_on_cluster(ctx, router)
        return _serve_replicas(ctx, data_parallel_size or 1, router)
    return run(
        name,
        engine,
        options,
        host=listening.host,
        port=listening.port,
        uds=listening.uds,
        log_level=listening.uvicorn_log_level,
        access_log=not listening.disable_uvicorn_access_log,
    )


def _choose(ctx: typer.Context, name: str, engine: dict[str, Any], *, may_be_replicas: bool) -> int:
    """Put the number of ranks in the place of "auto"; return the number of replicas."""
    replicas = ctx.params["data_parallel_size"]
    if (replicas or 1) > 1:
        raise RequestError(
            f"--data-parallel-size {replicas} and --tensor-parallel-size auto do not go together: choose one"
        )
    from armllm.engine.spread import spread_for  # noqa: PLC0415 - --help needs none of it

    found = spread_for(name, engine, "server", replicas=may_be_replicas and replicas is None)
    ctx.params["tensor_parallel_size"] = engine["tensor_parallel_size"] = found.ranks
    return found.replicas


def _be_stage(name: str, engine: dict[str, Any]) -> int:
    import logging.config  # noqa: PLC0415

    from armllm.engine.config import EngineConfig  # noqa: PLC0415 - --help needs none of it
    from armllm.engine.ranks import serve_stage  # noqa: PLC0415
    from armllm.server.logs import log_config  # noqa: PLC0415

    logging.config.dictConfig(log_config("info"))
    serve_stage(EngineConfig.of(name, engine, "server"))
    return 0


# The router's part; a replica listens to it on a private socket.
OF_ROUTER = frozenset(
    (
        "host",
        "port",
        "uds",
        "allowed_origins",
        "allowed_hosts",
        "data_parallel_size",
        "distributed_executor_backend",
    )
)
BACKENDS = ("mp", "uni", "ray")
OF_CLUSTER = ("headless", "nnodes", "node_rank", "master_addr", "master_port")  # what Ray decides


def _serve_replicas(ctx: typer.Context, size: int, router: RouterOptions) -> int:
    """Start replicas with the same options, and route to them."""
    from armllm.server.router.local import serve_replicas  # noqa: PLC0415

    ranks = ctx.params["tensor_parallel_size"] * ctx.params["pipeline_parallel_size"]
    return serve_replicas(["serve", *replica_arguments(ctx)], size, router, ranks)


def _check_cluster(ctx: typer.Context) -> None:
    """Refuse what Ray decides, and what only replicas of one machine could do."""
    for parameter in ctx.command.params:
        if parameter.name in OF_CLUSTER and ctx.params[parameter.name] != parameter.default:
            raise RequestError(
                f"--distributed-executor-backend ray does not take {max(parameter.opts, key=len)}:"
                " Ray chooses the machines; leave it out"
            )


def _serve_on_cluster(ctx: typer.Context, router: RouterOptions) -> int:
    """Let Ray place replicas with the same options, and route to them."""
    from armllm.server.cluster.run import serve_on_cluster  # noqa: PLC0415

    size, stages = ctx.params["data_parallel_size"], ctx.params["pipeline_parallel_size"]
    return serve_on_cluster(["serve", *replica_arguments(ctx)], size, stages, router)


def replica_arguments(ctx: typer.Context) -> list[str]:
    """The command line again, without what is the router's."""
    positional, flags = [], ["--disable-uvicorn-access-log"]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        value = ctx.params.get(name)
        if name in OF_ROUTER or name.startswith("ssl_") or value is None or value == parameter.default:
            continue
        if parameter.param_type_name == "argument":
            positional.append(str(value))
        elif isinstance(value, bool):
            flags.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            flags += [f"{max(parameter.opts, key=len)}={one}" for one in values]
    return [*positional, *flags]
