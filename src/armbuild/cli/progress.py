"""What a person sees while a command works: one line per step on stderr, with the time it took."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def logs(work: Path, *, shown: bool) -> Iterator[None]:
    """Show the logs that the tools left in ``work`` when the block ends, however it ends."""
    try:
        yield
    finally:
        for log in sorted(work.glob("*.log")) if shown else ():
            print(f"--- {log.name}\n{log.read_text(errors='replace')}", file=sys.stderr)


class Progress:
    """Steps, printed as they run; ``seconds`` keeps the time of each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._live = sys.stderr.isatty()

    @contextlib.contextmanager
    def step(self, name: str, detail: str = "") -> Iterator[None]:
        """Show ``name`` while the block runs, and its time afterwards."""
        start = time.monotonic()
        if self._live:
            print(f"  {name:<8}{detail} ...", end="\r", file=sys.stderr, flush=True)
        try:
            yield
        except BaseException:
            self._end(name, f"{detail}: failed" if detail else "failed", start)
            raise
        self._end(name, detail, start)

    def note(self, text: str) -> None:
        """Print a line that belongs to no step."""
        print(f"{self._clear}  {text}", file=sys.stderr, flush=True)

    def _end(self, name: str, detail: str, start: float) -> None:
        seconds = time.monotonic() - start
        self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 2)
        print(f"{self._clear}  {name:<8}{seconds:7.1f} s  {detail}", file=sys.stderr, flush=True)

    @property
    def _clear(self) -> str:
        return "\r\x1b[K" if self._live else ""
