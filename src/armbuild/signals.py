"""What ends the program: Ctrl-C, `kill` and a terminal that closes, each once."""

from __future__ import annotations

import signal
from typing import NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt_once() -> None:
    """Make each of ENDING raise KeyboardInterrupt: children die, folders are removed.

    A second one would stop that half way, so it is ignored. So is what the caller ignores: nohup does, and a
    shell's background job.
    """

    def interrupt(_number: int, _frame: object) -> NoReturn:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
