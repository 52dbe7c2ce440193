"""All that is asked of Ray: which machines there are, an actor on one of them, and when a call of it ends.

Nothing of a request passes through here.
"""

from __future__ import annotations

import logging
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from armllm.errors import RequestError
from armllm.server.cluster.host import Host

if TYPE_CHECKING:
    from collections.abc import Sequence

THREADS = 2  # of an actor: one waits for its process, one takes other calls


class Node(NamedTuple):
    """A machine of the cluster, and how many CPUs it has for Ray."""

    id: str
    address: str
    cpus: int


class LostError(Exception):
    """An actor, its process or its machine has gone, or could not be started."""


class Actor:
    """A `Host` on a machine. A call returns at once what `RayControl.wait` waits for."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray = ray
        self._handle = handle

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method."""
        return getattr(self._handle, name).remote(*arguments)

    def kill(self) -> None:
        """End it at once, and its process with it."""
        self._ray.kill(self._handle)


class RayControl:
    """The connection to the cluster that RAY_ADDRESS names, or to that of this machine."""

    def __init__(self) -> None:
        try:
            import ray  # noqa: PLC0415 - the extra
        except ImportError:
            raise RequestError(
                "--distributed-executor-backend ray needs the package ray: pip install 'armllm[ray]'"
            ) from None
        address = os.environ.get("RAY_ADDRESS") or "auto"
        try:
            ray.init(address=address, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise RequestError(
                f"no Ray cluster answers at RAY_ADDRESS {address}: {reason:.200}; run `ray start --head`"
            ) from None
        self._ray = ray
        self._actors = ray.remote(Host)

    @property
    def address(self) -> str:
        """The address of this machine for the others."""
        return str(self._ray.util.get_node_ip_address())

    def nodes(self) -> list[Node]:
        """The machines that are alive and have CPUs for Ray."""
        found = [
            Node(node["NodeID"], node["NodeManagerAddress"], math.floor(node["Resources"].get("CPU", 0)))
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        return sorted(node for node in found if node.cpus)

    def start(self, node: Node) -> Actor:
        """An actor on this machine. It waits until no other has CPUs there, and takes all of them."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        options = {"num_cpus": node.cpus, "scheduling_strategy": strategy, "max_concurrency": THREADS}
        return Actor(self._ray, self._actors.options(**options).remote())

    def wait(self, calls: Sequence[Any], count: int, seconds: float | None = None) -> list[Any]:
        """Those calls that have ended, once there are so many of them, or after so many seconds."""
        return list(self._ray.wait(list(calls), num_returns=count, timeout=seconds)[0])

    def result(self, call: Any) -> Any:
        """What a call returned, once it has ended; LostError if it can't."""
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            raise LostError(str(error).partition("\n")[0]) from None

    def close(self) -> None:
        """End all actors."""
        self._ray.shutdown()
