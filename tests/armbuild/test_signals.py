"""Signals end a command once: what it then cleans up is not cut short."""

import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import signal, sys, time
from armbuild.signals import interrupt_once
signal.signal(signal.SIGINT, signal.{int})
signal.signal(signal.SIGHUP, signal.{hup})
interrupt_once()
try:
    print("working", flush=True)
    sys.stdin.readline()
except KeyboardInterrupt:
    print("cleaning", flush=True)
    signal.sigtimedwait([], 0.3)
print("done", flush=True)
"""


def started(*, interrupts="default_int_handler", hang_up="SIG_DFL"):
    """Start it, whatever this test runs under: a background job of a shell ignores SIGINT."""
    program = textwrap.dedent(PROGRAM).format(int=interrupts, hup=hang_up)
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    child = subprocess.Popen([sys.executable, "-c", program], text=True, **pipes)
    assert child.stdout.readline() == "working\n"
    return child


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_stop_the_cleaning_up_after_the_first(first):
    with started() as child:
        child.send_signal(first)
        assert child.stdout.readline() == "cleaning\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            child.send_signal(number)
        assert child.communicate()[0] == "done\n"
    assert child.returncode == 0


def test_what_the_caller_ignores_stays_ignored():
    """It would catch a build under nohup that ends when its terminal is closed."""
    with started(interrupts="SIG_IGN", hang_up="SIG_IGN") as child:
        child.send_signal(signal.SIGHUP)
        child.send_signal(signal.SIGINT)
        assert child.communicate("go on\n")[0] == "done\n"
    assert child.returncode == 0
