"""What runs on a machine of the cluster: an actor that starts one `armllm` process there.

The process answers over HTTP, or is a stage that computes for another one. Ray sees none of that.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from armllm.helper_process import python_module

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMAND = python_module("armllm.server.router.replica_process")  # it ends with its parent, the actor


class Host:
    """The class of the actors."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ports(self, address: str, count: int) -> list[int]:
        """So many free ports."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listeners = [socket.create_server((address, 0), family=family) for _ in range(count)]
        try:
            return [listener.getsockname()[1] for listener in listeners]
        finally:
            for listener in listeners:
                listener.close()

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> int:
        """Run `armllm ARGUMENTS…` until it ends, in this folder if it is here too; return its status.

        What it writes goes to the actor's log, which Ray shows where `armllm serve` runs.
        """
        self._process = subprocess.Popen(
            [*COMMAND, str(os.getpid()), "-", *arguments],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **environment},
            cwd=folder if Path(folder).is_dir() else None,
        )
        return self._process.wait()

    def terminate(self) -> None:
        """Let the process end what it does."""
        if self._process is not None:
            self._process.terminate()
