"""The progress of a long step, on stderr.

Only the command line shows it. A terminal has one line, which is written over. A pipe gets a line each 30 s.
rich would hide the cursor, and an engine that is killed while it loads would leave it hidden.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TERMINAL_SECONDS = 0.5
PIPE_SECONDS = 30.0


@dataclasses.dataclass(slots=True)
class _Step:
    label: str
    started: float
    activity: str = ""

    def __str__(self) -> str:
        seconds = int(time.monotonic() - self.started)
        elapsed = f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60:02} s"
        return ", ".join(filter(None, (self.label, self.activity, elapsed)))


class _Progress:
    visible = False

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def step(self, label: str) -> Iterator[None]:
        """A step that may take long; a step within a step is shown in its place."""
        step = _Step(label, time.monotonic())
        stop = threading.Event()
        self._steps.append(step)
        ticker = threading.Thread(target=self._tick, args=(step, stop), name="armllm-progress", daemon=True)
        if self.visible:
            ticker.start()
        try:
            yield
        finally:
            self._steps.remove(step)
            stop.set()
            if ticker.ident is not None:
                ticker.join()

    def update(self, activity: str) -> None:
        """Say what the innermost step does now; cheap enough for every tensor."""
        if self._steps:
            self._steps[-1].activity = activity

    def line(self, text: str) -> None:
        """A line that stays: a result on the way."""
        if self.visible:
            with self._lock:
                clear = "\r\x1b[K" if sys.stderr.isatty() else ""
                print(f"{clear}{text}", file=sys.stderr, flush=True)

    def _tick(self, step: _Step, stop: threading.Event) -> None:
        terminal = sys.stderr.isatty()
        while not stop.wait(TERMINAL_SECONDS if terminal else PIPE_SECONDS):
            with self._lock:
                if self._steps[-1:] != [step]:
                    continue
                if terminal:
                    columns = shutil.get_terminal_size().columns
                    print(f"\r{str(step)[: columns - 1]}\x1b[K", end="", file=sys.stderr, flush=True)
                else:
                    print(step, file=sys.stderr, flush=True)
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


progress = _Progress()
