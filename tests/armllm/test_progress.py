"""Long steps show what they do and for how long: on a terminal in one line, in a pipe now and then."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import time, armllm.progress as module
module.TERMINAL_SECONDS = module.PIPE_SECONDS = 0.05
progress = module.progress
progress.visible = {visible}
with progress.step("outer"):
    with progress.step("loading weights"):
        progress.update("layer 3")
        time.sleep(1)
        progress.line("a result")
    time.sleep(0.5)
"""


def test_a_pipe_gets_lines():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(visible=True)], stderr=subprocess.PIPE, text=True, check=True
    )
    lines = done.stderr.splitlines()
    assert "loading weights, layer 3, 0 s" in lines
    assert lines.index("a result") < lines.index("outer, 1 s")
    assert "\x1b" not in done.stderr


def test_a_terminal_has_one_line_that_is_gone_at_the_end():
    leader, follower = pty.openpty()
    subprocess.run([sys.executable, "-c", PROGRAM.format(visible=True)], stderr=follower, check=True)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert "\rloading weights, layer 3, 0 s\x1b[K" in shown
    assert "a result\r\n" in shown
    assert shown.count("\n") == 1
    assert shown.endswith("\r\x1b[K")


@pytest.mark.parametrize("arguments", [["-q"], ["--quiet"]])
def test_quiet_hides_it_and_a_library_says_nothing(arguments, monkeypatch, capsys, tmp_path):
    from armllm.cli import main  # noqa: PLC0415
    from armllm.progress import progress  # noqa: PLC0415
    from armllm.smoke.passages import MODEL  # noqa: PLC0415

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(visible=False)], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""
    text = tmp_path / "text"
    text.write_text("A wheel left the workshop. " * 40)
    options = ["quantize", str(MODEL), "--scheme", "int8", "--calibrate", str(text), "-o"]
    assert main([*options, str(tmp_path / "loud")]) == 0
    assert capsys.readouterr().err.startswith("calibrated")
    assert main([*arguments, *options, str(tmp_path / "before")]) == 0
    assert main([*options, str(tmp_path / "after"), *arguments]) == 0
    assert capsys.readouterr().err == ""
    assert not progress.visible
