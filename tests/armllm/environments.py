"""Environments for programs that don't go with the packages of the tests."""

from __future__ import annotations

import importlib.metadata
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
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
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


def _install(python, *options):
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options]
    subprocess.run(command, check=True)
