import os
import pty
import re
import subprocess
import sys
import threading
import time

import pytest

from armbuild.cli.progress import Progress
from armbuild.host import process

LONG = "[bold]" + "word " * 40 + ":smile:"


def test_in_a_pipe_a_step_is_one_plain_line(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    progress = Progress()
    with progress.step("build", LONG):
        progress.note("waiting")
    with pytest.raises(KeyError), progress.step("audit"):
        raise KeyError
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "  waiting"
    assert re.fullmatch(rf"  build       \d+\.\d s  {re.escape(LONG)}", lines[1]), "as it was given, uncut"
    assert re.fullmatch(r"  audit       \d+\.\d s  failed", lines[2])
    assert len(lines) == 3
    assert set(progress.seconds) == {"build", "audit"}


def test_in_a_pipe_a_long_step_says_what_its_program_wrote_last(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Progress, "every", 0.1)
    script = "printf '[1/9] \\033[1mBuilding\\033[0m a.o\\n[2/9] Building b.o\\n'; sleep 1; echo end"
    with Progress().step("build", "x"):
        output = process.run(["sh", "-c", script], log=tmp_path / "log", what="it")
    assert output.endswith("end\n")
    assert "[2/9] Building b.o" in (tmp_path / "log").read_text()
    lines = capsys.readouterr().err.splitlines()
    assert any(re.fullmatch(r"  build       +\d+ s  \[2/9\] Building b\.o", line) for line in lines)
    assert process.latest_line() == ""


def test_a_step_that_was_interrupted_has_not_failed_and_quiet_says_nothing(capsys, monkeypatch):
    with pytest.raises(KeyboardInterrupt), Progress().step("build", "x"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err.endswith("x: interrupted\n")
    monkeypatch.setattr(Progress, "quiet", True)
    with Progress().step("build", "x"):
        pass
    assert capsys.readouterr().err == ""


def test_the_time_of_a_name_adds_up(capsys):
    progress = Progress()
    for _ in range(2):
        with progress.step("build"):
            time.sleep(0.01)
    assert progress.seconds["build"] >= 0.02
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_on_a_terminal_the_running_step_is_shown_with_its_time():
    leader, follower = pty.openpty()
    script = (
        "import time; from armbuild.cli.progress import Progress; progress = Progress()\n"
        "with progress.step('build', 'scikit'):\n"
        "    time.sleep(0.3); progress.note('waiting')\n"
    )
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    seen = []

    def read():
        try:
            while block := os.read(leader, 4096):
                seen.append(block)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    with subprocess.Popen([sys.executable, "-c", script], stderr=follower, env=environment) as child:
        os.close(follower)
        reader.start()
        assert child.wait(timeout=60) == 0
    reader.join()
    os.close(leader)
    text = b"".join(seen).decode()
    assert re.search(r"build\S* .*0:00:00.* scikit", text), "while it runs"
    assert "\x1b[2K" in text, "the line is taken back"
    assert re.search(r"build +0\.\d s  scikit\r?\n", text), "and stays with its time"
    assert "  waiting\r\n" in text
