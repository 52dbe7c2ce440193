"""How the program ends while its modules load, and at `kill`: in a line, without a traceback."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this test runs under
import armllm.__main__
class Slow:
    def find_spec(self, name, *_):
        if name == {module!r}:
            try:
                print("loading", flush=True)
                sys.stdin.readline()
            finally:
                print("cleaned", flush=True)
sys.meta_path.insert(0, Slow())
sys.exit(armllm.__main__.run(["run", "/nowhere", "x"]))
"""


@pytest.mark.parametrize("module", ["armllm.cli", "armllm.api.llm"])
@pytest.mark.parametrize(
    ("number", "said", "status"),
    [
        (signal.SIGINT, "armllm: interrupted\n", 130),
        (signal.SIGTERM, "armllm: stopped\n", 128 + signal.SIGTERM),
        (signal.SIGHUP, "armllm: stopped\n", 128 + signal.SIGHUP),
    ],
)
def test_a_signal_while_modules_load_is_said_in_a_line(module, number, said, status):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    program = [sys.executable, "-c", PROGRAM.format(module=module)]
    with subprocess.Popen(program, text=True, **pipes) as child:
        assert child.stdout.readline() == "loading\n"
        child.send_signal(number)
        shown, errors = child.communicate(timeout=60)
    assert (shown, errors, child.returncode) == ("cleaned\n", said, status)
