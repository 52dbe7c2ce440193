"""One replica on the cluster: a machine, or as many machines as its pipeline has stages."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

from armllm.server.cluster.control import LostError
from armllm.server.router.local import Supervised
from armllm.server.router.upstream import Address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from armllm.server.cluster.control import Node, RayControl
    from armllm.server.router.replica import Replicas

logger = logging.getLogger("armllm.server.router")

PASSED_ON = ("ARMLLM_", "VLLM_", "HF_")  # variables that mean the same on every machine
SAY_SECONDS = 3.0  # for the others of a group to say why they end


@dataclasses.dataclass(frozen=True)
class Command:
    """What a group runs: `armllm ARGUMENTS…` with this environment, where there is such a folder in it."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str

    @classmethod
    def here(cls, arguments: Sequence[str], address: str) -> Command:
        """The same as here; ``address`` is this machine's, whose word about clients is believed."""
        environment = {
            name: value for name, value in os.environ.items() if name.startswith(PASSED_ON) and value
        }
        environment.setdefault("ARMLLM_NODES_KEY", secrets.token_hex(32))
        return cls(arguments, {**environment, "FORWARDED_ALLOW_IPS": address}, os.getcwd())  # noqa: PTH109

    def of_stage(self, nodes: Sequence[Node], rank: int, port: int, master_port: int) -> list[str]:
        """The command line on machine ``rank``; machine 0 answers requests."""
        head = nodes[0].address
        stages = []
        if len(nodes) > 1:
            stages = [f"--nnodes={len(nodes)}", f"--node-rank={rank}"]
            stages += [f"--master-addr={head}", f"--master-port={master_port}"]
        end = ["--headless"] if rank else [f"--host={head}", f"--port={port}"]
        return [*self.arguments, *stages, *end]


class Group:
    """The processes of one start, as `Process` wants it. address: where they answer, once that is known."""

    def __init__(self, control: RayControl, nodes: Sequence[Node], command: Command) -> None:
        self.address: Address | None = None
        self._control = control
        self._nodes = nodes
        self._command = command
        self._status: int | None = None
        self._ended = threading.Event()
        self._actors = [control.start(node) for node in nodes]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        status = -signal.SIGKILL
        try:
            status = self._first_status()
        except LostError as error:
            where = ", ".join(node.address for node in self._nodes)
            logger.warning("an actor at %s has gone: %.200s", where, error)
        except Exception:
            logger.exception("a replica can't be started")
        finally:
            self.kill()
            self._status = status
            self._ended.set()

    def _first_status(self) -> int:
        """Run them until one ends, then end the others: none can do without it."""
        control, head = self._control, self._nodes[0].address
        port, master_port = control.result(self._actors[0].call("ports", head, 2))
        calls = [
            actor.call(
                "run",
                self._command.of_stage(self._nodes, rank, port, master_port),
                dict(self._command.environment),
                self._command.folder,
            )
            for rank, actor in enumerate(self._actors)
        ]
        self.address = Address.of(f"http://{f'[{head}]' if ':' in head else head}:{port}")
        first = control.wait(calls, 1)[0]
        control.wait(calls, len(calls), SAY_SECONDS)
        return int(control.result(first))

    def poll(self) -> int | None:
        """As `Process`."""
        return self._status

    def terminate(self) -> None:
        """As `Process`."""
        for actor in self._actors:
            with contextlib.suppress(Exception):  # it may be gone
                actor.call("terminate")

    def kill(self) -> None:
        """As `Process`."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                actor.kill()

    def wait(self, timeout: float | None = None) -> int:
        """As `Process`."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("armllm", timeout or 0)
        assert self._status is not None  # noqa: S101 - it is set before
        return self._status


class ClusterReplica(Supervised):
    """A replica on these machines, which gets requests once it has answered."""

    def __init__(
        self, replicas: Replicas, control: RayControl, nodes: Sequence[Node], command: Command
    ) -> None:
        super().__init__(replicas.create(Address(f"ray:{nodes[0].address}")))
        self.nodes = nodes
        self._replicas = replicas
        self._control = control
        self._command = command

    def launch(self) -> Group:
        """Start actors on its machines."""
        return Group(self._control, self.nodes, self._command)

    def listens(self) -> bool:
        """Whether it is known where; each start takes another port."""
        assert isinstance(self._process, Group)  # noqa: S101 - `launch` made it
        address = self._process.address
        if address is not None and address != self.replica.pool.address:
            self.replica.move(address)
        return address is not None

    async def answers(self) -> None:
        """Let it answer requests."""
        if self.replica not in self._replicas.all:
            self._replicas.add(self.replica)
