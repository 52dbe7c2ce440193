"""Processes side by side: all of them end, whatever one of them does."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from armbuild.errors import MissingError, UsageError
from armbuild.host import cache
from armbuild.image import side_by_side


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


def meet(own, other):
    """Say that we are there, and wait for the other one to be there too."""
    own.touch()
    wait_for(other)


def refuse():
    raise UsageError("torch: a CUDA build")


def fill_for_ever(folder, began):
    """Make a folder of the cache that takes long, with a tool that takes as long."""

    def make(fresh):
        (fresh / "half").touch()
        with subprocess.Popen(["sleep", "600"]) as tool:
            began.write_text(f"{tool.pid}")
            try:
                time.sleep(600)
            finally:
                tool.kill()

    cache.fill(folder, make)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_jobs_run_at_the_same_time(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    jobs = {"one": partial(meet, one, two), "two": partial(meet, two, one)}
    side_by_side.run(jobs, log=tmp_path / "log")


def test_one_error_is_raised_as_it_was_and_ends_the_others_without_a_trace(tmp_path):
    folder, began = tmp_path / "layer", tmp_path / "began"
    jobs = {"slow": partial(fill_for_ever, folder, began), "bad": partial(wait_then_refuse, began)}
    with pytest.raises(UsageError, match=r"^torch: a CUDA build$"):
        side_by_side.run(jobs, log=tmp_path / "log")
    assert {path.name for path in tmp_path.iterdir()} == {"began", "log", "layer.lock"}
    with pytest.raises(ProcessLookupError):
        os.kill(int(began.read_text()), 0)
    assert "in refuse" in (tmp_path / "log").read_text(), "--verbose shows where"


def wait_then_refuse(began):
    wait_for(began)
    refuse()


def test_a_job_that_is_killed_is_named(tmp_path):
    with pytest.raises(MissingError, match=r"torch: killed.*memory"):
        side_by_side.run({"torch": die}, log=tmp_path / "log")


def test_an_interrupt_leaves_neither_a_process_nor_half_a_folder(tmp_path):
    folder, began = tmp_path / "layer", tmp_path / "began"

    def interrupt():
        wait_for(began)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this test runs under
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            side_by_side.run({"slow": partial(fill_for_ever, folder, began)}, log=tmp_path / "log")
    finally:
        signal.signal(signal.SIGINT, before)
    assert {path.name for path in tmp_path.iterdir()} == {"began", "log", "layer.lock"}
    with pytest.raises(ProcessLookupError):
        os.kill(int(began.read_text()), 0)


def test_jobs_end_with_a_parent_that_is_killed(tmp_path):
    folder, began = tmp_path / "layer", tmp_path / "began"
    jobs = {"slow": partial(fill_for_ever, folder, began)}
    parent = multiprocessing.get_context("fork").Process(
        target=side_by_side.run, args=(jobs,), kwargs={"log": tmp_path / "log"}
    )
    parent.start()
    wait_for(began)
    parent.kill()
    parent.join()
    deadline = time.monotonic() + 30
    while any(path.name.startswith(".layer-") for path in tmp_path.iterdir()):
        assert time.monotonic() < deadline, "the job goes on"
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(int(began.read_text()), 0)


def test_a_job_whose_parent_was_killed_while_it_started_does_not_begin(tmp_path):
    """prctl tells of a parent's end only if it comes later."""
    began = tmp_path / "began"
    child = subprocess.run(
        [sys.executable, "-c", side_by_side.START, str(os.getppid()), *sys.path],
        input=pickle.dumps(partial(Path.touch, began)), capture_output=True, check=False,
    )  # fmt: skip
    assert child.returncode == 1, child.stderr
    assert not began.exists()


def test_a_module_in_the_current_folder_is_not_taken_for_ours(tmp_path, monkeypatch):
    (tmp_path / "pickle.py").write_text("raise SystemExit('theirs')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    side_by_side.run({"fine": Path.cwd}, log=tmp_path / "log")
