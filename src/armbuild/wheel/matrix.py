"""One job per project and Python, in the form that a CI system reads."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from armbuild.errors import UsageError
from armbuild.host import pythons
from armbuild.wheel import project, settings
from armbuild.wheel.cpus import EMULATED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


INSTALL = 'pip install --quiet --config-settings=wheel.cmake=false "${ARMBUILD:?a checkout or a release}"'
"""From a place that the pipeline names: no package of an index is ours until somebody says so."""
IMAGE = "python:3.13.15-bookworm@sha256:933b46a028fd786c9c3d426ebabc237e29a15912231ea8de576e95f0e4f41a4c"
"""What GitLab's jobs run in, unless the pipeline above them names another: Debian with Python and git."""
MINUTES = 120


@dataclass(frozen=True, kw_only=True)
class Job:
    """One call of ``armbuild wheel``, which builds a wheel once and tests it on every core."""

    name: str
    project: str
    python: str
    cpus: tuple[str, ...]
    """Empty: nothing is run, for the wheel has no test."""
    command: str


def jobs(
    folders: Sequence[Path],
    environ: Mapping[str, str],
    *,
    versions: Sequence[str] = (),
    cpus: Sequence[str] = (),
) -> list[Job]:
    """Return the jobs of projects, from their ``[tool.armbuild]``, ``environ`` and what is named here.

    Raises UsageError for a folder without a project, or one that allows none of the Pythons.
    """
    found = []
    for folder in folders:
        described = project.read(folder)
        asked = settings.load(
            {"python": tuple(versions) or None, "cpu": tuple(cpus) or None},
            described.tool.get("armbuild", {}),
            environ,
            where=folder / "pyproject.toml",
        )
        wanted = described.pythons if asked.python in ((), ("all",)) else asked.python
        for version in wanted:
            if version not in pythons.KNOWN:
                raise UsageError(f"--python {version}: there are {', '.join(pythons.KNOWN)}")
        fitting = list(filter(described.supports, wanted))
        if not fitting:
            raise UsageError(f"{described.name} needs Python {described.requires_python}: no job fits")
        tested = described.is_armllm or asked.imports or asked.command
        cores = (asked.cpu or EMULATED) if asked.smoke and tested else ()
        found += [_job(described, folder, version, cores, smoke=asked.smoke) for version in fitting]
    return found


def _job(
    described: project.Project, folder: Path, version: str, cpus: tuple[str, ...], *, smoke: bool
) -> Job:
    command = ["armbuild", "wheel", str(folder), "--python", version]
    command += [word for cpu in cpus for word in ("--cpu", cpu)]
    command += [] if smoke else ["--no-smoke"]
    return Job(
        name=f"{described.name} {version}",
        project=str(folder),
        python=version,
        cpus=cpus,
        command=shlex.join(command),
    )


def _github(found: Sequence[Job]) -> Any:
    return {"include": [asdict(job) for job in found]}


def _gitlab(found: Sequence[Job]) -> Any:
    default = {
        "image": "$ARMBUILD_IMAGE",
        "timeout": f"{MINUTES} minutes",
        "before_script": [f"python -m {INSTALL}"],
        "cache": {"key": "armbuild", "paths": [".cache/armbuild/"]},
    }
    # the whole history: back ends compute versions from its tags
    variables = {
        "ARMBUILD_CACHE_DIR": "$CI_PROJECT_DIR/.cache/armbuild",
        "ARMBUILD_IMAGE": IMAGE,
        "GIT_DEPTH": "0",
    }
    return {"default": default, "variables": variables} | {
        job.name: {"script": [job.command], "artifacts": {"paths": ["dist/"], "expire_in": "1 week"}}
        for job in found
    }


def _buildkite(found: Sequence[Job]) -> Any:
    # $$: the agent, not the upload, reads the variable
    start = f"python3 -m venv .venv && .venv/bin/{INSTALL.replace('$', '$$')}"
    return {
        "steps": [
            {
                "label": job.name,
                "command": [start, f".venv/bin/{job.command}"],
                "timeout_in_minutes": MINUTES,
                "artifact_paths": ["dist/*.whl", "dist/*.json"],
            }
            for job in found
        ]
    }


def _json(found: Sequence[Job]) -> Any:
    return {"schema": 1, "jobs": [asdict(job) for job in found]}


FORMATS: dict[str, Callable[[Sequence[Job]], Any]] = {
    "github": _github,
    "gitlab": _gitlab,
    "buildkite": _buildkite,
    "json": _json,
}


def render(found: Sequence[Job], form: str) -> str:
    """Return the jobs in one of FORMATS; all are JSON, which GitLab's and Buildkite's YAML readers take."""
    return json.dumps(FORMATS[form](found), indent=None if form == "github" else 2)
