"""Which CPUs the engine computes on, and how many threads do so.

The engine's thread is confined to a set of CPUs, and the OpenMP threads that it starts inherit that. Threads
are not tied to one CPU each: where something else runs on one of them, a tied thread would wait for it while
the others wait at the barrier.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from armisa import host, tables
from armllm import environment
from armllm.engine.memory import available_on_node
from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

logger = logging.getLogger("armllm")

# Elements from which on it pays to wake torch's threads for an operation beside the kernels.
LARGE = 1 << 22
# Of cores whose type is unknown, those below this share of the fastest one's capacity are little ones.
LITTLE = 0.6


class _Before(NamedTuple):
    """What `place` has changed: a thread's CPUs, and torch's number of threads, which is ``limit`` now."""

    cpus: frozenset[int]
    num_threads: int
    limit: int


_before: dict[frozenset[int], _Before] = {}  # by the CPUs that a thread is confined to


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where to compute. cpus: None leaves it to the system. node: the NUMA node that they all are of."""

    num_threads: int
    cpus: frozenset[int] | None = None
    node: int | None = None


def place(rank: int = 0, size: int = 1) -> Placement:
    """Decide by the environment, confine this thread, and set torch's number of threads.

    ``rank``: of ``size`` processes that compute together and were started with the same CPUs.

    RequestError names a variable that makes no sense here. Where the system does not let itself be asked or
    told, that is logged once and the engine runs unconfined.
    """
    import torch  # noqa: PLC0415 - a router divides CPUs without it

    allowed = _allowed()
    num_threads = torch.get_num_threads()
    placement = decide(allowed, num_threads, rank=rank, size=size)
    if placement.cpus is not None:
        try:
            os.sched_setaffinity(0, placement.cpus)
            if placement.cpus != allowed:
                _before[placement.cpus] = _Before(allowed, num_threads, placement.num_threads)
        except (AttributeError, OSError) as error:
            _say_once(f"threads are not bound to CPUs: {error}")
            placement = dataclasses.replace(placement, cpus=None)
    if placement.num_threads != num_threads:
        torch.set_num_threads(placement.num_threads)
    return placement


def unconfine() -> None:
    """Let this thread run where it might before `place` confined it.

    This is for processes that it starts, and for the next engine: one of a single rank wants all cores.
    """
    import torch  # noqa: PLC0415 - as above

    with contextlib.suppress(AttributeError, OSError):
        before = _before.get(frozenset(os.sched_getaffinity(0)))
        if before is None:
            return
        os.sched_setaffinity(0, before.cpus)
        if torch.get_num_threads() == before.limit:  # else somebody has set it since
            torch.set_num_threads(before.num_threads)


@contextlib.contextmanager
def torch_threads(*, few: bool, elements: int = 0) -> Iterator[None]:
    """Let torch use one thread where it has ``few`` operations, unless this one is on many elements.

    It has few where all products are the kernels' own, on threads of their own: after each operation OpenMP's
    threads look for the next one, for milliseconds, on the cores that the kernels' threads want.
    """
    import torch  # noqa: PLC0415 - as above

    before = torch.get_num_threads()
    if few and elements < LARGE:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def decide(
    allowed: frozenset[int], num_threads: int, root: Path = Path("/"), *, rank: int = 0, size: int = 1
) -> Placement:
    """Where to compute, if these CPUs are ``allowed`` and ``num_threads`` were wanted.

    Of several ranks each gets a node if there are as many, else its part of all CPUs. ``root`` is where proc
    and sys are.
    """
    binding = environment.threads_binding()
    nodes = host.numa_nodes(root)
    if binding == "nobind":
        return Placement(num_threads=max(1, num_threads // size))
    if binding != "auto":
        cpus = _listed(binding, allowed, size)[rank]
        return Placement(num_threads=len(cpus), cpus=cpus, node=_node_of(cpus, nodes))
    if size == 1:
        cpus = _physical(root, _fast(root, _of_one_node(allowed, nodes, root)))
    else:
        cpus = _of_rank(allowed, nodes, root, rank, size)
    reserved = environment.reserved_cpus()
    if reserved >= len(cpus):
        raise RequestError(
            f"VLLM_CPU_NUM_OF_RESERVED_CPU {reserved} leaves none of the {len(cpus)} cores to compute on"
        )
    usable_cpus = frozenset(sorted(cpus)[: len(cpus) - reserved])
    quota = host.cpu_quota(root)
    if quota is not None and quota < size and rank == 0 and size > 1:
        _say_once(f"the limit of {quota:g} CPUs is less than the {size} ranks: they wait for one another")
    usable = len(usable_cpus) if quota is None else min(len(usable_cpus), max(1, math.floor(quota / size)))
    return Placement(
        num_threads=min(num_threads, usable),
        # a limit on time, unlike one on places, is met by fewer threads anywhere
        cpus=usable_cpus if usable_cpus != allowed else None,
        node=_node_of(usable_cpus, nodes),
    )


@dataclasses.dataclass(frozen=True)
class Share:
    """What one of several replicas gets. cpus: None for all; environment: variables on the others."""

    cpus: frozenset[int] | None
    environment: dict[str, str]


def divide(
    size: int, allowed: frozenset[int] | None = None, root: Path = Path("/"), *, ranks: int = 1
) -> list[Share]:
    """The shares of ``size`` replicas of so many ranks: a NUMA node for each rank if there are as many.

    Else a node for each replica, else as many cores. No CPU is in two shares. RequestError if there are too
    few.
    """
    allowed = _allowed() if allowed is None else allowed
    quota = host.cpu_quota(root)
    if quota is not None and quota < size * ranks:
        what = f"{size} replicas" + f" of {ranks} ranks" * (ranks > 1)
        _say_once(f"the limit of {quota:g} CPUs is less than the {what}: they wait for one another")
    threads = {}
    if quota is not None:
        text = os.environ.get("OMP_NUM_THREADS", "")
        wanted = int(text) if text.isdecimal() else len(allowed)
        threads["OMP_NUM_THREADS"] = str(max(1, min(wanted, math.floor(quota / (size * ranks)))))
    binding = environment.threads_binding()
    if binding == "nobind":
        return [Share(None, {**threads, "ARMLLM_REPLICAS": f"{size},{size}"})] * size
    nodes = _visible(host.numa_nodes(root))
    lists = [binding] * size
    if binding != "auto":
        of_ranks = _listed(binding, allowed, size * ranks)
        shares = [
            frozenset().union(*of_ranks[first : first + ranks]) for first in range(0, len(of_ranks), ranks)
        ]
        written = [",".join(map(str, sorted(cpus))) for cpus in of_ranks]
        lists = ["|".join(written[first : first + ranks]) for first in range(0, len(of_ranks), ranks)]
    else:
        sets = [allowed & frozenset(cpus) for cpus in nodes.values()] or [allowed]
        shares = _shares(size, sets, root, ranks)
    homes = [{node for node, of_node in nodes.items() if cpus.intersection(of_node)} for cpus in shares]
    crowds = [max((sum(node in one for one in homes) for node in home), default=size) for home in homes]
    return [
        Share(cpus, {**threads, "ARMLLM_OMP_THREADS_BIND": of_share, "ARMLLM_REPLICAS": f"{size},{crowd}"})
        for cpus, of_share, crowd in zip(shares, lists, crowds, strict=True)
    ]


def _shares(size: int, sets: list[frozenset[int]], root: Path, ranks: int) -> list[frozenset[int]]:
    """The CPUs of each replica: nodes, else parts of all cores with their hardware threads."""
    sets = sorted((_fast(root, cpus) for cpus in sets if cpus), key=len, reverse=True)
    if len(sets) >= size * ranks:
        return [frozenset().union(*sets[ranks * index : ranks * (index + 1)]) for index in range(size)]
    if len(sets) >= size:
        return sets[:size]
    firsts = [cpu for cpus in sets for cpu in sorted(_physical(root, cpus))]
    if len(firsts) < size:
        firsts = sorted(frozenset().union(*sets))
    if len(firsts) < size:
        raise RequestError(f"--data-parallel-size {size} needs {size} CPUs; here are {len(firsts)}")
    parts = [firsts[len(firsts) * index // size : len(firsts) * (index + 1) // size] for index in range(size)]
    everything = frozenset().union(*sets)
    taken = frozenset(firsts)
    return [
        frozenset(part) | {cpu for one in part for cpu in _siblings(root, one) & everything - taken}
        for part in parts
    ]


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return frozenset(host.cpu_list(host.text(root, path) or f"{cpu}"))


def _allowed() -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError) as error:
        _say_once(f"threads are not bound to CPUs: the system does not tell which are allowed ({error})")
        return frozenset(range(os.cpu_count() or 1))


def _listed(binding: str, allowed: frozenset[int], size: int) -> list[frozenset[int]]:
    """The CPUs of a list such as 0-3,8 for each rank; lists are separated by |."""
    lists = binding.split("|")
    if len(lists) != size or not all(host.cpu_list(part) for one in lists for part in one.split(",")):
        expected = (
            "a list of CPUs such as 0-3,8 (one list: there is one rank)"
            if size == 1
            else f"{size} lists of CPUs such as 0-31|32-63, one for each rank"
        )
        wrong = f"not {binding!r:.100}"
        raise RequestError(f"VLLM_CPU_OMP_THREADS_BIND must be auto, nobind or {expected}, {wrong}")
    found = [frozenset(host.cpu_list(one)) for one in lists]
    for number, cpus in enumerate(found):
        if missing := sorted(cpus - allowed):
            raise RequestError(
                f"VLLM_CPU_OMP_THREADS_BIND names CPU {missing[0]}, which is not there or not allowed here;"
                f" allowed are {host.ranges(allowed)}"
            )
        if twice := sorted(cpus.intersection(frozenset().union(*found[:number]))):
            raise RequestError(
                f"VLLM_CPU_OMP_THREADS_BIND names CPU {twice[0]} in two lists: each rank needs its own CPUs"
            )
    return found


def _of_rank(
    allowed: frozenset[int], nodes: dict[int, tuple[int, ...]], root: Path, rank: int, size: int
) -> frozenset[int]:
    """A rank's CPUs: the cores of a node, or its part of all cores, or of all hardware threads."""
    usable = _computing(allowed, nodes, root) or {0: _fast(root, allowed)}
    cores = [_physical(root, cpus) for cpus in usable.values()]
    if len(cores) >= size:
        return sorted(cores, key=len, reverse=True)[rank]
    order = [cpu for cpus in cores for cpu in sorted(cpus)]
    if len(order) < size:
        order = [cpu for cpus in usable.values() for cpu in sorted(cpus)]
    if len(order) < size:
        if rank == 0:
            _say_once(f"{size} ranks share the CPUs {host.ranges(order)}: they wait for one another")
        return frozenset({order[rank % len(order)]})
    return frozenset(order[len(order) * rank // size : len(order) * (rank + 1) // size])


def computing_nodes(
    allowed: frozenset[int] | None = None, root: Path = Path("/")
) -> dict[int, frozenset[int]]:
    """The cores of each NUMA node that may compute, in the order in which ranks get them."""
    found = _computing(_allowed() if allowed is None else allowed, host.numa_nodes(root), root)
    cores = {node: _physical(root, cpus) for node, cpus in found.items()}
    return dict(sorted(cores.items(), key=lambda item: len(item[1]), reverse=True))


def _computing(
    allowed: frozenset[int], nodes: dict[int, tuple[int, ...]], root: Path
) -> dict[int, frozenset[int]]:
    """The CPUs of the nodes that may be seen, without little cores; empty if /sys doesn't tell of nodes."""
    sets = {node: allowed & frozenset(cpus) for node, cpus in _visible(nodes).items()}
    found = {node: _fast(root, cpus) for node, cpus in sets.items() if cpus}
    if sets and not found:
        raise RequestError("CPU_VISIBLE_MEMORY_NODES names only nodes whose CPUs are not allowed here")
    return found


def _visible(nodes: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """The NUMA nodes that may be chosen from."""
    visible = environment.visible_memory_nodes()
    if visible is None or not nodes:
        return nodes
    if unknown := sorted(visible - nodes.keys()):
        raise RequestError(
            f"CPU_VISIBLE_MEMORY_NODES names node {unknown[0]}; here are {', '.join(map(str, nodes))}"
        )
    return {node: cpus for node, cpus in nodes.items() if node in visible}


def _of_one_node(allowed: frozenset[int], nodes: dict[int, tuple[int, ...]], root: Path) -> frozenset[int]:
    """The allowed CPUs of the NUMA node that has most of them, among those that may be seen.

    Of equal ones that with more memory left: on the other another engine may run.
    """
    nodes = _visible(nodes)
    sets = {node: allowed & frozenset(cpus) for node, cpus in nodes.items()}
    best = max(sets, key=lambda node: (len(sets[node]), available_on_node(node, root) or 0), default=None)
    if best is not None and sets[best]:
        count = sum(map(bool, sets.values()))
        if count > 1:
            _say_once(
                f"one of {count} NUMA nodes computes: --tensor-parallel-size {count} uses all for each token,"
                f" --data-parallel-size {count} for more requests"
            )
        return sets[best]
    if nodes and environment.visible_memory_nodes() is not None:
        raise RequestError("CPU_VISIBLE_MEMORY_NODES names only nodes whose CPUs are not allowed here")
    if not nodes:
        _say_once("/sys does not tell of NUMA nodes: all allowed CPUs count as one")
    return allowed


def _fast(root: Path, cpus: frozenset[int]) -> frozenset[int]:
    """Without little cores, for which the others would wait at every barrier."""
    order = tuple(sorted(cpus))
    capacities = dict(zip(order, host.capacities(root, order), strict=False))
    types = dict(zip(order, host.midrs(root, order), strict=False))
    fastest = max(capacities.values(), default=0)

    def little(cpu: int) -> bool:
        core = tables.find_core(types[cpu] >> 24 & 0xFF, types[cpu] >> 4 & 0xFFF) if types else None
        return core.little if core is not None else capacities.get(cpu, fastest) < LITTLE * fastest

    return frozenset(cpu for cpu in order if not little(cpu)) or cpus


def _physical(root: Path, cpus: frozenset[int]) -> frozenset[int]:
    """One CPU per core: hardware threads of one core share its vector units."""
    firsts: dict[str, int] = {}
    for cpu in sorted(cpus):
        path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        firsts.setdefault(host.text(root, path) or f"{cpu}", cpu)
    return frozenset(firsts.values())


def _node_of(cpus: Iterable[int], nodes: dict[int, tuple[int, ...]]) -> int | None:
    found = [node for node, of_node in nodes.items() if set(cpus) <= set(of_node)]
    return found[0] if found else None


@functools.cache
def _say_once(message: str) -> None:
    logger.warning(message)
