"""What `tensor_parallel_size` "auto" starts on this machine: one process, ranks, or replicas.

1. One process, unless two NUMA nodes or more may compute. A node counts if it has at least half of the cores
   of the largest one, and if a limit on CPU time leaves it at least half of its cores.
2. Ranks, one for each node, if the weights don't fit a node, or if a rank reads much of each layer: the time
   for that is long beside the gathers.
3. Replicas, one for each node, if they fit, and if a server asks. Else one process.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from armisa import host
from armllm import environment
from armllm.engine.config import EngineConfig
from armllm.engine.loading import WeightSource
from armllm.engine.memory import available_memory, available_on_node, readable
from armllm.engine.placement import computing_nodes
from armllm.engine.ranks import check_processes
from armllm.errors import RequestError
from armllm.models import check_model, read_model_config
from armllm.progress import progress

if TYPE_CHECKING:
    from armllm.checkpoint.config import ModelConfig

logger = logging.getLogger(__name__)

AUTO = "auto"
NAME = "tensor_parallel_size"
LEAST_OF_LAYER = 32 << 20
"""Bytes of a layer that a rank reads. 100 GB/s take 340 µs, and the layer's five gathers and waits 60 µs."""
CACHE = 0.25
"""The least KV cache, as a part of the weights, where nobody said how large it is."""


class Spread(NamedTuple):
    """How many processes, and why. One of both numbers is 1."""

    ranks: int
    replicas: int
    reason: str

    def __str__(self) -> str:
        what = "one process"
        for count, name in ((self.ranks, "ranks"), (self.replicas, "replicas")):
            if count > 1:
                what = f"{count} {name}"
        return f"{NAME} auto: {what}, since {self.reason}"


@dataclasses.dataclass(frozen=True)
class Nodes:
    """NUMA nodes that may compute. few: why there are not more. memory: bytes that each has left."""

    count: int
    few: str
    memory: int
    machine: int

    @classmethod
    def of(cls, root: Path = Path("/"), allowed: frozenset[int] | None = None) -> Nodes:
        """Those that are worth a process each."""
        found = computing_nodes(allowed, root)
        most = max(map(len, found.values()), default=1)
        large = [node for node, cpus in found.items() if len(cpus) >= most / 2]
        few = f"{len(large) or 1} NUMA node may compute" if len(large) < 2 else ""
        quota = host.cpu_quota(root)
        filled = len(large) if quota is None else max(1, math.floor(quota / most + 0.5))
        if filled < len(large):
            few = f"the limit of {quota:g} CPUs fills {filled} of {len(large)} NUMA nodes of {most} cores"
            large = large[:filled]
        machine = available_memory(root=root)
        left = [available_on_node(node, root) for node in large]
        known = [amount for amount in left if amount is not None]
        return cls(max(1, len(large)), few, min([machine, *known]), machine)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """What a model takes: bytes of its weights, of the embedding, which all ranks have, and of a KV cache.

    sizes: numbers of ranks that can compute it. refusal: why there are no more.
    """

    weights: int
    embedding: int
    cache: int
    layers: int
    sizes: tuple[int, ...] = (1,)
    refusal: str = ""

    def bytes(self, ranks: int) -> int:
        """What each rank needs."""
        return (self.weights - self.embedding) // ranks + self.embedding + self.cache

    def of_layer(self, ranks: int) -> int:
        """What each rank reads of a layer."""
        return (self.weights - 2 * self.embedding) // self.layers // ranks

    @classmethod
    def of(cls, config: EngineConfig, most: int) -> Needs:
        """By the headers of a checkpoint. ``most``: ranks that there may be."""
        architecture, model_config = read_model_config(config.model_folder, config.hf_overrides)
        source = WeightSource(config, model_config.quantization)
        _, inventory = check_model(
            architecture, model_config, source.checkpoint, config.torch_dtype, source.quantization
        )
        cache = config.kv_cache_space()[0]
        sizes, refusal = _sizes(config, model_config, most)
        return cls(
            weights=inventory.num_bytes,
            embedding=model_config.vocab_size * model_config.hidden_size * config.torch_dtype.itemsize,
            cache=int(inventory.num_bytes * CACHE) if cache is None else cache,
            layers=model_config.num_layers,
            sizes=sizes,
            refusal=refusal,
        )


def _sizes(config: EngineConfig, model_config: ModelConfig, most: int) -> tuple[tuple[int, ...], str]:
    if model_config.pictures is not None and config.most_pictures:
        return (1,), "ranks take no pictures"
    refusals = {size: _refusal(config, model_config, size) for size in range(1, most + 1)}
    return tuple(size for size, refusal in refusals.items() if not refusal), refusals[most]


def _refusal(config: EngineConfig, model_config: ModelConfig, size: int) -> str:
    try:
        check_processes(dataclasses.replace(config, tensor_parallel_size=size), model_config)
    except RequestError as error:
        return f"{error}"
    return ""


def decide(needs: Needs, nodes: Nodes, *, replicas: bool) -> Spread:
    """The choice for ``nodes`` of which two or more may compute; ``replicas``: whether there may be such."""
    count, most = nodes.count, needs.sizes[-1]
    alone = needs.bytes(1)
    memory = f"{readable(nodes.memory)} left"
    if alone > nodes.memory:
        lack = f"weights and cache take {readable(alone)}, and a NUMA node has {memory}"
        if most > 1:
            return Spread(most, 1, lack)
        return Spread(1, 1, f"{lack}, but ranks can't compute it: {needs.refusal}")
    of_layer = needs.of_layer(count)
    reads = f"each of {count} ranks would read {readable(of_layer)} of a layer"
    if most == count and of_layer >= LEAST_OF_LAYER:
        return Spread(count, 1, f"{reads}, which takes longer than the gathers")
    why = needs.refusal if most < count else f"{reads}, too little beside the gathers"
    if not replicas:
        return Spread(1, 1, f"{why}; `armllm serve` would start {count} replicas")
    if alone * count > nodes.machine:
        return Spread(1, 1, f"{why}, and {count} replicas don't fit {readable(nodes.machine)} of memory")
    return Spread(1, count, f"{why}, and each NUMA node has {memory}, which holds a replica")


def spread_for(
    model: str,
    options: dict[str, Any],
    usage: str,
    *,
    replicas: bool = False,
    root: Path = Path("/"),
    allowed: frozenset[int] | None = None,
) -> Spread:
    """The choice for a model and the engine's options, which ask for it. It is said in one line."""
    config = EngineConfig.of(model, options | {NAME: 1}, usage)
    if config.pipeline_parallel_size > 1:
        raise RequestError(
            f"{NAME} auto and pipeline_parallel_size {config.pipeline_parallel_size} do not go together:"
            " use one of them"
        )
    if environment.threads_binding() != "auto":
        raise RequestError(
            f"{NAME} auto chooses CPUs itself: leave out VLLM_CPU_OMP_THREADS_BIND, or give a number"
        )
    nodes = Nodes.of(root, allowed)
    if nodes.count == 1:
        found = Spread(1, 1, nodes.few)
    elif config.backend != "armllm":
        found = Spread(1, 1, f"{config.backend} computes")
    else:
        found = decide(Needs.of(config, nodes.count), nodes, replicas=replicas)
        if nodes.few:
            found = found._replace(reason=f"{nodes.few}, and {found.reason}")
    (progress.line if progress.visible else logger.info)(f"{found}")
    return found


def config_of(model: str, options: dict[str, Any], usage: str = "offline") -> EngineConfig:
    """`EngineConfig.of`, with a number for "auto"."""
    if options.get(NAME) == AUTO:
        options = options | {NAME: spread_for(str(model), options, usage).ranks}
    return EngineConfig.of(model, options, usage)
