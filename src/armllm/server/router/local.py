"""`armllm serve --data-parallel-size`: replicas as processes of this machine, behind a router."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from armllm.engine.placement import Share, divide
from armllm.errors import RequestError
from armllm.helper_process import python_module
from armllm.server.router.replica import METRICS_BYTES, Replica, Replicas, cache_blocks
from armllm.server.router.run import Router, RouterServer, listening
from armllm.server.router.upstream import Address, UpstreamError
from armllm.server.run import ENGINE_FAILED, SIGNALS, allow_many_connections, stop_now

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from armllm.server.router.run import RouterOptions

logger = logging.getLogger("armllm.server.router")

LOOK_EVERY = 0.1  # seconds
QUICK_SECONDS = 60.0  # a replica that ends sooner after it was ready ended quickly
MOST_QUICK = 5  # such ends in a row
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
HUNG_SECONDS = 60.0  # out, and alive
STOP_SECONDS = 15.0
LONGEST_PATH = 107  # bytes of a Unix socket's (unix(7))
COMMAND = python_module("armllm.server.router.replica_process")


class Process(Protocol):
    """What runs a replica, as `subprocess.Popen` has it."""

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""

    def terminate(self) -> None:
        """Let it end what it does."""

    def kill(self) -> None:
        """End it at once."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit status when it has ended; subprocess.TimeoutExpired if that takes longer."""


class Supervised(abc.ABC):
    """A replica that is started again when it ends. failed: with this status, for good."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.failed: int | None = None
        self._process: Process | None = None
        self._quick = 0
        self._ready_at: float | None = None

    @abc.abstractmethod
    def launch(self) -> Process:
        """Start what runs it."""

    @abc.abstractmethod
    def listens(self) -> bool:
        """Whether it may be asked for its health."""

    def start(self) -> None:
        """Start it."""
        self._process = self.launch()
        self._ready_at = None

    async def ready(self) -> bool:
        """Wait until it answers; False if it ended before."""
        while self._ended() is None:
            if self.listens():
                with contextlib.suppress(UpstreamError, ValueError):
                    status, _ = await self.replica.get("/health", 5.0)
                    if status == 200:
                        await self.answers()
                        self._ready_at = time.monotonic()
                        return True
            await asyncio.sleep(LOOK_EVERY)
        return False

    @abc.abstractmethod
    async def answers(self) -> None:
        """It is well for the first time since its start."""

    async def supervise(self) -> None:
        """Start it again whenever it ends, later each time; give up after several quick ends."""
        out_since = None
        while True:
            await asyncio.sleep(LOOK_EVERY)
            now = time.monotonic()
            if (status := self._ended()) is not None:
                quick = self._ready_at is None or now - self._ready_at < QUICK_SECONDS
                self._quick = self._quick + 1 if quick else 1
                if self._quick >= MOST_QUICK:
                    logger.error(
                        "replica %s %s, %d times in a row", self.replica.name, _end_of(status), MOST_QUICK
                    )
                    self.failed = ENGINE_FAILED
                    return
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._quick - 1))
                logger.warning(
                    "replica %s %s; it starts again in %g s", self.replica.name, _end_of(status), pause
                )
                await asyncio.sleep(pause)
                self.start()
                await self.ready()
                out_since = None
            elif self.replica.well:
                out_since = None
            else:
                out_since = out_since or now
                if now - out_since > HUNG_SECONDS:
                    logger.error("replica %s has not answered for %g s", self.replica.name, HUNG_SECONDS)
                    self.kill()

    def _ended(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def status(self) -> int:
        """The exit status of a process that ended, as a shell has it."""
        status = self._ended() or 0
        return 128 - status if status < 0 else status

    def terminate(self) -> None:
        """Let it end what it does."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended; end it if that takes too long."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            self._process.kill()
            self._process.wait()


class LocalReplica(Supervised):
    """One replica as a process of this machine."""

    def __init__(self, replica: Replica, share: Share, arguments: Sequence[str]) -> None:
        super().__init__(replica)
        self._share = share
        self._arguments = list(arguments)
        self._uds = Path(replica.pool.address.uds or "")
        self._blocks: int | None = None

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process."""
        self._uds.unlink(missing_ok=True)
        cpus = "-" if self._share.cpus is None else ",".join(map(str, sorted(self._share.cpus)))
        arguments = [*self._arguments, f"--uds={self._uds}"]
        environment = {**os.environ, **self._share.environment, "FORWARDED_ALLOW_IPS": "*"}
        if self._blocks is not None:  # as many as before; the others have their part of the memory
            arguments.append(f"--num-gpu-blocks-override={self._blocks}")
            environment["ARMLLM_REPLICAS"] = "1,1"
        return subprocess.Popen(
            [*COMMAND, str(os.getpid()), cpus, *arguments],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the router, which drains
            env=environment,
        )

    def listens(self) -> bool:
        """Whether its socket is there."""
        return self._uds.exists()

    async def answers(self) -> None:
        """Look how many blocks its cache has."""
        _, text = await self.replica.get("/metrics", 5.0, METRICS_BYTES)
        self._blocks = (cache_blocks(text) or (None,))[0]


class LocalServer(RouterServer):
    """Starts the replicas before it listens, and ends them after the last answer."""

    def __init__(
        self, router: Router, options: RouterOptions, address: str, processes: Sequence[LocalReplica]
    ) -> None:
        super().__init__(router, options, address)
        self.processes = processes
        self.status = 0
        self._supervisors: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load, then listen. What can't be loaded ends the server with the replica's status."""
        for process in self.processes:
            process.start()
        loading = asyncio.ensure_future(self._load())
        while not loading.done() and not self.should_exit:
            await asyncio.wait({loading}, timeout=LOOK_EVERY)
        if self.should_exit or not loading.result():
            loading.cancel()
            self.should_exit = True  # uvicorn ends here
            return
        await super().startup(sockets)
        self._supervisors = [asyncio.ensure_future(process.supervise()) for process in self.processes]

    async def _load(self) -> bool:
        waiting = [asyncio.ensure_future(self._loaded(process)) for process in self.processes]
        try:
            for one in asyncio.as_completed(waiting):
                if not await one:
                    return False
            return True
        finally:
            for task in waiting:
                task.cancel()

    async def _loaded(self, process: LocalReplica) -> bool:
        if not await process.ready():
            self.status = self.status or process.status or ENGINE_FAILED
            return False
        return True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain; from now on no replica is started again."""
        for supervisor in self._supervisors:
            supervisor.cancel()
        await super().shutdown(sockets)

    def failed(self) -> bool:
        """Whether a replica ends too often."""
        found = [process.failed for process in self.processes if process.failed is not None]
        self.status = found[0] if found else self.status
        return bool(found)


def serve_replicas(arguments: Sequence[str], size: int, options: RouterOptions, ranks: int = 1) -> int:
    """Serve ``size`` replicas of `armllm ARGUMENTS…` until a signal comes; return the exit status.

    ``ranks``: processes of each replica that compute.
    """
    for number in SIGNALS:
        signal.signal(number, stop_now)
    allow_many_connections()
    shares = divide(size, ranks=ranks)
    folder = Path(tempfile.mkdtemp(prefix="armllm-"))  # nobody else may connect
    processes: list[LocalReplica] = []
    try:
        sockets = [f"{folder}/{index}.sock" for index in range(size)]
        if len(os.fsencode(sockets[-1])) > LONGEST_PATH:
            raise RequestError(f"TMPDIR {folder.parent} is too long for a Unix socket: set a shorter one")
        replicas = Replicas([Address.of(f"unix:{path}") for path in sockets])
        router = Router(replicas, options)
        with listening(options) as (sock, address):
            processes += [
                LocalReplica(replica, share, arguments)
                for replica, share in zip(replicas.all, shares, strict=True)
            ]
            server = LocalServer(router, options, address, processes)
            server.run(sockets=[sock])
            return server.status
    finally:
        stop(processes)
        shutil.rmtree(folder, ignore_errors=True)


def stop(replicas: Sequence[Supervised]) -> None:
    """End them, and wait until they have ended."""
    for one in replicas:
        one.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for one in replicas:
        one.wait(max(0.1, deadline - time.monotonic()))


def _end_of(status: int) -> str:
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
