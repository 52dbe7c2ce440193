"""Processes that this one starts: by a module's name, with limits for untrusted input, or tied to its life.

A limit within one process only works between two steps of Python. A process can be ended within one.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WALL_SECONDS = 60.0  # of a process that others leave little time
STACK_BYTES = 1 << 20  # less than any thread of ours has
LOWEST_PRIORITY = 10


def python_module(name: str) -> list[str]:
    """A command as ``python -m NAME``, but what lies in the current folder is not imported.

    Under QEMU a process cannot start others of its kind: `armbuild smoke` names the emulator and its CPU.
    """
    program = (
        "import sys; sys.path[:] = filter(None, sys.path); import runpy;"
        f" runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    )
    return [*shlex.split(os.environ.get("ARMLLM_EMULATOR", "")), sys.executable, "-c", program]


class TiedProcess(subprocess.Popen[bytes]):
    """A process that Linux kills when this one has ended, whatever either of them does at that moment.

    It holds one end of a pipe, and this process the other. A pipe can send a signal when its other end is
    closed (fcntl(2), O_ASYNC and F_SETSIG). So a process ends that imports, is stopped, or has no core to
    look for itself. PR_SET_PDEATHSIG would come with the end of the thread that started it, too.
    """

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
        held, tie = os.pipe()
        weakref.finalize(self, os.close, tie)
        try:
            super().__init__(command, pass_fds=[*pass_fds, held], stdin=subprocess.DEVNULL)
            with suppress(OSError):  # a sandbox may not have it
                fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(held, fcntl.F_SETOWN, self.pid)
                fcntl.fcntl(held, fcntl.F_SETFL, os.O_ASYNC)
        finally:
            os.close(held)


class HelperProcess:
    """A process of a module that calls `answer_questions`, started when needed, and again after it was ended.

    ``setup`` is the first question of each. Questions and answers are JSON. May be used by several threads.
    ``seconds``: the most that an answer may take.
    """

    def __init__(self, module: str, setup: Any, seconds: float = WALL_SECONDS) -> None:
        self._seconds = seconds
        self._module = module
        self._setup = setup
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.setup_answer: Any = None

    def ask(self, question: Any) -> Any:
        """The answer, or None if it takes more than the limits allow."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    python_module(self._module), stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
                weakref.finalize(self, _end, self._process)
                self.setup_answer = _exchange(self._process, self._setup, self._seconds)
                if self.setup_answer is None:
                    return None
            return _exchange(self._process, question, self._seconds)


def _exchange(process: subprocess.Popen[bytes], question: Any, seconds: float) -> Any:
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    line = json.dumps(question).encode() + b"\n"
    answer = b""
    try:
        with suppress(OSError):
            process.stdin.write(line)
            process.stdin.flush()
            waiting = select.poll()  # select() takes no descriptor above 1023
            waiting.register(process.stdout, select.POLLIN)
            if waiting.poll(1000 * seconds):
                answer = process.stdout.readline()
    finally:
        if not answer.endswith(b"\n"):  # else the next question would get this answer
            _end(process)
    return json.loads(answer) if answer.endswith(b"\n") else None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def answer_questions(
    prepare: Callable[[Any], tuple[Any, Callable[[Any], Any]]],
    *,
    cpu_seconds: int,
    most_bytes: int,
    prepare_bytes: int | None = None,
) -> None:
    """Be a `HelperProcess`. ``prepare(setup)`` returns its answer, and the function that answers the others.

    ``cpu_seconds``: of one answer. ``most_bytes``: of address space, beside what ``prepare`` took, which may
    take ``prepare_bytes`` (None: as much). Beyond either the kernel ends the process, or memory is refused.
    """
    _leave_others_the_cores()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # when they are gone, end without a word
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def answer_all() -> None:
        with suppress(MemoryError, RecursionError):
            answer_lines()

    def answer_lines() -> None:
        answer: Callable[[Any], Any] | None = None
        for line in sys.stdin:
            limit = int(time.process_time()) + 1 + cpu_seconds
            _limit(resource.RLIMIT_CPU, limit)
            question = json.loads(line)
            if answer is None:
                _limit(resource.RLIMIT_AS, memory()[0] + (prepare_bytes or most_bytes))
                reply, answer = prepare(question)
                _limit(resource.RLIMIT_AS, memory()[0] + most_bytes, for_good=True)
            else:
                reply = answer(question)
            print(json.dumps(reply), flush=True)

    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=answer_all)
    thread.start()
    thread.join()


def _limit(kind: int, most: int, *, for_good: bool = False) -> None:
    """Set a limit below the one that this process was started with, which cannot be raised."""
    hard = resource.getrlimit(kind)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (soft, soft if for_good else hard))


def _leave_others_the_cores() -> None:
    """Take a low priority, also among sessions."""
    with suppress(PermissionError):  # it leads a process group
        os.setsid()
    os.nice(LOWEST_PRIORITY)
    give_session_the_priority()


def give_session_the_priority() -> None:
    """Let this process's session have its priority: Linux gives each the same by default (autogroup)."""
    with suppress(OSError):  # not every kernel has it
        Path("/proc/self/autogroup").write_text(str(os.nice(0)), encoding="ascii")


def memory() -> tuple[int, int]:
    """Bytes of address space and of memory in use by this process."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - as short as it gets
        sizes = [int(pages) * resource.getpagesize() for pages in file.read().split()[:2]]
    return sizes[0], sizes[1]
