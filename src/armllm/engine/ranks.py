"""A process that computes a part of a model: `python -m armllm.engine.ranks` is each but the first.

It loads what rank 0 says, and computes its part of every step that rank 0 sends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from armllm import environment
from armllm.engine.config import EngineConfig
from armllm.engine.followers import NO_FILE, as_error, facts
from armllm.engine.loading import WeightSource
from armllm.engine.messages import Link, Message
from armllm.engine.model_runner import ModelRunner, Part
from armllm.engine.nodes import join
from armllm.engine.pipeline import Room, named, states_of
from armllm.engine.placement import place
from armllm.errors import EngineError, RequestError
from armllm.kernels._extension import extension
from armllm.layers.stages import Stage, check_counts, even_counts
from armllm.models import read_model_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from armllm.checkpoint.config import ModelConfig

logger = logging.getLogger(__name__)
Inbox = queue.SimpleQueue[Message]


def check_processes(config: EngineConfig, model_config: ModelConfig) -> list[int]:
    """How many layers each stage has; RequestError names what several processes can't compute."""
    if config.node_rank:
        raise RequestError(f"node_rank {config.node_rank}: run `armllm serve` with --headless there")
    _check_ranks(config, model_config)
    return _layers_of_stages(config, model_config)


def _check_ranks(config: EngineConfig, model_config: ModelConfig) -> None:
    size, heads = config.tensor_parallel_size, model_config.num_kv_heads
    if size == 1:
        return
    _check_common("tensor_parallel_size", size, config, model_config)
    if not model_config.equal_heads:
        raise RequestError(
            f"tensor_parallel_size {size}: layers of {model_config.architecture} have different heads and"
            " need one process, replicas, or pipeline_parallel_size"
        )
    if heads % size:
        numbers = [f"{number}" for number in range(1, heads + 1) if heads % number == 0]
        raise RequestError(
            f"tensor_parallel_size {size} does not divide the model's {heads} key and value heads;"
            f" possible here: {', '.join(numbers)}"
        )


def _layers_of_stages(config: EngineConfig, model_config: ModelConfig) -> list[int]:
    size, layers = config.pipeline_parallel_size, model_config.num_layers
    if size == 1:
        return [layers]
    _check_common("pipeline_parallel_size", size, config, model_config)
    if size > layers:
        raise RequestError(f"pipeline_parallel_size {size} is above the model's {layers} layers")
    counts = environment.layer_partition() or even_counts(layers, size)
    check_counts(counts, layers, size)
    return counts


def _check_common(name: str, size: int, config: EngineConfig, model_config: ModelConfig) -> None:
    if model_config.is_encoder:
        raise RequestError(
            f"{name} {size}: {model_config.architecture} is an encoder and needs one process, or replicas"
            " (--data-parallel-size)"
        )
    if config.calibration is not None:
        raise RequestError(f"{name} {size}: calibration is done in one process; run `armllm quantize` first")


class FollowingStage:
    """The end of a stage above 0 (`StageEnd`)."""

    def __init__(self, stage: Stage, link: Link, inbox: Inbox) -> None:
        self.stage = stage
        self._link, self._inbox = link, inbox

    def agree(self, room: Room) -> Room:
        """As `StageEnd`'s."""
        self._link.send({"room": dataclasses.asdict(room)})
        return Room(**self._inbox.get()["room"])

    def follow(self, runner: ModelRunner) -> None:
        """Compute what rank 0 sends, as long as it does."""
        while True:
            message = self._inbox.get()
            states = runner.follow_stage(message, states_of(message))
            self._link.send(named(states))


def follow(runner: ModelRunner, ranks: extension.Ranks) -> None:
    """Compute rank 0's steps until the ranks are stopped, which is a RuntimeError."""
    while True:
        runner.follow(ranks.receive())


def load_follower(config: EngineConfig, part: Part, rank: int, size: int) -> ModelRunner:
    """A follower's part of the model; ``config`` has what rank 0 decided."""
    architecture, model_config = read_model_config(config.model_folder, config.hf_overrides)
    placement = place(rank, size)
    source = WeightSource(config, model_config.quantization)
    return ModelRunner(config, architecture, model_config, source, part._replace(node=placement.node))


def work(link: Link, inbox: Inbox, file: int, rank: int, size: int) -> None:
    """Load what the first message says, tell so, and compute until rank 0 is gone."""
    message = inbox.get()
    config = EngineConfig(**message["config"])
    if file == NO_FILE:
        be_stage(link, inbox, message, config, rank)
    ranks = extension.Ranks(file, rank, size, environment.step_seconds())
    os.close(file)
    runner = load_follower(config, Part(ranks=ranks, num_states=message["num_states"]), rank, size)
    link.send({"loaded": True})
    try:
        follow(runner, ranks)
    except RuntimeError:
        if not ranks.failure:  # else another one has failed
            raise


def be_stage(link: Link, inbox: Inbox, message: Message, config: EngineConfig, rank: int) -> None:
    """Load a stage, tell so, and compute until rank 0 is gone. ``message`` is the first one."""
    size, local = config.pipeline_parallel_size, message["local"]
    end = FollowingStage(Stage(rank, size, message["counts"], local), link, inbox)
    runner = load_follower(config, Part(end=end), rank if local > 1 else 0, local)
    link.send({"loaded": True})
    end.follow(runner)


def serve_stage(own: EngineConfig) -> None:
    """Be the stage of this machine for machine 0, with this machine's copy of the model.

    EngineError when machine 0 is gone.
    """
    if own.nnodes == 1 or not own.node_rank:
        raise RequestError("--headless is for the machines above 0: it needs --nnodes and --node-rank")
    folder = own.model_folder
    link = join(own)
    logger.info("node %d of %d is connected to %s", own.node_rank, own.nnodes, own.master_addr)
    inbox: Inbox = queue.SimpleQueue()
    gone = threading.Thread(target=receive, args=(link, inbox, _say_gone), daemon=True)
    gone.start()
    try:
        message = inbox.get()
        config = EngineConfig(**message["config"] | {"model": str(folder)})
        _compare(message, facts(folder))
        be_stage(link, inbox, message, config, own.node_rank)
    except BaseException as error:
        with contextlib.suppress(OSError):
            link.send(as_error(error))
        raise


def _compare(message: Message, here: dict[str, str]) -> None:
    for name, value in here.items():
        if message[name] != value:
            raise RequestError(f"{name} here is {value}, and at machine 0 it is {message[name]}")


def _say_gone() -> None:
    sys.stderr.write("armllm: error: machine 0 has gone: its process ended, or the network\n")
    os._exit(EngineError.status)  # threads may be within a step


def main(descriptor: int, file: int, rank: int, size: int) -> None:
    """Be a follower, and end with the process at the other end."""
    for number in (signal.SIGINT, signal.SIGTERM):  # these are for rank 0
        signal.signal(number, signal.SIG_IGN)
    link = Link(socket.socket(fileno=descriptor))
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=receive, args=(link, inbox, lambda: os._exit(1)), daemon=True).start()
    try:
        work(link, inbox, file, rank, size)
    except BaseException as error:  # noqa: BLE001 - raised again at rank 0
        with contextlib.suppress(OSError):
            link.send(as_error(error))
    finally:
        os._exit(1)  # threads may be within a step


def receive(link: Link, inbox: Inbox, end: Callable[[], None]) -> None:
    """Take messages, and end this process when there are no more, whatever the reason is."""
    try:
        while True:
            inbox.put(link.receive())
    except (EOFError, OSError, EngineError):
        pass
    except Exception:  # noqa: BLE001 - whatever a message had: nobody else would say it
        traceback.print_exc()
    finally:
        end()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
