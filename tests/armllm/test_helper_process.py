"""A helper imports this program's modules, not those of whoever wrote the current folder."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys

from armllm.helper_process import HelperProcess, python_module


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
    helper = HelperProcess("armllm.checkpoint.patterns", None)
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


def test_under_an_emulator_a_process_is_started_by_it(monkeypatch):
    monkeypatch.setenv("ARMLLM_EMULATOR", "/usr/bin/env 'a b=c'")
    command = python_module("json.tool")
    assert command[:3] == ["/usr/bin/env", "a b=c", sys.executable]
    done = subprocess.run(command, input="[1]", capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[", "1", "]"]
