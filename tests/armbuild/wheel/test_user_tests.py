import os
import subprocess
import sys

import pytest
from tests.armbuild import wheels

from armbuild.artifact import wheelfile
from armbuild.errors import MissingError, UsageError
from armbuild.wheel import smoke
from armbuild.wheel.user_tests import UserTests, programs, script


@pytest.fixture
def site(tmp_path):
    """A folder as uv fills it: a module, a script of a package, a program of the target."""
    folder = tmp_path / "site"
    (folder / "bin").mkdir(parents=True)
    (folder / "thing.py").write_text("answer = 42\n")
    for name, content in (
        ("ask", b"#!/some/python\nimport sys, thing\nprint(thing.answer, *sys.argv[1:])\n"),
        ("native", wheels.elf() + b"rest"),
        ("foreign", wheels.elf("x86_64") + b"rest"),
    ):
        (folder / "bin" / name).write_bytes(content)
        (folder / "bin" / name).chmod(0o755)
    return folder


def run(tests, site, tmp_path):
    folder = tmp_path / "programs/cpu"
    programs(folder, [sys.executable], [], [site])
    return subprocess.run(
        [script(tests, folder, site)],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )


def test_a_module_of_the_wheel_is_imported_and_a_command_run_after_it(site, tmp_path):
    done = run(
        UserTests(imports=("thing",), command="ask 'two words' {project}", project=tmp_path), site, tmp_path
    )
    assert done.stdout == f"imported thing\n42 two words {tmp_path}\n"


def test_a_module_from_elsewhere_proves_nothing(site, tmp_path):
    for name in ("json", "sys"):
        done = run(UserTests(imports=(name,)), site, tmp_path / name)
        assert done.returncode == 1
        assert f"{name} is not part of the wheel" in done.stderr


def test_a_failing_import_ends_the_test_before_the_command(site, tmp_path):
    done = run(UserTests(imports=("nothing",), command="ask"), site, tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""


def test_the_targets_programs_go_through_the_emulator_and_the_hosts_are_left_out(site, tmp_path):
    folder = tmp_path / "programs"
    programs(folder, ["/qemu", "-L", "/root", "/root/python3.11"], ["/qemu", "-L", "/root"], [site])
    assert "/qemu -L /root " in (folder / "native").read_text()
    assert not (folder / "foreign").exists()
    assert f"-0 {folder / 'python'} /root/python3.11" in (folder / "python").read_text()
    assert (folder / "python3.11").resolve() == folder / "python"


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (UserTests(imports=("a-b",)), "--import a-b: not a module's name"),
        (UserTests(requires=("pytest",)), "there is neither"),
        (UserTests(command="pytest", requires=("pytest=8",)), "--requires pytest=8: not a requirement"),
        (UserTests(command="pytest 'x"), "--command pytest 'x"),
        (UserTests(command="pytest {project}"), "stands for nothing here"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_installed(tests, reason):
    with pytest.raises(UsageError, match=reason):
        tests.check()


def test_what_uv_installs_besides_requirements_is_left_to_it(tmp_path):
    lines = (
        str(tmp_path),
        "https://localhost/thing-1-py3-none-any.whl",
        "thing @ https://localhost/t.whl",
        "a>=1",
    )
    UserTests(command="pytest", requires=lines).check()


def test_a_program_that_nothing_brings_is_named(site, tmp_path):
    with pytest.raises(UsageError, match=r"--command pytst: none of the installed packages"):
        run(UserTests(command="pytst"), site, tmp_path)


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("thing-1.0-cp39-abi3-linux_aarch64.whl", "3.11"),
        ("thing-1.0-py3-none-linux_aarch64.whl", "3.11"),
        ("thing-1.0-cp313-cp313-linux_aarch64.whl", "3.13"),
        ("thing-1.0-cp312-abi3-linux_aarch64.whl", "3.13"),
    ],
)
def test_a_wheel_for_several_pythons_is_run_with_one_that_is_there(tmp_path, monkeypatch, name, python):
    monkeypatch.setattr(smoke.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(smoke.pythons, "running", lambda: "3.11")
    wheel = wheelfile.read(
        wheels.write(tmp_path, name, {"thing/_core.cpython-311-aarch64-linux-gnu.so": None})
    )
    assert smoke.python_for(wheel, emulated=True) == python


def test_a_wheel_for_a_python_that_cannot_be_had_is_named(tmp_path):
    wheel = wheelfile.read(wheels.write(tmp_path, "thing-1.0-cp399-abi3-linux_aarch64.whl"))
    with pytest.raises(MissingError, match="no Debian release carries"):
        smoke.python_for(wheel, emulated=True)
