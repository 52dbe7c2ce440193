"""The documents that pipelines read, as they were recorded: a key that is lost or changed is found.

Places, and what the running interpreter decides, are replaced by names. Where a change is meant, the failure
says which file to copy into ``documents``.
"""

import json
import os
import re
from pathlib import Path

import pytest
from tests.armbuild import wheels

from armbuild.cli import main
from armbuild.host import pythons
from armbuild.toolchain import compile_cache

ROOT = Path(__file__).parents[3]
PROJECTS = ROOT / "tests/armbuild/projects"
DOCUMENTS = Path(__file__).with_name("documents")

PLAN = ("--lane=cross", "--compile-cache=none", "--plan")
OPTIONS = (
    "--toolchain=zig", "--glibc=2.28", "-C", "a=1", "-C", "a=2", "--with=zlib1g-dev,libffi-dev",
    "--lock=lock.txt", "--baseline=neoverse-v1", "--import=fixture_scikit", "--command=run {project}",
    "--cpu=neoverse-n1", "--check-reproducible", "--no-provenance", "--env=B=2", "--env=A=1,1",
    "--build-requires=cython>=3",
)  # fmt: skip
CONTAINER = (
    "--lane=container", "--engine=podman", "--image=localhost/build:1", "--python=3.12", "--plan",
)  # fmt: skip
CONTAINER_OPTIONS = ("--toolchain=clang", "--baseline=neoverse-n1", "-C", "b=1", "--no-smoke")
CASES = {
    "plan-engine.json": ("wheel", ROOT, *PLAN, "--json"),
    "plan-engine.txt": ("wheel", ROOT, *PLAN, "--no-sve"),
    "plan-options.json": ("wheel", PROJECTS / "scikit", *PLAN, *OPTIONS, "--json"),
    "plan-options.txt": ("wheel", PROJECTS / "scikit", *PLAN, *OPTIONS),
    "plan-variant.json": (
        "wheel",
        ROOT,
        *PLAN,
        "--baseline=neoverse-n1",
        "--variant",
        "--no-smoke",
        "--json",
    ),
    "plan-container.json": ("wheel", PROJECTS / "scikit", *CONTAINER, *CONTAINER_OPTIONS, "--json"),
    "plan-container.txt": ("wheel", PROJECTS / "scikit", *CONTAINER, *CONTAINER_OPTIONS),
    "plan-two-pythons.json": ("wheel", PROJECTS / "setuptools", *CONTAINER, "--python=3.14t", "--json"),
    "plan-musl.json": (
        "wheel",
        PROJECTS / "scikit",
        *PLAN,
        "--platform=musllinux",
        "--no-smoke",
        "--json",
    ),
    "index.json": ("index", "INDEX", "WHEEL", "--commit=0123abc", "--channel=nightly", "--json"),
    "verify.json": ("verify", "WHEEL", "--json"),
    "cache.json": ("cache", "--json"),
    "detect.json": ("detect", "--target=neoverse-v1", "--json"),
    "matrix.json": ("matrix", "PROJECT"),
    "matrix-github.json": ("matrix", "PROJECT", "--format=github"),
    "audit.json": ("audit", "WHEEL", "--floor=neoverse-n1", "--json"),
    "docker-plan.json": ("docker", ROOT, "--python=3.13", "--plan", "--json"),
    "docker-plan.txt": ("docker", ROOT, "--python=3.13", "--baseline=neoverse-n1", "--plan"),
    "manylinux-plan.json": ("manylinux-image", "--python=3.11", "--with=zlib1g-dev", "--plan", "--json"),
}
CORES = ("Cortex-A53", "Neoverse-N1", "Neoverse-V1")
TABLE = """\
[project]
name = "thing"
version = "1"
requires-python = ">=3.13"
[tool.armbuild]
import = ["thing"]
cpu = ["neoverse-n1", "max"]
"""


@pytest.fixture(autouse=True)
def anywhere(tmp_path, monkeypatch):
    """A machine of no kind in particular: x86-64, without settings in the environment."""
    settings = ("ARMBUILD_", "CIBW_", "PIP_", "UV_", "SSL_", "REQUESTS_", *compile_cache.PASSED)
    for variable in list(os.environ):
        if variable.startswith(settings):
            monkeypatch.delenv(variable)
        if variable.lower().endswith("_proxy"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_document_is_the_one_that_was_recorded(name, capsys, tmp_path):
    found = normalized(document(name, capsys, tmp_path), tmp_path)
    expected = DOCUMENTS / name
    if not expected.is_file() or found != expected.read_text():
        changed = Path(tmp_path / name)
        changed.write_text(found)
        assert expected.is_file(), f"copy {changed} to {expected}"
        assert found == expected.read_text(), f"where this is meant, copy {changed} to {expected}"


def document(name, capsys, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project/pyproject.toml").write_text(TABLE)
    places = {"PROJECT": tmp_path / "project", "WHEEL": wheels.write(tmp_path), "INDEX": tmp_path / "index"}
    arguments = [str(places.get(argument, argument)) for argument in CASES[name]]
    status = main(arguments)
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def normalized(text, tmp_path):
    """Replace places, and what the running interpreter decides where no Python is named."""
    own = pythons.find()
    tag = pythons.tags(own.version)
    text = re.sub(r"=/\S*/ziglang:", "=ZIGLANG:", text)
    for place, name in ((own.executable, "PYTHON"), (tmp_path, "TMP"), (ROOT, "ROOT")):
        text = text.replace(str(place), name)
    text = re.sub(r"host-clang/[0-9a-f]+", "host-clang/DIGEST", text)
    if not text.startswith("{"):
        text = re.sub(r"(?m)^Python .*PYTHON.*$", "Python X.Y PYTHON", text)
        return text.replace(tag, "cpX-cpX") if "lane        cross" in text else text
    value = json.loads(text)
    if value.get("lane") == "cross":
        (wheel,) = value["wheels"]
        assert wheel["python"] == own.version
        wheel |= {"python": "X.Y", "headers": "HEADERS", "file": wheel["file"].replace(tag, "cpX-cpX")}
    if isinstance(ops := value.get("kernels"), dict):  # a new op or core changes no document
        value["kernels"] = {op: ops[op] for op in ("paged_attention_f16", "rms_norm_bf16")}
    for report in value.get("reports", ()):
        report["cores"] = [core for core in report["cores"] if core["core"] in CORES]
    if "revision" in value:
        value["revision"] = "COMMIT"
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
