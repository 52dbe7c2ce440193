"""Environments for programs that don't go with the packages of the tests."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from packaging.requirements import Requirement


def python_with(folder, package, *others):
    """The interpreter of a new environment with a package and what it asks for, ``NAME==VERSION`` and others.

    It also has the packages of this environment, torch among them: what is asked for of torch and its
    neighbors would be built for GPUs.
    """
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    purelib = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip()
    paths = [path for path in sys.path if path.endswith("site-packages")]
    Path(purelib, "tests.pth").write_text("\n".join(dict.fromkeys([*paths, sysconfig.get_path("purelib")])))
    _install(python, "--no-deps", package)
    [found] = importlib.metadata.distributions(name=package.split("==")[0], path=[purelib])
    wanted = [Requirement(text) for text in found.requires or ()]
    _install(
        python,
        *others,
        *(
            f"{one.name}{'[' + ','.join(one.extras) + ']' if one.extras else ''}{one.specifier}"
            for one in wanted
            if (one.marker is None or one.marker.evaluate({"extra": ""})) and not one.name.startswith("torch")
        ),
    )
    return python


def run(command, **options):
    """A program that succeeds, with what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done


def result_of(done):
    """The JSON that a program prints after RESULT."""
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def _install(python, *options):
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options]
    run(command)
