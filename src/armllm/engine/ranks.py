"""Processes that compute one model together: `python -m armllm.engine.ranks` is each but the first.

Rank 0 is the process of the engine, with scheduler, sampler and grammars. The others, its followers, load
their rows of the weights and compute every step that it sends them. They end when it does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING

from armllm import environment
from armllm.engine.loading import WeightSource
from armllm.engine.model_runner import ModelRunner
from armllm.engine.placement import place
from armllm.errors import ArmllmError, EngineError, RequestError
from armllm.helper_process import python_module
from armllm.kernels._extension import extension
from armllm.layers.ranks import INTERRUPTED
from armllm.models import read_model_config
from armllm.quant.packed import Packed

if TYPE_CHECKING:
    from collections.abc import Callable

    from armllm.checkpoint.config import ModelConfig
    from armllm.engine.config import EngineConfig

LOAD_SECONDS = 120.0  # more than a process needs to import torch
COMMAND = python_module("armllm.engine.ranks")


def check_ranks(config: EngineConfig, model_config: ModelConfig) -> None:
    """RequestError names what several ranks can't compute, and the numbers of ranks that work."""
    size, heads = config.tensor_parallel_size, model_config.num_kv_heads
    if size == 1:
        return
    if model_config.is_encoder:
        raise RequestError(f"tensor_parallel_size {size}: an encoder is computed in one process")
    if model_config.is_recurrent:
        raise RequestError(
            f"tensor_parallel_size {size}: {model_config.architecture} has recurrent layers,"
            " which are computed in one process"
        )
    if heads % size:
        numbers = [f"{number}" for number in range(1, heads + 1) if heads % number == 0]
        raise RequestError(
            f"tensor_parallel_size {size} does not divide the model's {heads} key and value heads;"
            f" possible here: {', '.join(numbers)}"
        )
    if isinstance(model_config.quantization, Packed):
        raise RequestError(
            f"tensor_parallel_size {size}: a packed folder is not cut by rank; take the model it was packed"
            f" from, {model_config.quantization.source.model}"
        )
    if config.calibration is not None:
        raise RequestError(
            f"tensor_parallel_size {size}: calibration is done in one process; run `armllm quantize` first"
        )


class Followers:
    """The ranks above 0, as rank 0 has them. They are started at once, and load what `load` says.

    ``on_failure``: called by another thread when one has ended.
    """

    def __init__(self, size: int) -> None:
        self._seconds = environment.step_seconds()
        self._started = time.monotonic()
        file = os.memfd_create("armllm-ranks")
        try:
            os.ftruncate(file, extension.Ranks.bytes(size))
            self.ranks = extension.Ranks(file, 0, size, self._seconds)
            self._connections: list[Connection] = []
            self._processes: list[subprocess.Popen[bytes]] = []
            self.on_failure: list[Callable[[], None]] = []
            self.close = weakref.finalize(self, _close, self._processes, self._connections, self.on_failure)
            for rank in range(1, size):
                self._start(rank, file)
        finally:
            os.close(file)

    def _start(self, rank: int, file: int) -> None:
        near, far = Pipe()
        self._connections.append(near)
        with far:
            numbers = (far.fileno(), file, rank, self.ranks.size)
            process = subprocess.Popen(
                [*COMMAND, *map(str, numbers)], pass_fds=[far.fileno(), file], stdin=subprocess.DEVNULL
            )
        self._processes.append(process)
        watching = threading.Thread(
            target=_watch,
            args=(process, rank, self.ranks, self._processes, self.on_failure),
            name=f"armllm-rank-{rank}",
            daemon=True,
        )
        watching.start()

    @property
    def pids(self) -> list[int]:
        """Their process ids, from rank 1 on."""
        return [process.pid for process in self._processes]

    def load(self, config: EngineConfig) -> None:
        """Have them load what ``config`` says; `wait` for it later."""
        for connection in self._connections:
            with contextlib.suppress(OSError):  # `wait` says why
                connection.send(config)

    def wait(self) -> None:
        """Return when all have loaded, or EngineError says what one of them came to.

        They get twice as long as this process took, and two minutes.
        """
        deadline = time.monotonic() + LOAD_SECONDS + (time.monotonic() - self._started)
        for rank, connection in enumerate(self._connections, 1):
            if not connection.poll(max(0, deadline - time.monotonic())):
                self.close()
                raise EngineError(f"rank {rank} did not load the model in time")
            with contextlib.suppress(EOFError, OSError):
                answer = connection.recv()
                if answer is None:
                    continue
                raise answer
            self._processes[rank - 1].wait()
            self.ranks.fail(rank + 1)
            self.check()

    def check(self) -> None:
        """EngineError if one of them has failed, with its number and the reason."""
        code = self.ranks.failure
        if not code:
            return
        reason = self._reason(code)
        self.close()
        raise EngineError(reason)

    def _reason(self, code: int) -> str:
        if code == INTERRUPTED:
            return "a step was interrupted, and the ranks no longer agree: load the model again"
        if code >= extension.Ranks.LATE:
            rank = code - extension.Ranks.LATE
            return f"rank {rank} did not answer within {self._seconds:g} seconds"
        rank = code - 1
        with contextlib.suppress(EOFError, OSError):
            connection = self._connections[rank - 1]
            if connection.poll():
                return f"rank {rank} failed: {connection.recv()}"
        status = self._processes[rank - 1].wait()
        if status < 0:
            return f"rank {rank} was ended by signal {-status} ({signal.strsignal(-status)})"
        return f"rank {rank} ended with status {status}"


def _watch(
    process: subprocess.Popen[bytes],
    rank: int,
    ranks: extension.Ranks,
    processes: list[subprocess.Popen[bytes]],
    on_failure: list[Callable[[], None]],
) -> None:
    """Stop all when one ends; a stopped process would not end by itself."""
    process.wait()
    ranks.fail(rank + 1)
    for other in list(processes):
        other.kill()
    for call in list(on_failure):
        call()


def _close(
    processes: list[subprocess.Popen[bytes]],
    connections: list[Connection],
    on_failure: list[Callable[[], None]],
) -> None:
    on_failure.clear()
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
    for connection in connections:
        connection.close()


def follow(runner: ModelRunner, ranks: extension.Ranks) -> None:
    """Compute rank 0's steps until the ranks are stopped, which is a RuntimeError."""
    while True:
        runner.follow(ranks.receive())


def load_follower(config: EngineConfig, ranks: extension.Ranks) -> ModelRunner:
    """A follower's part of the model; ``config`` has what rank 0 decided."""
    architecture, model_config = read_model_config(config.model_folder, config.hf_overrides)
    placement = place(ranks.rank, ranks.size)
    source = WeightSource(config, model_config.quantization)
    return ModelRunner(config, architecture, model_config, source, placement.node, ranks=ranks)


def follower_config(config: EngineConfig, runner: ModelRunner) -> EngineConfig:
    """The options with what rank 0 decided by them."""
    return dataclasses.replace(
        config,
        model=str(config.model_folder),
        dtype=runner.dtype,
        max_model_len=runner.max_model_len,
        num_gpu_blocks_override=runner.num_blocks,
    )


def main(descriptor: int, file: int, rank: int, size: int) -> None:
    """Be a follower: load, say so, and compute until rank 0 is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # these are for rank 0
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(descriptor)
    ranks = extension.Ranks(file, rank, size, environment.step_seconds())
    os.close(file)
    try:
        config = connection.recv()
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        runner = load_follower(config, ranks)
        connection.send(None)
        follow(runner, ranks)
    except (EOFError, ConnectionError):
        pass
    except BaseException as error:  # noqa: BLE001 - raised again at rank 0
        if not ranks.failure:  # else another one has failed
            if not isinstance(error, ArmllmError):
                error = EngineError(f"{type(error).__name__}: {error}".split("\n", 1)[0])
            with contextlib.suppress(OSError):
                connection.send(error)
    finally:
        os._exit(1)  # threads may be within a step


def _end_with(connection: Connection) -> None:
    """End this process with the one at the other end."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
