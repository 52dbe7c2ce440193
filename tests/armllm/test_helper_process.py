"""A helper imports this program's modules, not the current folder's, and what is tied to a process ends."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shlex
import signal
import subprocess
import sys
import threading

import pytest

from armllm.helper_process import HelperProcess, TiedProcess, python_module

DEADLINE = 60.0
PATTERNS = "armllm.checkpoint.patterns"


def test_nothing_is_imported_from_the_current_folder(tmp_path):
    for name in ("json", "armllm", "runpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    done = subprocess.run(
        python_module("json.tool"), input="[1]", cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["[", "1", "]"])


def test_a_helper_answers_where_a_thousand_files_are_open(tmp_path):
    """It would catch select(), which takes no descriptor above 1023, and a helper that Ctrl-C ends."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    helper = HelperProcess(PATTERNS, None)
    try:
        with contextlib.ExitStack() as files:
            for number in range(1100):
                files.enter_context((tmp_path / "file").open("ab" if number else "wb"))
            answers = [helper.ask([text, "abc", False]) for text in ("a", "b")]
        assert answers == [True, False]
        os.kill(helper._process.pid, signal.SIGINT)  # Ctrl-C in a terminal goes to all
        assert [helper.ask([text, "abc", False]) for text in ("a", "b")] == answers
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_helper_whose_asker_is_gone_ends_without_a_word():
    """It would catch a traceback in the log of a server that is stopped while a grammar is compiled."""
    helper = subprocess.Popen(
        python_module(PATTERNS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    helper.stdout.close()
    _, said = helper.communicate(b'null\n["a", "a", false]\n', timeout=DEADLINE)
    assert (helper.returncode, said) == (-signal.SIGPIPE, b"")


def test_a_helper_works_below_limits_that_it_cannot_raise():
    """As on a cluster's login node: Python refuses to set a limit above the one that cannot be raised."""
    most = 1 << 40
    command = f"ulimit -v {most >> 10}; ulimit -t 1000; exec {shlex.join(python_module(PATTERNS))}"
    done = subprocess.run(
        ["sh", "-c", command], input='null\n["a", "a", false]\n', capture_output=True, text=True, check=False
    )
    assert (done.stdout.split()[1:], done.stderr) == (["true"], "")


def test_under_an_emulator_a_process_is_started_by_it(monkeypatch):
    monkeypatch.setenv("ARMLLM_EMULATOR", "/usr/bin/env 'a b=c'")
    command = python_module("json.tool")
    assert command[:3] == ["/usr/bin/env", "a b=c", sys.executable]
    done = subprocess.run(command, input="[1]", capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[", "1", "]"]


STOPPED = ["/bin/sh", "-c", "kill -STOP $$"]
TIES = f"""
import os, signal
from armllm.helper_process import TiedProcess
process = TiedProcess({STOPPED!r})
os.waitid(os.P_PID, process.pid, os.WSTOPPED)
print(process.pid, flush=True)
signal.pause()
"""


def has_ended(process):
    """Whether a process ends in time, whose parent need not be this one."""
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(1000 * DEADLINE))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_can_do_nothing_itself_ends_with_its_parent(number):
    """It catches one that has to look for the end, which it can't while it imports or is stopped."""
    with subprocess.Popen([sys.executable, "-c", TIES], stdout=subprocess.PIPE, text=True) as parent:
        process = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(number)
    try:
        assert has_ended(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)


def test_a_tied_process_outlives_the_thread_that_started_it():
    """It catches PR_SET_PDEATHSIG: that comes when the thread ends."""
    found = []
    thread = threading.Thread(target=lambda: found.append(TiedProcess(["/bin/sleep", "1000"])))
    thread.start()
    thread.join()
    (process,) = found
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    process.kill()
    assert process.wait() == -signal.SIGKILL
