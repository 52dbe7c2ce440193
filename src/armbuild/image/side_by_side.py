"""Jobs side by side, each in a Python process, because an audit holds the interpreter's lock.

A job's process stands outside the terminal's process group: Ctrl-C reaches this process alone, which asks the
others to end (SIGTERM) and waits until they have removed what they half made.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import selectors
import signal
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from armbuild.errors import MissingError
from armbuild.signals import interrupt_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

START = (
    "import sys; parent = int(sys.argv[1]); sys.path[:] = sys.argv[2:];"
    "from armbuild.image.side_by_side import main; sys.exit(main(parent))"
)
"""The modules come from where this process has them, whatever lies in the current folder."""

PR_SET_PDEATHSIG = 1
"""prctl(2)"""


def run(jobs: Mapping[str, Callable[[], object]], *, log: Path) -> None:
    """Run all ``jobs`` (name -> a picklable function without arguments) at once, to their ends.

    What a job returns is dropped: it leaves its result in a file. The first exception of a job ends the
    others and is raised here; its traceback is in ``log``. MissingError names a job whose process was killed.
    """
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        with log.open("ab") as sink, selectors.DefaultSelector() as answers:
            for name, job in jobs.items():
                children[name] = _start(job, sink)
                answers.register(cast("BinaryIO", children[name].stdout), selectors.EVENT_READ, name)
            while answers.get_map():
                for key, _ in answers.select():
                    answers.unregister(key.fileobj)
                    _finish(key.data, children[key.data], log)
    finally:
        for child in children.values():
            child.terminate()  # which does nothing to one that has ended
        for child in children.values():
            child.wait()
            cast("BinaryIO", child.stdout).close()


def _start(job: Callable[[], object], log: BinaryIO) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", START, str(os.getpid()), *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )
    with contextlib.suppress(BrokenPipeError), cast("BinaryIO", child.stdin) as stdin:
        pickle.dump(job, stdin)
    return child


def _finish(name: str, child: subprocess.Popen[bytes], log: Path) -> None:
    answer = cast("BinaryIO", child.stdout).read()
    status = child.wait()
    if answer:
        raise pickle.loads(answer)  # noqa: S301 - our own process wrote it
    if status:
        raise MissingError(f"{name}: killed (status {status}), perhaps because memory ran out\n  log: {log}")


def main(parent: int) -> int:
    """Run the job on standard input; an exception goes to standard output."""
    interrupt_once()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # a parent that is killed asks nobody to end
    if os.getppid() != parent:  # it was killed before
        return 1
    answer, sys.stdout = sys.stdout.buffer, sys.stderr
    try:
        job: Callable[[], Any] = pickle.load(sys.stdin.buffer)  # noqa: S301 - our own process wrote it
        job()
    except KeyboardInterrupt:
        return 1
    except Exception as error:  # noqa: BLE001 - it is raised again where it can be told
        traceback.print_exc()
        answer.write(pickle.dumps(error))
        return 1
    return 0
