"""What can be wrong with a description of a CPU."""

from __future__ import annotations


class IsaError(ValueError):
    """A CPU that cannot be named, read or used: an unknown name, a cpuinfo of another machine, a wrong flag.

    The message says what is wrong and what to do, in one or two lines. ``status`` is the exit status of a
    command that was given such a CPU.
    """

    status = 2
