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
    """Steps, printed as they end, and on a terminal as they run; ``seconds`` keeps the time of each."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - only when a command works

        self.seconds: dict[str, float] = {}
        # FORCE_COLOR would else send control codes into a pipe.
        self._console = Console(stderr=True, force_terminal=sys.stderr.isatty(), soft_wrap=True)

    @contextlib.contextmanager
    def step(self, name: str, detail: str = "") -> Iterator[None]:
        """Show ``name`` and the time that passes while the block runs, and its time afterwards."""
        from rich import progress  # noqa: PLC0415

        what = progress.TextColumn("{task.description}", markup=False)
        columns = (progress.TextColumn(f"  {name}"), progress.TimeElapsedColumn(), what)
        silent = not self._console.is_terminal
        ending = f"{detail}: failed" if detail else "failed"
        start = time.monotonic()
        try:
            with progress.Progress(*columns, console=self._console, transient=True, disable=silent) as live:
                live.add_task(detail)
                yield
            ending = detail
        finally:
            seconds = time.monotonic() - start
            self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 2)
            self.note(f"{name:<8}{seconds:7.1f} s  {ending}")

    def note(self, text: str) -> None:
        """Print a line that belongs to no step."""
        self._console.print(f"  {text}", markup=False, highlight=False, emoji=False)
