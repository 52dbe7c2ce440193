"""What the engine has done and where its time went."""

from __future__ import annotations

import dataclasses
import time

PHASES = ("schedule", "model", "sample", "detokenize")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What loading took. peak_bytes: the most that the process ever had in memory, mapped pages included.

    rounding_error: of the quantized matrices that had to be rounded again, the largest ||w' - w|| / ||w||.
    """

    seconds: float
    weight_bytes: int
    peak_bytes: int
    rounding_error: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineStats:
    """A snapshot. What counts sequences counts each of a request's ``n``; totals are since the start.

    num_running, num_waiting: sequences now. num_preemptions: how often one had to give its blocks back.
    num_prompt_tokens, num_generation_tokens: of requests taken in, and given out. num_prefix_queries,
    num_prefix_hits: prompt tokens looked for and found in the prefix cache. num_blocks, num_used_blocks: of
    the KV cache, of ``block_size`` tokens each; those that only the prefix cache remembers are free.
    cache_dtype: what it holds.
    num_steps; seconds: their time by phase (`PHASES`). load: what loading the weights took.
    """

    num_running: int
    num_waiting: int
    num_preemptions: int
    num_prompt_tokens: int
    num_generation_tokens: int
    num_prefix_queries: int
    num_prefix_hits: int
    num_blocks: int
    num_used_blocks: int
    block_size: int
    cache_dtype: str
    num_steps: int
    seconds: dict[str, float]
    load: LoadReport

    @property
    def kv_cache_usage(self) -> float:
        """The part of the KV cache that sequences hold, from 0 to 1."""
        return self.num_used_blocks / self.num_blocks


class Stopwatch:
    """Adds up the seconds of each phase. One call ends a phase and begins the next: steps have several."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._phase: str | None = None
        self._since = 0.0

    def begin(self, phase: str | None) -> None:
        """What follows is of this phase; None: of no phase."""
        now = time.perf_counter()
        if self._phase is not None:
            self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now
