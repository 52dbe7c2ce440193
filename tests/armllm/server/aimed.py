"""`armllm serve` in which one process gets a signal at a chosen moment: AIM="loading rank1 SIGKILL".

`python aimed.py serve ARGUMENTS…` starts its engine by this file too, as rank0, which starts rank1. A
rank sends the signal to itself, and rank 1 to the server if that is the victim.
"""

import functools
import os
import signal
import sys
import time

import psutil

ROLE = sys.argv[1]
MOMENT, VICTIM, SIGNAL = os.environ["AIM"].split()
LONG = 60.0  # seconds


def strike():
    """Send the signal, and say so before. Who sends it to the server is stopped, and can't end by itself."""
    os.write(2, f"{SIGNAL} for {VICTIM} while {ROLE} is {MOMENT}\n".encode())
    os.kill(os.getpid() if ROLE == VICTIM else int(os.environ["SERVER"]), signal.Signals[SIGNAL])
    if ROLE != VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)


def strike_at(owner, name, number, fits=lambda *_: True):
    """Strike within the call of a method with this number, of those that fit."""
    method, calls = getattr(owner, name), []

    @functools.wraps(method)
    def call(self, *arguments, **options):
        calls.extend([1] * fits(*arguments))
        if len(calls) == number:
            calls.append(1)
            strike()
        return method(self, *arguments, **options)

    setattr(owner, name, call)


def after_stop(wait):
    """Rank 0 does not wait before rank 1 is stopped: on a busy machine it would be late without it."""

    def wait_after_stop(self):
        while psutil.Process(*self.pids).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        wait(self)

    return wait_after_stop


def aim():
    """Rank 0 has sent the others the step, or the states for logits, before it calls these."""
    from armllm.checkpoint.weights import LoadingWeights  # noqa: PLC0415 - the server has none of it
    from armllm.engine.model_runner import ModelRunner  # noqa: PLC0415
    from armllm.engine.recording import RecordedDecode  # noqa: PLC0415
    from armllm.engine.runner import StepInput  # noqa: PLC0415
    from armllm.layers.attention import Attention  # noqa: PLC0415

    match MOMENT:
        case "loading":
            strike_at(LoadingWeights, "read", 3)
        case "computing-a-prompt":
            strike_at(Attention, "attend", 2, lambda query, _: len(query) > 1)
        case "decoding":
            strike_at(RecordedDecode, "_run", 3)
        case "making-logits":
            strike_at(ModelRunner, "_compute_own", 1, lambda x: not isinstance(x, StepInput))


if ROLE == VICTIM or (ROLE, VICTIM) == ("rank1", "serve"):
    aim()
if ROLE == "serve":
    from armllm.cli import main
    from armllm.server import draining, engine_process

    os.environ["SERVER"] = str(os.getpid())
    engine_process.COMMAND = [sys.executable, __file__, "rank0"]
    if SIGNAL == "SIGKILL":
        draining.FAILED_SECONDS = LONG  # the test asks for its health, and ends it then
    sys.exit(main(sys.argv[1:]))
elif ROLE == "rank0":
    from armllm.engine import followers
    from armllm.server import engine_host

    followers.COMMAND = [sys.executable, __file__, "rank1"]
    if (MOMENT, SIGNAL) == ("loading", "SIGSTOP"):
        followers.LOAD_SECONDS = 0  # rank 1 gets as long as rank 0 took
        followers.Followers.wait = after_stop(followers.Followers.wait)
    engine_host.main(int(sys.argv[2]))
else:
    from armllm.engine import ranks

    ranks.main(*map(int, sys.argv[2:]))
