"""One model over several processes, the stages: which of the layers each of them has.

Models ask `current_stage` while they are built. The first stage has embedding and head, since sampling is its
work, and the last one the final norm.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from armllm.errors import EngineError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Stage(NamedTuple):
    """One of ``size`` stages, of which ``local`` are on this machine.

    counts: layers of each, where that was decided. failed: whether to give up.
    """

    rank: int = 0
    size: int = 1
    counts: Sequence[int] = ()
    local: int = 1
    failed: Callable[[], bool] = lambda: False

    @property
    def is_first(self) -> bool:
        """Whether it has embedding and head."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether it has the final norm."""
        return self.rank == self.size - 1

    def own(self, count: int) -> range:
        """Which of ``count`` layers it has."""
        counts = self.counts or even_counts(count, self.size)
        first = sum(counts[: self.rank])
        return range(first, first + counts[self.rank])

    def layers(self, count: int) -> Iterator[int]:
        """The same, one by one, while they are loaded; EngineError if another stage has ended."""
        for index in self.own(count):
            if self.failed():
                raise EngineError("the stages were stopped")
            yield index


def even_counts(layers: int, stages: int) -> list[int]:
    """How many layers each stage gets; the last ones get one more, since the first has the head."""
    return [layers * (stage + 1) // stages - layers * stage // stages for stage in range(stages)]


def check_counts(counts: Sequence[int], layers: int, stages: int) -> None:
    """RequestError if these are not all ``layers`` of the model, at least one for each stage."""
    if len(counts) != stages or sum(counts) != layers or min(counts) < 1:
        raise RequestError(
            f"VLLM_PP_LAYER_PARTITION must be {stages} positive numbers, one per stage, whose sum is the"
            f" model's {layers} layers, not {','.join(map(str, counts))}"
        )


WHOLE = Stage()
_current: ContextVar[Stage] = ContextVar("stage", default=WHOLE)


@contextlib.contextmanager
def building_stage(stage: Stage) -> Iterator[None]:
    """Models that are made within have the layers of this stage."""
    token = _current.set(stage)
    try:
        yield
    finally:
        _current.reset(token)


def current_stage() -> Stage:
    """The stage that the model which is being built is; by default the whole of it."""
    return _current.get()
