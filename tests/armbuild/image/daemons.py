"""Programs that tests start in the background and talk to."""

import contextlib
import subprocess
import time


@contextlib.contextmanager
def running(command, log, answers):
    """Run a program until the test is done with it, once ``answers()``; what it says goes to ``log``."""
    with log.open("w") as sink:
        daemon = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + 60
        while not answers():
            assert daemon.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"{command[0]} does not answer"
            time.sleep(0.05)
        yield
    finally:
        daemon.terminate()
        daemon.wait(60)
