"""The steps of the pipeline files, run one after another as a runner does, on a clone of a small project.

Only the installation of armbuild is replaced, by the one that runs these tests.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

CI = Path(__file__).parents[2] / "ci"
PROJECT = Path(__file__).parent / "projects/setuptools"
PYTHON = """\
#!/bin/sh
case "$1 $2 $3" in
  "-m pip install") case "$5 $6" in *" asked-for" | *" "*/../..*build* | uv==*) ;; *) exit 9 ;; esac ;;
  "-m venv .venv" | "-m venv .publish") mkdir -p $3/bin && cp {bin}/* $3/bin/ ;;
  *) exec {python} "$@" ;;
esac
"""
PROGRAMS = {
    "armbuild": '#!/bin/sh\nexec {python} -m armbuild "$@"\n',
    "pip": '#!/bin/sh\ncase "$3 $4" in *" asked-for" | uv==*) ;; *) exit 9 ;; esac\n',
    "python": PYTHON,
    "python3": PYTHON,
    "buildkite-agent": """\
#!/bin/sh
case "$1 $2 $3" in
  "pipeline upload ") cat >uploaded.json ;;
  "secret get PYPI_TOKEN") echo secret ;;
  "artifact download dist/*.whl") test -d dist ;;
  *) exit 9 ;;
esac
""",
    "uv": '#!/bin/sh\ntest "$1" = publish && shift && echo "$UV_PUBLISH_TOKEN $*" >published\n',
}
UBUNTU = """\
Types: deb
URIs: http://archive.ubuntu.com/ubuntu/
Suites: noble noble-updates
Components: main universe
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
LAY = 'mount --bind "$1/apt" /etc/apt; mount --bind "$1/keyrings" /usr/share/keyrings; shift; exec "$@"'


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cache for the module, empty at first: zig's start-up files are compiled once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def runner(tmp_path, cache):
    """Run a step's commands in a fresh clone, on a machine with nothing but Python."""
    programs, origin, clone = tmp_path / "bin", tmp_path / "origin", tmp_path / "clone"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text.format(python=sys.executable, bin=programs))
        (programs / name).chmod(0o755)
    shutil.copytree(PROJECT, origin)
    release = sys.version_info.minor
    with (origin / "pyproject.toml").open("a") as file:
        file.write('\n[tool.armbuild]\npython = ["all"]\nimport = ["fixture_setuptools"]\ncpu = ["max"]\n')
    text = (origin / "pyproject.toml").read_text()
    text = text.replace("[project]", f'[project]\nrequires-python = ">=3.{release},<3.{release + 1}"')
    (origin / "pyproject.toml").write_text(text)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x", "-C", origin]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run(["git", "clone", "-q", origin, clone], check=True)
    commit = subprocess.check_output(["git", "-C", clone, "rev-parse", "HEAD"], text=True).strip()

    def run(*commands, **variables):
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "ARMBUILD_CACHE_DIR": str(cache),
            "ARMBUILD": "asked-for",
            **{name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))},
            **variables,
        }
        for command in commands:
            done = subprocess.run(
                [*run.machine, "bash", "-euo", "pipefail", "-c", command],
                cwd=clone,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"

    run.clone, run.commit, run.machine = clone, commit, []
    return run


@pytest.fixture
def ubuntu(tmp_path):
    """Return what a command is started with to see the packages' sources and keys of GitHub's machines."""
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "keyrings").mkdir()
    (tmp_path / "apt/sources.list.d/ubuntu.sources").write_text(UBUNTU)
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *rights, "--mount", "sh", "-ec", LAY, "sh", str(tmp_path)]


def check_wheels(clone):
    (wheel,) = (clone / "dist").glob("*.whl")
    assert "manylinux" in wheel.name
    assert wheel.with_name(f"{wheel.name}.provenance.json").is_file()


def check_published(clone, token):
    (wheel,) = (clone / "dist").glob("*.whl")
    assert (clone / "published").read_text() == f"{token} dist/{wheel.name}\n"


def check_index(clone, commit):
    check_wheels(clone)
    assert (clone / "public/commit" / commit / "simple/fixture-setuptools/index.html").is_file()
    assert (clone / "public/nightly/simple/index.json").is_file()


pytestmark = [pytest.mark.slow, pytest.mark.network]


def test_github_jobs_on_ubuntu_pass_their_outputs_on_to_an_index(runner, ubuntu):
    """It comes first, so that the cache is filled with what a machine without Debian's sources reads."""
    runner.machine = ubuntu
    jobs = yaml.safe_load((CI / "github/wheels.yml").read_text())["jobs"]
    action = yaml.safe_load((CI / "github/action.yml").read_text())
    output = runner.clone / "output"
    install = steps_of(action["runs"])
    place = {"GITHUB_ACTION_PATH": str(CI / "github"), "EXTRAS": "build", "CI": "true"}
    runner(*install, *steps_of(jobs["plan"]), GITHUB_OUTPUT=str(output), **place)
    (job,) = json.loads(output.read_text().removeprefix("matrix="))["include"]
    runner(*install, *steps_of(jobs["wheel"]), COMMAND=job["command"], **place)
    runner(*install, *steps_of(jobs["index"]), GITHUB_SHA=runner.commit, **place)
    check_index(runner.clone, runner.commit)
    (runner.clone / "dist").rename(runner.clone / "artifacts")
    runner(*steps_of(jobs["publish"]))
    assert [path.suffix for path in (runner.clone / "dist").iterdir()] == [".whl"]


def test_jenkins_stages_leave_wheels_and_an_index(runner):
    steps = re.findall(r"(?m)^\s*sh '(.*)'$", (CI / "Jenkinsfile").read_text())
    assert len(steps) == 6
    runner(*steps, GIT_COMMIT=runner.commit, UV_PUBLISH_TOKEN="secret")  # noqa: S106
    check_index(runner.clone, runner.commit)
    check_published(runner.clone, "secret")


def test_buildkite_uploads_steps_that_build(runner):
    def interpolated(command):  # as the agent does
        return command.replace("$$", "$")

    plan, wait, publish = yaml.safe_load((CI / "buildkite.yml").read_text())["steps"]
    assert (wait, publish["if"]) == ("wait", "build.tag != null")
    runner(*map(interpolated, plan["command"]))
    (step,) = json.loads((runner.clone / "uploaded.json").read_text())["steps"]
    runner(*map(interpolated, step["command"]))
    check_wheels(runner.clone)
    runner(*map(interpolated, publish["command"]))
    check_published(runner.clone, "secret")


def test_gitlab_hands_a_child_pipeline_over_that_builds(runner):
    table = yaml.safe_load((CI / "gitlab.yml").read_text())
    runner(*table[".armbuild"]["before_script"], *table["plan"]["script"])
    child = yaml.safe_load((runner.clone / table["plan"]["artifacts"]["paths"][0]).read_text())
    common = child.pop("default")
    assert child.pop("variables") == {
        "ARMBUILD_CACHE_DIR": "$CI_PROJECT_DIR/.cache/armbuild",
        "ARMBUILD_IMAGE": table["variables"]["ARMBUILD_IMAGE"],
        "GIT_DEPTH": "0",
    }
    (job,) = child.values()
    runner(*common["before_script"], *job["script"], CI="true")
    check_wheels(runner.clone)
    last = yaml.safe_load((CI / "gitlab-publish.yml").read_text())
    runner(*common["before_script"], *last["index"]["script"], CI_COMMIT_SHA=runner.commit)
    check_index(runner.clone, runner.commit)
    runner(*last["publish"]["before_script"], *last["publish"]["script"])
    check_published(runner.clone, "")


def steps_of(job):
    return [step["run"] for step in job["steps"] if "run" in step]
