"""`armllm serve`: bind, load, listen; drain at the first signal, stop at the second."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from armllm import environment
from armllm.errors import RequestError
from armllm.utils.gc_utils import freeze_gc_heap

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from armllm.server.engine_process import EngineProcess
    from armllm.server.service import ServerOptions, Service

SIGNALS = (signal.SIGTERM, signal.SIGINT)
ENGINE_FAILED = 70
OPEN_FILES, FEW_FILES = 65536, 1024


def serve(
    model: str,
    engine_options: dict[str, Any],
    options: ServerOptions,
    *,
    host: str | None,
    port: int,
    uds: str | None = None,
    log_level: str = "info",
    access_log: bool = True,
) -> int:
    """Serve a model until a signal comes; return the exit status.

    The port is taken before the model is loaded, and listened to after: whoever can connect is served. Unless
    there is a ``host``, a server that asks for no key is there for its own machine only.
    """
    if host is None:
        host = "0.0.0.0" if options.api_keys else "127.0.0.1"  # noqa: S104 - with a key, as vLLM does
    # As PID 1 of a container, a process that has no handler never sees SIGTERM.
    for number in SIGNALS:
        signal.signal(number, stop_now)
    allow_many_connections()
    environment.tokenize_on_one_core()
    with bound(host, port, uds) as sock:
        from armllm.server.engine_process import EngineProcess  # noqa: PLC0415 - a port in use is said at once
        from armllm.server.service import Service  # noqa: PLC0415

        engine = EngineProcess(model, options.adapters, **engine_options)
        try:
            service = Service(engine, options)
            address = address_of(sock, uds)
            if options.tls is not None:
                address = address.replace("http://", "https://", 1)
            return _run(service, engine, sock, address, log_level=log_level, access_log=access_log)
        finally:
            engine.shutdown()


def _run(
    service: Service,
    engine: EngineProcess,
    sock: socket.socket,
    address: str,
    *,
    log_level: str,
    access_log: bool,
) -> int:
    from armllm.server.app import create_app  # noqa: PLC0415 - not needed to say that a port is in use
    from armllm.server.draining import EngineServer, configured  # noqa: PLC0415

    config = configured(
        create_app(service),
        service.limits,
        service.options.tls,
        log_level=log_level,
        access_log=access_log,
    )
    server = EngineServer(config, service, engine, address, signals=SIGNALS, stop_now=stop_now)
    freeze_gc_heap()
    server.run(sockets=[sock])
    if service.engine.errored:
        print(f"armllm: error: {service.engine.dead_error}", file=sys.stderr, flush=True)
        return ENGINE_FAILED
    return 0


def allow_many_connections() -> None:
    """Every connection is an open file, and the usual limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < FEW_FILES:
        print(
            f"armllm: warning: {wanted} open files (ulimit -Hn) allow few connections; raise it to"
            f" {FEW_FILES} or more",
            file=sys.stderr,
            flush=True,
        )


@contextlib.contextmanager
def bound(host: str, port: int, uds: str | None) -> Iterator[socket.socket]:
    """A socket that has its address but doesn't listen yet."""
    if uds is not None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            try:
                sock.bind(uds)
            except OSError as error:
                raise RequestError(
                    f"--uds {uds}: {error.strerror or error}; remove it or choose another"
                ) from None
            try:
                yield sock
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(uds)  # noqa: PTH108
        return
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise RequestError(f"--host {host}: {error.strerror or error}") from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
        except OSError as error:
            reason = error.strerror or str(error)
            raise RequestError(
                f"can't use {host}:{port}: {reason}; choose another --port or --host"
            ) from None
        yield sock


def address_of(sock: socket.socket, uds: str | None) -> str:
    """The URL of a bound socket."""
    if uds is not None:
        return f"unix:{uds}"
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def stop_now(number: int = signal.SIGTERM, _frame: FrameType | None = None) -> NoReturn:
    """End without waiting for the engine's thread, which may be within torch for seconds."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # what is shown while the engine loads
    print(f"{clear}armllm: stopped", file=sys.stderr, flush=True)
    os._exit(128 + number)
