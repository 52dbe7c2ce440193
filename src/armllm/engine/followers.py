"""The processes that compute a model together with this one, as this one has them.

Rank 0 is the process of the engine, with scheduler, sampler and grammars. The others, its followers, load
their part of the model and compute every step that it sends them. They end when it does. Either all have some
rows of every product (`layers.ranks`), or each has some of the layers (`layers.stages`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import queue
import signal
import socket
import threading
import time
import weakref
from importlib import metadata
from typing import TYPE_CHECKING, Any

from armllm import environment, errors
from armllm.engine.messages import Link, Message
from armllm.engine.nodes import Node, wait_for_nodes
from armllm.engine.pipeline import LATE, LOAD_SECONDS, Pipeline
from armllm.errors import ArmllmError, EngineError
from armllm.helper_process import TiedProcess, python_module
from armllm.kernels._extension import extension
from armllm.layers.ranks import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from armllm.engine.config import EngineConfig
    from armllm.engine.model_runner import ModelRunner

COMMAND = python_module("armllm.engine.ranks")
NO_FILE = -1


@dataclasses.dataclass
class Shared:
    """What the threads that read from followers share with `Followers`, which they must not keep alive."""

    group: extension.Ranks | Pipeline
    processes: list[TiedProcess] = dataclasses.field(default_factory=list)
    links: list[Link] = dataclasses.field(default_factory=list)
    errors: dict[int, ArmllmError] = dataclasses.field(default_factory=dict)  # by rank
    loaded: queue.SimpleQueue[int] = dataclasses.field(default_factory=queue.SimpleQueue)
    on_failure: list[Callable[[], None]] = dataclasses.field(default_factory=list)
    owner: int = dataclasses.field(default_factory=os.getpid)

    def fail(self, rank: int) -> None:
        """A follower has ended: stop all, even those that would not end by themselves."""
        self.group.fail(rank + 1)
        for process in list(self.processes):
            process.kill()
        self.loaded.put(0)
        for call in list(self.on_failure):
            call()

    def close(self) -> None:
        """Leave nothing behind. A forked process, which runs this at its exit, leaves all to its parent."""
        if os.getpid() != self.owner:
            return
        self.on_failure.clear()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        for link in self.links:
            link.close()


class Followers:
    """The ranks above 0. They are started at once, and load what `load` says.

    ``on_failure``: called by another thread when one has ended. ``nodes``: those on other machines, which
    have been started there.
    """

    def __init__(
        self, group: extension.Ranks | Pipeline, file: int = NO_FILE, nodes: Sequence[Node] = ()
    ) -> None:
        self.group = group
        self._nodes = nodes
        self._started = time.monotonic()
        self._is_loaded = False
        self._shared = Shared(group)
        self.on_failure = self._shared.on_failure
        self.close = weakref.finalize(self, self._shared.close)
        for rank in range(1, group.size):
            link = nodes[rank - 1].link if nodes else self._start(rank, file)
            link.limit_sending(environment.step_seconds())
            self._shared.links.append(link)
        if isinstance(group, Pipeline):
            group.links = self._shared.links
        for rank, link in enumerate(self._shared.links, 1):
            arguments = (link, rank, self._shared)
            threading.Thread(target=_read, args=arguments, name=f"armllm-rank-{rank}", daemon=True).start()

    def _start(self, rank: int, file: int) -> Link:
        near, far = socket.socketpair()
        with far:
            numbers = (far.fileno(), file, rank, self.group.size)
            files = [far.fileno()] if file == NO_FILE else [far.fileno(), file]
            process = TiedProcess([*COMMAND, *map(str, numbers)], files)
        self._shared.processes.append(process)
        return Link(near)

    @property
    def pids(self) -> list[int]:
        """Their process ids, from rank 1 on."""
        return [process.pid for process in self._shared.processes]

    def load(self, config: EngineConfig, num_states: int) -> None:
        """Have them load what ``config`` says; `wait` for it later. num_states: those of rank 0."""
        message: Message = {"config": dataclasses.asdict(config) | {"hf_token": None}}
        message["num_states"] = num_states
        if isinstance(self.group, Pipeline):
            message["counts"] = list(self.group.stage.counts)
            message |= facts(config.model_folder)
            message["local"] = self.group.stage.local
        for link in self._shared.links:
            with contextlib.suppress(OSError):  # `wait` says why
                link.send(message)

    def wait(self) -> None:
        """Return when all have loaded, or the error of one of them says what it came to.

        They get twice as long as this process took, and two minutes.
        """
        deadline = time.monotonic() + LOAD_SECONDS + (time.monotonic() - self._started)
        missing = set(range(1, self.group.size))
        while missing:
            try:
                missing.discard(self._shared.loaded.get(timeout=max(0, deadline - time.monotonic())))
            except queue.Empty:
                self.group.fail(LATE + min(missing))
            self.check()
        self._is_loaded = True

    def check(self) -> None:
        """Raise if one of them has failed: with its number and the reason, or what it says of loading."""
        code = self.group.failure
        if not code:
            return
        reason = self._reason(code)
        self.close()
        raise reason

    def _reason(self, code: int) -> ArmllmError:
        if code == INTERRUPTED:
            return EngineError("a step was interrupted, and the ranks no longer agree: load the model again")
        if code >= LATE:
            seconds = environment.step_seconds()
            late = f"answer within {seconds:g} seconds" if self._is_loaded else "load the model in time"
            return EngineError(f"{self._name(code - LATE)} did not {late}")
        how = self._ended(code - 1)
        error = self._shared.errors.get(code - 1)
        if error is not None and not self._is_loaded:
            return error
        return EngineError(f"{self._name(code - 1)} {how if error is None else f'failed: {error}'}")

    def _ended(self, rank: int) -> str:
        if self._nodes:
            return "has gone: its process ended, or the network between the machines"
        status = self._shared.processes[rank - 1].wait()
        if status < 0:
            return f"was ended by signal {-status} ({signal.strsignal(-status)})"
        return f"ended with status {status}"

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._nodes[rank - 1].address}" if self._nodes else f"rank {rank}"


def _read(link: Link, rank: int, shared: Shared) -> None:
    """Take what a follower says until it says no more."""
    try:
        while True:
            message = link.receive()
            if "error" in message:
                shared.errors[rank] = error_of(message)
            elif "loaded" in message:
                shared.loaded.put(rank)
            elif isinstance(shared.group, Pipeline):
                shared.group.received(rank, message)
    except (EOFError, OSError):
        pass
    except (EngineError, KeyError, TypeError) as error:
        shared.errors[rank] = EngineError(f"its messages make no sense: {error}")
    shared.fail(rank)


def facts(model: Path) -> dict[str, str]:
    """What has to be the same on all machines that compute a model."""
    data = (model / "config.json").read_bytes() if model.is_dir() else f"{model.stat().st_size}".encode()
    return {"armllm": metadata.version("armllm"), "the model": hashlib.sha256(data).hexdigest()[:16]}


def as_error(error: BaseException) -> Message:
    """An error as a message."""
    if not isinstance(error, ArmllmError):
        error = EngineError(f"{type(error).__name__}: {error}".split("\n", 1)[0])
    return {"error": [type(error).__name__, str(error)]}


def error_of(message: Message) -> ArmllmError:
    """The error of a message."""
    name, text = message["error"]
    found: Any = getattr(errors, str(name), None)
    known = isinstance(found, type) and issubclass(found, ArmllmError)
    error: ArmllmError = (found if known else EngineError)(str(text))
    return error


def follower_config(config: EngineConfig, runner: ModelRunner) -> EngineConfig:
    """The options with what rank 0 decided by them."""
    return dataclasses.replace(
        config,
        model=str(config.model_folder),
        dtype=str(runner.dtype).removeprefix("torch."),
        max_model_len=runner.max_model_len,
        num_gpu_blocks_override=runner.num_blocks
        if config.tensor_parallel_size > 1
        else config.num_gpu_blocks_override,
    )


def start_followers(config: EngineConfig, counts: Sequence[int]) -> Followers | None:
    """The other processes that the options ask for; ``counts``: layers of each stage."""
    size, seconds = config.pipeline_parallel_size, environment.step_seconds()
    if size > 1:
        nodes = wait_for_nodes(config) if config.nnodes > 1 else ()
        return Followers(Pipeline(size, counts, seconds, local=config.num_local), nodes=nodes)
    size = config.tensor_parallel_size
    if size == 1:
        return None
    file = _shared_memory(extension.Ranks.bytes(size))
    try:
        return Followers(extension.Ranks(file, 0, size, seconds), file)
    finally:
        os.close(file)


def _shared_memory(num_bytes: int) -> int:
    """A file in memory, which ends with the last process that has it open."""
    try:
        file = os.memfd_create("armllm-ranks")
        try:
            os.ftruncate(file, num_bytes)
        except OSError:
            os.close(file)
            raise
    except OSError as error:
        raise EngineError(
            f"the ranks get no {num_bytes >> 20} MiB of shared memory: {error.strerror}; raise the limits on"
            " files (ulimit -f, ulimit -n), or use one process"
        ) from None
    return file
