"""The start of the program: Ctrl-C and `kill` end it without a traceback, also while its modules load."""

import signal
import sys
from typing import NoReturn


def run(arguments: list[str] | None = None) -> int:
    """Load the command line, run it and return its exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        from armllm.cli import main  # noqa: PLC0415 - it takes a while

        return main(arguments)
    except KeyboardInterrupt:
        print("armllm: interrupted", file=sys.stderr)
        return 130


def _end(number: int, _frame: object) -> NoReturn:
    """End as Ctrl-C does: what a command half wrote is removed. `armllm serve` has handlers of its own.

    In a container, the kernel drops a signal for which its first process has no handler.
    """
    for later in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(later, signal.SIG_IGN)
    print("armllm: stopped", file=sys.stderr)
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(run())
