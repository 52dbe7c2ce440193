"""The image's health check: `python3 -m armbuild.image.health` asks the server whether it can answer.

Standard library only, since it runs every half minute. The server's own command line tells host and port or
the Unix socket; ARMLLM_HEALTH_ADDRESS overrides it: a port of 127.0.0.1, HOST:PORT or a path.
"""

from __future__ import annotations

import http.client
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

TIMEOUT = 5.0


def address_of(arguments: list[str]) -> str:
    """Return where `armllm serve` with ``arguments`` listens: HOST:PORT, or the path of its Unix socket."""
    found = {"--host": "0.0.0.0", "--port": "8000", "--uds": ""}  # noqa: S104 - Linux connects to itself then
    command_line = iter(arguments)
    for word in command_line:
        name, equals, value = word.partition("=")
        if name in found:
            found[name] = value if equals else next(command_line, "")
    return os.path.abspath(found["--uds"]) if found["--uds"] else f"{found['--host']}:{found['--port']}"  # noqa: PTH100


def server_arguments(processes: Path = Path("/proc")) -> list[str]:
    """Return the command line of the server in this container; empty when none runs."""
    for folder in sorted(processes.glob("[0-9]*"), key=lambda folder: int(folder.name)):
        with suppress(OSError):
            command_line = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if (
                "armbuild.image.entrypoint" in command_line
            ):  # the server's own, or its init's: the same arguments
                return command_line[command_line.index("armbuild.image.entrypoint") + 1 : -1]
    return []


def check(address: str) -> str:
    """Ask GET /health; return why the server is not healthy, empty when it is."""
    connection = _Connection(address)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"no answer on {address}: {error}"
    finally:
        connection.close()
    return "" if status == http.client.OK else f"status {status} on {address}"


class _Connection(http.client.HTTPConnection):
    """To a port of this container, or to a Unix socket."""

    def __init__(self, address: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self.address = address

    def connect(self) -> None:
        if not self.address.startswith("/"):
            host, _, port = self.address.rpartition(":")
            self.sock = socket.create_connection((host or "127.0.0.1", int(port)), TIMEOUT)
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(self.address)


if __name__ == "__main__":
    reason = check(os.environ.get("ARMLLM_HEALTH_ADDRESS") or address_of(server_arguments()))
    print(reason or "healthy", file=sys.stderr if reason else sys.stdout)
    sys.exit(1 if reason else 0)
