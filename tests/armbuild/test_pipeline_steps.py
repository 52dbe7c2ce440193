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
  "-m pip install") test "$5" = asked-for ;;
  "-m venv .venv") mkdir -p .venv/bin && cp {bin}/armbuild .venv/bin/ && cp {bin}/pip .venv/bin/ ;;
  *) exec {python} "$@" ;;
esac
"""
PROGRAMS = {
    "armbuild": '#!/bin/sh\nexec {python} -m armbuild "$@"\n',
    "pip": '#!/bin/sh\ntest "$3" = asked-for\n',
    "python": PYTHON,
    "python3": PYTHON,
    "buildkite-agent": "#!/bin/sh\ntest \"$1 $2\" = 'pipeline upload' && cat >uploaded.json\n",
}


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
        file.write('\n[tool.armbuild]\npython = ["all"]\n')
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
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=clone,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"

    run.clone, run.commit = clone, commit
    return run


def check_wheels(clone):
    (wheel,) = (clone / "dist").glob("*.whl")
    assert "manylinux" in wheel.name
    assert wheel.with_name(f"{wheel.name}.provenance.json").is_file()


def check_index(clone, commit):
    check_wheels(clone)
    assert (clone / "public/commit" / commit / "simple/fixture-setuptools/index.html").is_file()
    assert (clone / "public/nightly/simple/index.json").is_file()


pytestmark = [pytest.mark.slow, pytest.mark.network]


def test_jenkins_stages_leave_wheels_and_an_index(runner):
    steps = re.findall(r"(?m)^\s*sh '(.*)'$", (CI / "Jenkinsfile").read_text())
    assert len(steps) == 3
    runner(*steps, GIT_COMMIT=runner.commit)
    check_index(runner.clone, runner.commit)


def test_buildkite_uploads_steps_that_build(runner):
    def interpolated(command):  # as the agent does
        return command.replace("$$", "$")

    (plan,) = yaml.safe_load((CI / "buildkite.yml").read_text())["steps"]
    runner(*map(interpolated, plan["command"]))
    (step,) = json.loads((runner.clone / "uploaded.json").read_text())["steps"]
    runner(*map(interpolated, step["command"]))
    check_wheels(runner.clone)


def test_gitlab_hands_a_child_pipeline_over_that_builds(runner):
    table = yaml.safe_load((CI / "gitlab.yml").read_text())
    runner(*table[".armbuild"]["before_script"], *table["plan"]["script"])
    child = yaml.safe_load((runner.clone / table["plan"]["artifacts"]["paths"][0]).read_text())
    common = child.pop("default")
    (job,) = child.values()
    runner(*common["before_script"], *job["script"])
    check_wheels(runner.clone)


def test_github_jobs_pass_their_outputs_on_to_an_index(runner):
    jobs = yaml.safe_load((CI / "github/wheels.yml").read_text())["jobs"]
    action = yaml.safe_load((CI / "github/action.yml").read_text())
    output = runner.clone / "output"
    runner(*(step["run"] for step in jobs["plan"]["steps"] if "run" in step), GITHUB_OUTPUT=str(output))
    (chosen,) = json.loads(output.read_text().removeprefix("matrix="))["include"]
    arguments = f"{chosen['project']} --python {chosen['python']} --no-smoke"
    steps = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    runner(*steps, ARGUMENTS=arguments, GITHUB_OUTPUT=str(output))
    assert output.read_text().endswith("wheels=dist\n")
    steps = [step["run"] for step in jobs["index"]["steps"] if "run" in step]
    runner(*steps, GITHUB_SHA=runner.commit)
    check_index(runner.clone, runner.commit)
