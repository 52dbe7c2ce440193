#!/usr/bin/env python3
"""Kill random processes of servers that have several ranks, at random moments, and look at what is left.

    python tools/soak_ranks.py src/armllm/smoke/model --kills 500

Each round starts a server with two ranks and clients. `--tensor-parallel-size` and `--pipeline-parallel-size`
take turns. Then one process gets SIGKILL, or a rank SIGSTOP. The moment is a random one, while the server
loads or under requests. Rank 0 is the engine's process; it is not stopped while it loads. A round fails if

- the server does not end in time, with status 70, and with a sentence that names the rank and the signal,
- a client waits for longer,
- a process of the server, its port, or a file in its temporary folder or in /dev/shm is left.

The clients send short prompts, prompts of several hundred tokens, and requests for log-probabilities, so that
a signal also meets prompts and logits. The moments and victims come from `--seed`. Prints a line for each
failure and for every 50 kills. A summary tells how long after a SIGKILL of a rank the log named it, and how
long after it no process was left. A server that has failed answers /health with 503 for a second first.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 10.0
"""Seconds that a rank may let others wait (`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`).

On a busy machine a rank has no core for some of them.
"""
ENDS = 12.0
"""Seconds until nothing may be left. The machine is slower with more servers beside."""
LOOK = 0.2
"""Seconds that count for one look at what is left."""
READY = 400.0
"""Seconds until a server answers, on a machine with ten times the work of its cores."""
MARK = "SOAK_RANKS_ROUND"
NAMED = "was ended by signal 9"
RANKS = {"engine": "rank 0", "rank": "rank 1"}


def has_mark(process: psutil.Process, mark: str) -> bool:
    """Whether a process runs whose environment has the mark of a round."""
    with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is not ours
        return bool(process.environ().get(MARK) == mark) and process.status() != psutil.STATUS_ZOMBIE
    return False


def processes(mark: str) -> list[psutil.Process]:
    """All of these."""
    return [process for process in psutil.process_iter() if has_mark(process, mark)]


def described(process: psutil.Process) -> str:
    """A process that is left, and what it does: its state, where in Linux it waits, and its CPU time."""
    with contextlib.suppress(psutil.Error, OSError):
        where = Path(f"/proc/{process.pid}/wchan").read_text()
        used = sum(process.cpu_times()[:2])
        return f"{process.pid} {' '.join(process.cmdline())[-60:]} ({process.status()} {where}, {used:.1f} s)"
    return f"{process.pid}, which has just ended"


def wait(holds: Callable[[], object], seconds: float) -> bool:
    """Whether a condition comes true within some seconds.

    Where others have the cores, a look takes longer than `LOOK`, and the server gets no core either. So no
    more than that counts.
    """
    last = time.monotonic()
    while not holds():
        if seconds < 0:
            return False
        time.sleep(0.02)
        now = time.monotonic()
        seconds -= min(now - last, LOOK)
        last = now
    return True


class Client(threading.Thread):
    """Sends requests until the server is gone, and remembers how long the longest read took."""

    def __init__(self, port: int, index: int) -> None:
        super().__init__(daemon=True)
        self.port, self.index, self.answers = port, index, 0
        self.refused = ""
        self.start()

    def run(self) -> None:
        while True:
            # The prompts differ from the start: none is computed already.
            prompt = f"{self.index} {self.answers} Hello"
            body = {
                "prompt": prompt if self.index % 3 else prompt + " world" * 300,
                "max_tokens": 40,
                "ignore_eos": True,
                "stream": self.index % 2 == 0,
                "logprobs": 5 if self.index % 3 == 1 else None,
            }
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                connection.request(
                    "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
                )
                answer = connection.getresponse()
                text = answer.read()
                if answer.status == 400:
                    self.refused = text.decode()
            except (OSError, http.client.HTTPException):
                return
            finally:
                connection.close()
            self.answers += 1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Round:
    """One server, one victim."""

    def __init__(self, model: str, by: str, randomness: random.Random) -> None:
        self.mark, self.port, self.lines = uuid.uuid4().hex, free_port(), list[str]()
        self.noticed = 0.0  # when the first line named a rank and a signal
        self.gone = 0.0  # when no process was left
        self.loaded = 0.0  # seconds that loading took, if the round waited for it
        self.seconds: tuple[float, float] | None = None  # from the kill of a rank to these
        self.random = randomness
        self.folder = tempfile.TemporaryDirectory()
        command = [
            sys.executable, "-m", "armllm", "serve", model, "--port", str(self.port),
            f"--{by}-parallel-size", "2", "--disable-uvicorn-access-log",
        ]  # fmt: skip
        environment = {
            **os.environ, MARK: self.mark, "TMPDIR": self.folder.name,
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(PATIENCE),
        }  # fmt: skip
        self.started = time.monotonic()
        self.server = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.server.stderr is not None  # noqa: S101 - a pipe
        for line in self.server.stderr:
            if not self.noticed and NAMED in line:
                self.noticed = time.monotonic()
            self.lines.append(line)

    def ready(self) -> bool:
        return self.server.poll() is not None or any(
            re.search(r"on http://\S+:\d+$", line) for line in self.lines
        )

    def victim(self) -> tuple[str, psutil.Process | None]:
        """One of the server's processes: what it is, by its place among them."""
        if self.server.poll() is not None:
            return "none", None
        top = psutil.Process(self.server.pid)
        engines = top.children()
        ranks = [rank for engine in engines for rank in engine.children()]
        kinds = [("server", [top]), ("engine", engines), ("rank", ranks)]
        kind, found = self.random.choice([each for each in kinds if each[1]])
        return kind, self.random.choice(found)

    def run(self, load_time: float) -> tuple[str, str | None]:
        """What was done, and what was wrong after it."""
        loading = self.random.random() < 0.25
        if loading:
            time.sleep(self.random.uniform(0.05, load_time))
        elif not wait(self.ready, READY):
            found = "; ".join(map(described, processes(self.mark)))
            return "start", f"not ready in {READY} s: {found}; {self.lines[-2:]}"
        else:
            self.loaded = time.monotonic() - self.started
            clients = [Client(self.port, index) for index in range(self.random.choice([1, 4, 16]))]
            time.sleep(self.random.uniform(0, 1.5))
        when = "loading" if loading and not self.ready() else "serving"
        try:
            kind, process = self.victim()
        except psutil.Error:
            kind, process = "none", None
        if process is None:
            return f"{when} none", f"ended before: {self.lines[-3:]}"
        may_stop = kind == "rank" or (kind == "engine" and not loading)
        what = signal.SIGSTOP if may_stop and self.random.random() < 0.2 else signal.SIGKILL
        # A rank that is stopped while all are idle is noticed at the next step only, so there has to be one.
        begun = time.monotonic()
        process.send_signal(what)
        done = f"{when} {kind} {what.name}"
        if what == signal.SIGSTOP and when == "loading" and wait(self.ready, READY):
            Client(self.port, 0)  # it had loaded just before
        wrong = self.look(kind, what, when)
        if self.noticed and self.gone and kind in RANKS:
            self.seconds = self.noticed - begun, self.gone - begun
        if not loading:
            if not wait(lambda: not any(client.is_alive() for client in clients), 5):
                wrong = wrong or "a client still waits"
            wrong = wrong or next((f"refused: {each.refused}" for each in clients if each.refused), None)
        return done, wrong

    def look(self, kind: str, what: signal.Signals, when: str) -> str | None:
        """What is wrong within some seconds after the signal."""
        seconds = (
            ENDS
            + (PATIENCE if what == signal.SIGSTOP else 0)
            + (READY if what == signal.SIGSTOP and when == "loading" else 0)
        )
        if not wait(lambda: not processes(self.mark), seconds):
            left = "; ".join(map(described, processes(self.mark)))
            return f"left after {seconds} s: {left}; {self.lines[-2:]}"
        self.gone = time.monotonic()
        self.server.wait()
        self.reader.join(5)
        text, status = "".join(self.lines), self.server.returncode
        if files := sorted(each.name for each in Path(self.folder.name).iterdir()):
            return f"files are left: {files}"
        try:
            socket.create_server(("127.0.0.1", self.port)).close()
        except OSError as error:
            return f"the port {self.port} is left: {error}"
        if kind == "server":  # nobody is left to say anything
            return None
        named = f"{RANKS[kind]} {NAMED if what == signal.SIGKILL else 'did not'}"
        checks = {
            f"status {status}": status != (70 if when == "serving" else status or 70),
            "a traceback": "Traceback" in text,
            "no sentence": named not in text,
        }
        wrong = [name for name, found in checks.items() if found]
        return f"{', '.join(wrong)}: {text[-400:]}" if wrong else None

    def clean(self) -> None:
        """Leave nothing of the server."""
        for process in processes(self.mark):
            process.kill()
        self.server.kill()
        self.server.wait()
        self.folder.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # not without cleaning up
    done: collections.Counter[str] = collections.Counter()
    failures, load_time, seconds = 0, 4.0, list[tuple[float, float]]()
    before = set(Path("/dev/shm").iterdir())  # noqa: S108 - looked at only
    with contextlib.suppress(KeyboardInterrupt):  # it tells what was done so far
        for index in range(arguments.kills):
            randomness = random.Random(f"{arguments.seed} {index}")  # noqa: S311 - no secret
            by = ("tensor", "pipeline")[index % 2]
            one = Round(arguments.model, by, randomness)
            try:
                what, wrong = one.run(load_time)
            finally:
                one.clean()
            load_time = one.loaded or load_time
            seconds += [] if one.seconds is None else [one.seconds]
            done[f"{by} {what}"] += 1
            if wrong:
                failures += 1
                print(f"round {index}: {by} {what}: {wrong}", flush=True)
            if index % 50 == 49:
                print(f"{index + 1} kills, {failures} failures so far", flush=True)
    left = set(Path("/dev/shm").iterdir()) - before  # noqa: S108 - looked at only
    for what, count in sorted(done.items()):
        print(f"{count:5} {what}")
    for what, times in zip(("named", "nothing left"), zip(*seconds, strict=True), strict=False):
        middle, most = statistics.median(times), max(times)
        print(f"{len(times)} killed ranks: {what} after {middle:.2f} s (median), {most:.2f} s at most")
    remains = sorted(map(str, left)) or "nothing"
    print(f"{done.total()} kills, {failures} failures, left in /dev/shm: {remains}")
    raise SystemExit(bool(failures or left))


if __name__ == "__main__":
    main()
