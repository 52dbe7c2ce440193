"""Wheels of projects that are cross-built by `armbuild wheel`."""

import json
import subprocess
import sys


def run(project, folder, *options, env=None):
    """The completed command; the wheel goes to the folder."""
    command = [sys.executable, "-m", "armbuild", "wheel", project, "--lane=cross", "--json"]
    return subprocess.run(
        [*command, f"--output={folder}", *options], check=False, capture_output=True, text=True, env=env
    )


def built(project, folder, *options, env=None):
    """The report of the wheel."""
    done = run(project, folder, *options, env=env)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["wheels"]
    return result
