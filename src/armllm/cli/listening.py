"""Where `armllm serve` and `armllm route` listen, and whom they answer."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Annotated

from armllm.cli.options import frontend_option
from armllm.errors import RequestError

if TYPE_CHECKING:
    import ssl

    from armllm.server.router.run import RouterOptions

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "critical")


@dataclasses.dataclass
class Listening:
    """Options of both commands, with vLLM's names."""

    host: Annotated[
        str | None,
        frontend_option(help="Address to listen on. Default: 0.0.0.0 with --api-key, else 127.0.0.1."),
    ] = None
    port: Annotated[int, frontend_option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = (
        8000
    )
    uds: Annotated[str | None, frontend_option(help="Listen on this Unix socket instead.")] = None
    api_key: Annotated[
        list[str] | None,
        frontend_option(help="Key that clients must send; default: VLLM_API_KEY. May be repeated."),
    ] = None
    allowed_origins: Annotated[
        str,
        frontend_option(
            help="Origins of web pages that may use the server: a JSON list of origins, or ['*']."
        ),
    ] = "[]"
    allowed_hosts: Annotated[
        str, frontend_option(help="Public host names of a server without a key: a JSON list, or ['*'].")
    ] = "[]"
    ssl_certfile: Annotated[str | None, frontend_option(help="File of the certificate, for HTTPS.")] = None
    ssl_keyfile: Annotated[
        str | None, frontend_option(help="File of its private key; default: the file of the certificate.")
    ] = None
    root_path: Annotated[
        str, frontend_option(help="Prefix of a proxy, such as /llm: all paths are there with and without it.")
    ] = ""
    uvicorn_log_level: Annotated[str, frontend_option(help=f"Log level: {', '.join(LOG_LEVELS)}.")] = "info"
    disable_uvicorn_access_log: Annotated[
        bool,
        frontend_option(help="Log no line per request."),
    ] = False

    def __post_init__(self) -> None:
        if self.uvicorn_log_level not in LOG_LEVELS:
            raise RequestError(f"--uvicorn-log-level must be one of {', '.join(LOG_LEVELS)}")

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys from the command line, else from the environment."""
        keys = self.api_key or [os.environ.get("ARMLLM_API_KEY") or os.environ.get("VLLM_API_KEY") or ""]
        if self.api_key and not all(key.strip() for key in keys):
            raise RequestError("--api-key must not be empty")
        return tuple(key for key in keys if key)

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins of web pages."""
        return _texts("--allowed-origins", self.allowed_origins)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names, the one to listen on among them."""
        return (*_texts("--allowed-hosts", self.allowed_hosts), *([self.host] if self.host else []))

    def router_options(self, tls: ssl.SSLContext | None) -> RouterOptions:
        """The same for a router."""
        from armllm.server.router.run import RouterOptions  # noqa: PLC0415 - --help needs none of it

        return RouterOptions(
            host=self.host,
            port=self.port,
            uds=self.uds,
            api_keys=self.keys,
            allowed_origins=self.origins,
            allowed_hosts=self.hosts,
            tls=tls,
            root_path=self.root_path,
            log_level=self.uvicorn_log_level,
            access_log=not self.disable_uvicorn_access_log,
        )


def _texts(option: str, text: str) -> tuple[str, ...]:
    """The texts of a JSON list; RequestError if it is none."""
    try:
        texts = json.loads(text.replace("'", '"'))
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise RequestError(f"{option} must be a JSON list of texts, not {text!r}")
    return tuple(texts)
