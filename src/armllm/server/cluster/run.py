"""A router whose replicas come and go with the machines of a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

from armllm.server.cluster.control import RayControl
from armllm.server.cluster.group import ClusterReplica, Command
from armllm.server.router.local import LOOK_EVERY, stop
from armllm.server.router.replica import Replicas
from armllm.server.router.run import Router, RouterServer, listening
from armllm.server.run import ENGINE_FAILED, SIGNALS, allow_many_connections, stop_now

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from armllm.server.cluster.control import Node
    from armllm.server.router.run import RouterOptions

logger = logging.getLogger("armllm.server.router")

ASK_EVERY = 0.5  # seconds between two looks at the cluster
REMIND_EVERY = 60.0


class Fleet:
    """Keeps a replica on each machine, or on each ``stages`` machines, and at most ``size`` of them."""

    def __init__(
        self, replicas: Replicas, control: RayControl, command: Command, size: int | None, stages: int
    ) -> None:
        self.members: dict[ClusterReplica, asyncio.Task[None]] = {}
        self._replicas = replicas
        self._control = control
        self._command = command
        self._size = size
        self._stages = stages
        self._look = 0

    async def run(self) -> None:
        """Look at the cluster again and again."""
        while True:
            nodes = await asyncio.to_thread(self._control.nodes)
            self._leave(nodes)
            self._place(nodes)
            self._remind(nodes)
            await asyncio.sleep(ASK_EVERY)

    def _leave(self, nodes: Sequence[Node]) -> None:
        alive = {node.id for node in nodes}
        for member in list(self.members):
            lost = [node.address for node in member.nodes if node.id not in alive]
            if lost:
                reason = f"machine {', '.join(lost)} has left the cluster"
                logger.warning("replica %s ends: %s", member.replica.name, reason)
                self.members.pop(member).cancel()
                member.kill()
                self._replicas.remove(member.replica, reason)

    def _place(self, nodes: Sequence[Node]) -> None:
        taken = {node.id for member in self.members for node in member.nodes}
        free = [node for node in nodes if node.id not in taken]
        while len(free) >= self._stages and (self._size is None or len(self.members) < self._size):
            machines, free = free[: self._stages], free[self._stages :]
            member = ClusterReplica(self._replicas, self._control, machines, self._command)
            where = ", ".join(node.address for node in machines)
            logger.info("replica %s starts at %s", member.replica.name, where)
            self.members[member] = asyncio.ensure_future(_keep(member))

    def _remind(self, nodes: Sequence[Node]) -> None:
        if not self.members and self._look % (REMIND_EVERY // ASK_EVERY) == 0:
            logger.warning(
                "waiting for machines: a replica needs %d with CPUs for Ray, and there are %d",
                self._stages,
                len(nodes),
            )
        self._look += 1

    @property
    def failed(self) -> int | None:
        """The exit status of replicas none of which can run."""
        found = [member.failed for member in self.members]
        return next((status for status in found if status), None) if None not in found else None

    def end(self) -> None:
        """Start none again."""
        for task in self.members.values():
            task.cancel()


async def _keep(member: ClusterReplica) -> None:
    member.start()
    if not await member.ready() and member.status < 128:  # else it was killed
        member.failed = member.status or ENGINE_FAILED
        where = ", ".join(node.address for node in member.nodes)
        logger.error("replica %s can't be loaded at %s: its lines above say why", member.replica.name, where)
        return
    await member.supervise()


class ClusterServer(RouterServer):
    """Listens when the first replica answers."""

    def __init__(self, router: Router, options: RouterOptions, address: str, fleet: Fleet) -> None:
        super().__init__(router, options, address)
        self.fleet = fleet
        self.status = 0
        self._work: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Place replicas, then listen."""
        self._work = asyncio.ensure_future(self.fleet.run())
        while not (self.should_exit or self.failed() or self.router.replicas.all):
            await asyncio.wait({self._work}, timeout=LOOK_EVERY)
        if self.should_exit or self.failed():
            self._end()
            self.should_exit = True  # uvicorn ends here
            return
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain; from now on no replica is started."""
        self._end()
        await super().shutdown(sockets)

    def _end(self) -> None:
        self.fleet.end()
        if self._work is not None:
            self._work.cancel()

    def failed(self) -> bool:
        """Whether no replica can run, or Ray does not answer."""
        work = self._work
        if work is not None and work.done() and not work.cancelled() and (error := work.exception()):
            if not self.status:
                logger.error("the Ray cluster does not answer: %.200s", error)
            self.status = ENGINE_FAILED
            return True
        self.status = self.fleet.failed or 0
        return self.status != 0


def serve_on_cluster(arguments: Sequence[str], size: int | None, stages: int, options: RouterOptions) -> int:
    """Serve `armllm ARGUMENTS…` on the cluster until a signal comes; return the exit status."""
    control = RayControl()  # before our handlers of signals: Ray sets its own
    try:
        return serve_by(control, Command.here(arguments, control.address), size, stages, options)
    finally:
        control.close()


def serve_by(
    control: RayControl, command: Command, size: int | None, stages: int, options: RouterOptions
) -> int:
    """The same, on the machines of ``control``."""
    for number in SIGNALS:
        signal.signal(number, stop_now)
    allow_many_connections()
    replicas = Replicas([])
    router = Router(replicas, options)
    fleet = Fleet(replicas, control, command, size, stages)
    try:
        with listening(options) as (sock, address):
            server = ClusterServer(router, options, address, fleet)
            server.run(sockets=[sock])
            return server.status
    finally:
        stop(list(fleet.members))
