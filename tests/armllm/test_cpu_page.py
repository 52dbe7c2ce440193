"""Every command of vLLM's page on CPUs, in cpu_page.toml, is one that works here, or has a reason.

Servers that answer under the page's variables are in server/test_cpu_page.py, builds of the image in
tests/armbuild/image/test_real_engines.py, suites in bench/test_suite.py, examples in engine/test_examples.py.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer.main
from packaging.requirements import Requirement
from typer.core import TyperGroup

from armbuild.image import entrypoint
from armllm import environment
from armllm.cli import app

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker/Dockerfile.cpu").read_text()
COMMANDS = tomllib.loads(Path(__file__).with_name("cpu_page.toml").read_text())["command"]
READ = {
    "VLLM_CPU_KVCACHE_SPACE": environment.kv_cache_bytes,
    "VLLM_CPU_OMP_THREADS_BIND": environment.threads_binding,
    "VLLM_CPU_NUM_OF_RESERVED_CPU": environment.reserved_cpus,
}
OF_THE_HUB = {"HF_TOKEN"}  # huggingface_hub reads it
PLACEHOLDERS = re.compile(r"<[^>]*>| \.\.\.| 2>&1 .*| other vLLM .*")


@pytest.mark.parametrize("command", COMMANDS, ids=[command["vllm"][:60] for command in COMMANDS])
def test_a_command_of_the_page_works_or_has_a_reason(command, monkeypatch):
    if "reason" in command:
        assert "ours" not in command
        assert len(command["reason"].split()) >= 3
        return
    words = shlex.split(command["ours"])
    while "=" in words[0]:  # variables of this command alone, which a build may ignore
        words = words[1:]
    CHECKS[words[0]](words[1:], monkeypatch)


@pytest.mark.parametrize("command", [command for command in COMMANDS if "ours" in command])
def test_names_are_unchanged(command):
    """A flag of vLLM's command is one of ours; the suite's variables are options."""
    if "run-performance-benchmarks" in command["vllm"] or command["vllm"].startswith("python "):
        return
    theirs = shlex.split(PLACEHOLDERS.sub("", command["vllm"]).replace("vllm serve", "armllm serve"))
    flags = {word.partition("=")[0] for word in theirs if word.startswith("-")}
    assert flags <= {word.partition("=")[0] for word in shlex.split(command["ours"])}
    assert theirs[0] == shlex.split(command["ours"])[0]


def armllm(words, _monkeypatch):
    found = typer.main.get_command(app)
    while isinstance(found, TyperGroup):
        found, words = found.get_command(None, words[0]), words[1:]
    with found.make_context("armllm", list(words)) as context:
        assert context.params


def export(words, monkeypatch):
    name, _, value = words[0].partition("=")
    unset = READ[name]()
    monkeypatch.setenv(name, value)
    assert READ[name]() not in (unset, None), f"{name} does nothing"


def docker(words, monkeypatch):
    words = [word for word in words if word != "buildx"]
    docker_build(words[1:]) if words[0] == "build" else docker_run(words[1:], monkeypatch)


def docker_build(words):
    parser = argparse.ArgumentParser(exit_on_error=False)
    for option in ("-f", "--platform", "--tag", "--target"):
        parser.add_argument(option, dest=option.strip("-"))
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument("context")
    parsed = parser.parse_args(words)
    assert (ROOT / parsed.f).read_text() == DOCKERFILE
    assert f" AS {parsed.target}\n" in DOCKERFILE
    for argument in parsed.build_arg:
        assert re.search(rf"^ARG {argument.partition('=')[0]}\b", DOCKERFILE, re.MULTILINE)


def docker_run(words, monkeypatch):
    parser = argparse.ArgumentParser(exit_on_error=False)
    for option in ("--security-opt", "--cap-add", "--shm-size", "-p"):
        parser.add_argument(option)
    parser.add_argument("--rm", action="store_true")
    parser.add_argument("-e", "--env", action="append", default=[])
    parser.add_argument("-v", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parsed = parser.parse_args(words)
    for mount in parsed.v:
        assert f"HF_HOME={mount.partition(':')[2]} " in DOCKERFILE
    if parsed.p:
        assert f"EXPOSE {parsed.p.partition(':')[2]}\n" in DOCKERFILE
    for variable in parsed.env:
        if variable.partition("=")[0] not in OF_THE_HUB:
            export([variable], monkeypatch)
    served = entrypoint.with_model(parsed.arguments, {"ARMLLM_MODEL": "own"})
    armllm(["serve", *entrypoint.with_host(served)], monkeypatch)


def uv(words, _monkeypatch):
    assert words[:2] == ["pip", "install"]
    assert "--no-build-isolation" in words
    built_with = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for needed in map(Requirement, built_with):
        if needed.marker is None or needed.marker.evaluate():
            assert importlib.metadata.version(needed.name), "without isolation it must be installed"


def python(words, _monkeypatch):
    assert (ROOT / words[0]).is_file()


CHECKS = {
    "armllm": armllm,
    "docker": docker,
    "export": export,
    "python": python,
    "uv": uv,
}
