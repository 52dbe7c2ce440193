import re
import subprocess
from pathlib import Path

import pytest
from tests.armbuild import wheels

from armbuild.artifact.wheelfile import WheelFile
from armbuild.host import isolation, pythons
from armbuild.target import target_packages

REQUIRES = (
    "numpy>=1.26",
    "tomli>=2; python_version < '3.11'",
    "pywin32; sys_platform == 'win32'",
    "safetensors>=0.4; extra == 'runtime'",
    "armllm[runtime]; extra == 'engine'",
    "torch<2.11,>=2.10; platform_machine == 'aarch64' and extra == 'engine'",
    "torch>=2.10; platform_machine != 'aarch64' and extra == 'engine'",
    "Armllm[engine]; extra == 'serve'",
    "httpx[http2] @ https://example.org/httpx.whl ; extra == 'serve'",
    "ruff; extra == 'dev'",
)
WHEEL = WheelFile(
    path=Path("x"),
    name="armllm",
    version="1",
    pythons=frozenset({"cp311"}),
    abis=frozenset({"cp311"}),
    platforms=frozenset({"any"}),
    requires=REQUIRES,
)


@pytest.mark.parametrize(
    ("python", "extras", "expected"),
    [
        ("3.11", [], ["numpy>=1.26"]),
        ("3.10", [], ["numpy>=1.26", "tomli>=2"]),
        ("3.11", ["engine"], ["numpy>=1.26", "safetensors>=0.4", "torch<2.11,>=2.10"]),
        (
            "3.11",
            ["serve"],
            [
                "httpx[http2] @ https://example.org/httpx.whl",
                "numpy>=1.26",
                "safetensors>=0.4",
                "torch<2.11,>=2.10",
            ],
        ),
    ],
)
def test_requirements_are_those_of_the_target_not_of_this_machine(python, extras, expected):
    assert target_packages.requirements(WHEEL, python, extras) == expected


@pytest.mark.network
@pytest.mark.slow
def test_packages_come_for_the_target_whatever_this_machine_is(tmp_path):
    target_packages.install(["markupsafe"], "3.13", tmp_path / "site", log=tmp_path / "log")
    extension = next((tmp_path / "site").glob("markupsafe/_speedups*.so"))
    assert "cpython-313-aarch64" in extension.name


@pytest.mark.network
@pytest.mark.parametrize("python", [pythons.SUPPORTED[0], pythons.SUPPORTED[-1]])
def test_serving_on_arm_brings_a_cpu_torch_and_no_cuda_package(python):
    project = Path(__file__).parents[3] / "pyproject.toml"
    target = ["--python-platform", target_packages.PLATFORM, "--python-version", python]
    resolve = [isolation.uv_program(), "pip", "compile", "-q", "--no-header", "--no-annotate", *target]
    done = subprocess.run(
        [*resolve, "--extra", "serve", project],
        capture_output=True,
        text=True,
        check=False,
        env=isolation.clean(),
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^torch==2\.10\.\d+$", done.stdout, re.MULTILINE)
    assert not re.findall(r"^.*(?:nvidia|cuda|triton|cupy).*$", done.stdout, re.MULTILINE)


def test_a_folder_with_the_name_of_a_requirement_is_not_installed(tmp_path, monkeypatch):
    """Most checkouts have a folder ``build``."""
    commands = []
    monkeypatch.setattr(target_packages.process, "run", lambda command, **_: commands.append(command))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    wheel = tmp_path / "x-1-py3-none-any.whl"
    wheel.touch()
    packages = ["build", "./build", wheel, "y @ file:///z.whl"]
    target_packages.install(packages, "3.11", tmp_path / "site", log=tmp_path / "log")
    (command,) = commands
    assert command[command.index("--") + 1 :] == [
        "build",
        str(tmp_path / "build"),
        str(wheel),
        "y @ file:///z.whl",
    ]


def test_static_libraries_of_build_requirements_become_those_of_the_target(tmp_path, monkeypatch):
    """numpy's libnpymath.a, which scipy links, is for this machine in a build environment."""
    extension = "thing/_core.cpython-311-aarch64-linux-gnu.so"
    for name, code in (("any", b"here"), ("manylinux_2_17_aarch64", b"target")):
        files = {extension: None, "thing/lib.a": code, "thing/kept.txt": code}
        wheels.write(tmp_path, f"thing-1.0-py3-none-{name}.whl", files=files)
    wheels.write(tmp_path, "alone-1.0-py3-none-any.whl", files={extension: None, "alone.a": b"here"})
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    site, shared = tmp_path / "site", tmp_path / "shared"
    only = ["--no-deps", "--find-links", tmp_path, "--no-index", "--target", site]
    here = [tmp_path / f"{name}-1.0-py3-none-any.whl" for name in ("thing", "alone")]
    subprocess.run([isolation.uv_program(), "pip", "install", "-q", *only, *here], check=True)
    shared.hardlink_to(site / "thing/lib.a")  # as in uv's own cache
    target_packages.swap_libraries("3.11", target_packages.PLATFORM, tmp_path / "log", site)
    assert (site / "thing/lib.a").read_bytes() == b"target"
    assert shared.read_bytes() == (site / "thing/kept.txt").read_bytes() == b"here"
    assert (site / "alone.a").read_bytes() == b"here"  # no wheel for the target: a link would fail and say so


def test_a_wheel_at_hand_is_installed_whatever_its_floor_and_again_when_it_changed(tmp_path):
    """Its libraries may be newer than those of the index's wheels: the run shows whether it fits."""
    for content in (b"first", b"second"):
        files = {"near/_core.cpython-311-aarch64-linux-gnu.so": None, "near/text": content}
        wheel = wheels.write(tmp_path, "near-1.0-cp311-cp311-manylinux_2_39_aarch64.whl", files=files)
        site = target_packages.cached([str(wheel)], "3.11", host=None, log=tmp_path / "log")
        assert (site / "near/text").read_bytes() == content
