"""The pipelines in ci/ and what `armbuild matrix` prints, against the CI systems' own schemas."""

import re
import subprocess
import sys
from pathlib import Path

import lark
import pytest
from groovy_parser import parser as groovy_parser

from armbuild.cli import main
from armbuild.wheel import matrix

ROOT = Path(__file__).parents[2]
CI = ROOT / "ci"
FILES = [
    ("github/action.yml", "github-actions"),
    ("github/wheels.yml", "github-workflows"),
    ("gitlab.yml", "gitlab-ci"),
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
