import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from armbuild.errors import BuildError, MissingError, UsageError
from armbuild.host import process


def python(code):
    return [sys.executable, "-c", textwrap.dedent(code)]


def test_a_success_returns_only_standard_output_and_logs_both(tmp_path):
    log = tmp_path / "x.log"
    said = process.run(python("import sys; print('out'); print('err', file=sys.stderr)"), log=log, what="it")
    assert said == "out\n"
    assert "out" in log.read_text()
    assert "err" in log.read_text()


def test_a_failure_names_what_failed_the_reason_and_the_log(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("a.c:1:1: error: of an earlier command\n")
    with pytest.raises(BuildError, match=r"the step failed: ValueError: wrong\n  log: .*x\.log"):
        process.run(python("raise ValueError('wrong')"), log=log, what="the step")


def test_a_script_of_many_lines_is_not_taken_for_what_it_said(tmp_path):
    script = "exit 3  # error: a word of the script\n# error: and another, of a file \udcff"
    with pytest.raises(BuildError, match="it failed: exit status 3\n"):
        process.run(["sh", "-c", script], log=tmp_path / "x.log", what="it")


def test_a_disk_that_has_no_room_for_the_log_is_named(tmp_path, monkeypatch):
    """The first line of the log is what meets a full disk: nothing has been started then."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(process, "_write_header", lambda *_: full.write(b"x"))
        with pytest.raises(MissingError, match=rf"^it: no space left on the device that holds {tmp_path}"):
            process.run(["true"], log=tmp_path / "x.log", what="it")


def test_a_missing_program_is_named(tmp_path):
    with pytest.raises(MissingError, match="no-such-program is not there"):
        process.run(["no-such-program"], log=tmp_path / "x.log", what="it")


def test_a_command_line_that_linux_does_not_take_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="it: its command line or its variables are too long"):
        process.run(["true", "x" * 200_000], log=tmp_path / "log", what="it")


def test_the_environment_given_is_the_whole_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAK", "1")
    code = "import os; print(os.environ.get('LEAK'), os.environ['OWN'])"
    assert process.run(python(code), log=tmp_path / "x.log", what="it", env={"OWN": "2"}) == "None 2\n"


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    "group", ["", ", preexec_fn=os.setpgrp", ", preexec_fn=os.setsid"], ids=["make", "ninja", "podman"]
)
def test_an_interrupt_kills_the_grandchildren_too_whatever_group_they_are_in(tmp_path, number, group):
    pids = tmp_path / "pids"
    child = (
        f"import os, subprocess, time; p = subprocess.Popen(['sleep', '60']{group}); "
        f"open({str(pids)!r}, 'w').write(f'{{p.pid}} '); time.sleep(60)"
    )
    code = f"""
        import signal
        from pathlib import Path
        from armbuild.host import process
        from armbuild.signals import interrupt_once
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this test runs under
        interrupt_once()
        process.run(["{sys.executable}", "-c", {child!r}], log=Path({str(tmp_path / "x.log")!r}), what="it")
    """
    with subprocess.Popen(python(code), stderr=subprocess.DEVNULL) as command:
        deadline = time.monotonic() + 30
        while not (pids.exists() and pids.read_text().endswith(" ")) and time.monotonic() < deadline:
            time.sleep(0.05)
        command.send_signal(number)
        assert command.wait(timeout=30) != 0
    grandchild = int(pids.read_text())
    for _ in range(100):
        if not alive(grandchild):
            break
        time.sleep(0.05)
    assert not alive(grandchild)


def test_observed_programs_run_side_by_side_and_tell_their_status(tmp_path):
    polls = [
        process.start(
            python(f"import sys; print({status}); sys.exit({status})"),
            output=tmp_path / f"{status}.out",
            log=tmp_path / f"{status}.log",
            timeout=60,
            what="it",
        ).poll
        for status in (0, 3)
    ]
    while any(poll() is None for poll in polls):
        time.sleep(0.01)
    assert [poll() for poll in polls] == [0, 3]
    assert (tmp_path / "3.out").read_text() == "3\n"


def test_a_started_program_that_hangs_is_killed_and_says_so(tmp_path):
    log = tmp_path / "x.log"
    poll = process.start(["sleep", "60"], output=tmp_path / "out", log=log, timeout=0.2, what="it").poll
    while poll() is None:
        time.sleep(0.05)
    assert poll() == -signal.SIGTERM
    assert "killed after" in log.read_text()


def test_stopping_all_ends_what_still_runs(tmp_path):
    poll = process.start(
        ["sleep", "60"], output=tmp_path / "out", log=tmp_path / "log", timeout=60, what="it"
    ).poll
    process.stop_all()
    assert poll() is not None


def test_a_question_that_fails_is_no_answer():
    assert process.succeeds(["false"]) is None
    assert process.succeeds(["no-such-program"]) is None
    assert process.succeeds(["echo", "yes"]) == "yes"
    assert os.environ.get("PATH")


def test_what_a_killed_run_left_in_its_folder_ends_and_nothing_else(tmp_path):
    (inner := tmp_path / "folder/source").mkdir(parents=True)
    command = ["sh", "-c", "trap '' TERM HUP; sleep 60 & echo ready; wait"]
    options = {"stdout": subprocess.PIPE, "start_new_session": True}
    with (
        subprocess.Popen(command, cwd=inner, **options) as left,
        subprocess.Popen(command, cwd=tmp_path, **options) as other,
    ):
        assert left.stdout.readline() == other.stdout.readline() == b"ready\n"
        process.end_leftovers(tmp_path / "folder")
        assert left.wait(10) == -signal.SIGKILL
        assert left.stdout.read() == b"", "its own children have ended too"
        assert other.poll() is None
        process.end_leftovers(tmp_path)
        assert other.wait(10) == -signal.SIGKILL
