"""Stages of a model in several processes, as rank 0 has them, and the steps that are on their way.

Rank 0 sends a step to stage 1, passes on what each stage returns to the next one, and gets the final states
from the last. So every process has one connection, to rank 0, and every stage computes the steps in the order
in which they started.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeVar

from armllm.errors import EngineError
from armllm.kernels._extension import extension
from armllm.layers.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from armllm.engine.messages import Link, Message

T = TypeVar("T")
LOAD_SECONDS = 120.0  # more than a process needs to import torch
LATE = extension.Ranks.LATE
FILLS = "slot"  # in a message that brings an adapter, for which there is no result
STATES = "states."  # and their number: the names of tensors that a stage makes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Room:
    """What the memory of a stage holds: blocks, of so many bytes each, and states of recurrent layers."""

    num_blocks: int
    block_bytes: int
    num_states: int


class StageEnd(Protocol):
    """What a model runner needs of the other stages."""

    stage: Stage

    def agree(self, room: Room) -> Room:
        """What all stages can hold; block_bytes are those of all together. EngineError if one has failed."""


class Pipeline:
    """Rank 0's end. ``links`` to the other stages are set before the first step.

    ``fail`` and ``failure`` are those of `Ranks`: a code, of which the first one stays.
    """

    rank = 0

    def __init__(self, size: int, counts: Sequence[int], seconds: float, *, local: int) -> None:
        self.size = size
        self.stage = Stage(0, size, counts, local, lambda: self.failure != 0)
        self.failure = 0
        self.links: list[Link] = []
        self._seconds = seconds
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._rooms: queue.SimpleQueue[tuple[int, Room] | None] = queue.SimpleQueue()
        self._steps: list[deque[Message]] = [deque() for _ in range(size)]  # inputs of those a stage has
        self._results: queue.SimpleQueue[tuple[Tensor, ...] | None] = queue.SimpleQueue()

    def fail(self, code: int) -> None:
        """End all waiting, now and later."""
        with self._lock:
            self.failure = self.failure or code
        self._results.put(None)
        self._rooms.put(None)

    def agree(self, room: Room) -> Room:
        """As `StageEnd`'s. The others get twice as long as this stage took, and two minutes."""
        rooms = {0: room}
        deadline = time.monotonic() + LOAD_SECONDS + (time.monotonic() - self._started)
        while len(rooms) < self.size:
            try:
                found = self._rooms.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.fail(LATE + min(set(range(self.size)) - set(rooms)))
                found = None
            rank, other = self._unless_failed(found)
            rooms[rank] = other
        agreed = Room(
            num_blocks=min(one.num_blocks for one in rooms.values()),
            block_bytes=sum(one.block_bytes for one in rooms.values()),
            num_states=min((one.num_states for one in rooms.values() if one.num_states), default=0),
        )
        for link in self.links:
            link.send({"room": dataclasses.asdict(agreed)})
        return agreed

    def start(self, step: Message, states: tuple[Tensor, ...]) -> None:
        """Let stage 1 go on with what this one has made of a step."""
        self._send(step, named(states))

    def tell(self, message: Message) -> None:
        """Let all stages hold an adapter, after the steps that were started before."""
        self._send(message, {})

    def _send(self, step: Message, states: Message) -> None:
        self._steps[1].append(step)
        try:
            self.links[0].send(step | states)
        except BlockingIOError:
            self.fail(LATE + 1)
        except OSError:  # whoever watches it says more
            self.fail(2)
        self._unless_failed(True)

    def result(self) -> tuple[Tensor, ...]:
        """The final states of the oldest step."""
        try:
            result = self._results.get(timeout=self._seconds)
        except queue.Empty:
            self.fail(LATE + max(rank for rank, steps in enumerate(self._steps) if steps))
            result = None
        return self._unless_failed(result)

    def received(self, rank: int, message: Message) -> None:
        """Take what a stage sent; called by one thread for each."""
        if "room" in message:
            self._rooms.put((rank, Room(**message["room"])))
            return
        if not self._steps[rank]:
            raise EngineError(f"rank {rank} answered a step that it does not have")
        step = self._steps[rank].popleft()
        if rank == self.size - 1:
            if FILLS not in step:
                self._results.put(states_of(message))
            return
        self._steps[rank + 1].append(step)
        try:
            self.links[rank].send(step | message)
        except BlockingIOError:
            self.fail(LATE + rank + 1)
        except OSError:
            self.fail(rank + 2)

    def _unless_failed(self, value: T | None) -> T:
        if self.failure or value is None:
            raise EngineError("the stages were stopped")
        return value


def named(states: tuple[Tensor, ...]) -> Message:
    """States as part of a message."""
    return {f"{STATES}{number}": state for number, state in enumerate(states)}


def states_of(message: Message) -> tuple[Tensor, ...]:
    """Those of a message, in order."""
    return tuple(value for name, value in sorted(message.items()) if name.startswith(STATES))
