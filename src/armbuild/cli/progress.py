"""The progress of a command: one line per step on stderr, with the time it took.

While a step runs, a terminal shows its time and what its program wrote last; a pipe gets that twice a minute.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, ClassVar

from armbuild.errors import one_line
from armbuild.host import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextlib.contextmanager
def logs(work: Path, *, shown: bool) -> Iterator[None]:
    """Show the logs that the tools left in ``work`` when the block ends, however it ends."""
    try:
        yield
    finally:
        for log in sorted(work.glob("*.log")) if shown else ():
            with log.open(errors="replace") as lines:
                print(f"--- {log.name}", *map(one_line, lines), sep="\n", file=sys.stderr)


class Progress:
    """Steps, printed as they end, and while they run; ``seconds`` keeps the time of each."""

    every = 30.0
    """Seconds between lines in a pipe."""

    quiet: ClassVar[bool] = False
    """Set by -q, for every command."""

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
        plain = not self._console.is_terminal
        ending = f"{detail}: failed" if detail else "failed"
        start = time.monotonic()
        try:
            with progress.Progress(
                *columns, console=self._console, transient=True, disable=plain or self.quiet
            ) as live:
                task = live.add_task(detail)

                def show(text: str) -> None:
                    if plain:
                        self.note(f"{name:<8}{time.monotonic() - start:7.0f} s  {text or detail}")
                    else:
                        room = max(10, self._console.width - 24)
                        live.update(task, description=f"{detail}  {text}"[:room])

                with _watched(self.every if plain else 0.5, show):
                    yield
            ending = detail
        except KeyboardInterrupt:
            ending = f"{detail}: interrupted" if detail else "interrupted"
            raise
        finally:
            seconds = time.monotonic() - start
            self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 2)
            self.note(f"{name:<8}{seconds:7.1f} s  {ending}")

    def note(self, text: str) -> None:
        """Print a line that belongs to no step."""
        if self.quiet:
            return
        self._console.print(f"  {one_line(text)}", markup=False, highlight=False, emoji=False)


@contextlib.contextmanager
def _watched(seconds: float, show: Callable[[str], None]) -> Iterator[None]:
    """Call ``show`` with what programs wrote last, as often as ``seconds`` say, while the block runs."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            show(process.latest_line())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
