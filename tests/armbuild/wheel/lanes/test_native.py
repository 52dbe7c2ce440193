"""The native lane on an AArch64 machine, which is emulated: every program of it runs under QEMU."""

import json
from pathlib import Path

import pytest
from tests.armbuild import arm_machine

from armbuild.artifact import wheelfile

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return arm_machine.make(tmp_path_factory.mktemp("machine"))


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_on_an_arm_machine_the_plan_is_native(machine):
    done = machine.armbuild("wheel", str(ROOT), "--plan", "--json", "--baseline", "neoverse-n1")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["lane"] == "native"
    assert facts["smoke"] == ["native"]
    assert facts["flags"][0].startswith("-march=armv8.2-a")


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_on_an_arm_machine_a_c_project_is_built_repaired_and_audited_with_its_own_compiler(machine):
    project = ROOT / "tests/armbuild/projects/setuptools"
    done = machine.armbuild(
        "wheel", str(project), "--no-smoke", "--json", "--output", str(machine.folder / "dist")
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["wheels"]
    assert result["lane"] == "native"
    assert "Debian" in result["compiler"]
    wheel = wheelfile.read(Path(result["path"]))
    assert wheelfile.mismatches(wheel) == []
    assert "manylinux" in wheel.path.name


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_on_an_arm_machine_our_own_kernels_are_built_and_no_second_cxx_runtime_is_linked(machine):
    done = machine.armbuild(
        "wheel", str(ROOT), "--no-smoke", "--json", "--output", str(machine.folder / "own")
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["wheels"]
    assert result["lane"] == "native"
    assert {"scalar", "neon", "dotprod", "bf16", "i8mm", "sve"} <= set(result["kernels"])
