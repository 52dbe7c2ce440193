import pytest
from tests.armbuild import wheels

from armbuild.errors import UsageError
from armbuild.wheel import cpus, smoke
from armbuild.wheel.verdict import CpuResult
from armisa.errors import IsaError


def test_names_of_products_and_cores_reach_the_emulators_model():
    models = [known.model for known in cpus.check_names(["neoverse_v1", "graviton3", "Cortex-A72", "max"])]
    assert models == ["neoverse-v1", "neoverse-v1", "cortex-a72", "max"]


def test_a_cpu_that_nobody_knows_or_qemu_lacks_is_refused(monkeypatch):
    with pytest.raises(IsaError, match="neoverse-v1"):
        cpus.check_names(["neoverse-v11"])
    with pytest.raises(UsageError, match="QEMU has no model of neoverse-v2; it has"):
        cpus.check_names(["neoverse-v2"])
    monkeypatch.setattr(cpus.platform, "machine", lambda: "x86_64")
    with pytest.raises((UsageError, IsaError), match="native"):
        cpus.check_names(["native"])


@pytest.mark.parametrize(
    ("name", "files", "reason"),
    [
        ("thing-1.0-cp311-cp311-linux_aarch64.whl", {}, "add --import NAME or --command TEXT"),
        ("armllm-1.0-cp311-cp311-linux_x86_64.whl", {}, "for another machine"),
        ("armllm-1.0-cp311-cp311-linux_aarch64.whl", {"x.so": wheels.elf("x86_64")}, "x.so is x86_64"),
    ],
)
def test_a_wheel_that_cannot_be_smoked_is_refused_in_a_line(tmp_path, name, files, reason):
    with pytest.raises((UsageError, IsaError), match=reason) as caught:
        smoke.check(wheels.write(tmp_path, name, files))
    assert "\n" not in str(caught.value)


def test_the_targets_of_a_wheel_are_those_it_states(tmp_path):
    info = {"armllm/build_info.json": b'{"schema": 1, "targets": ["scalar", "neon"]}'}
    assert smoke.kernel_targets(wheels.write(tmp_path, files=info)) == {"scalar", "neon"}
    assert smoke.kernel_targets(wheels.write(tmp_path)) is None


def test_nothing_of_the_callers_shell_reaches_the_program_under_test(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMLLM_ISA", "scalar")
    monkeypatch.setenv("LD_PRELOAD", "/x.so")
    environment = smoke.environment(tmp_path / "own", tmp_path / "site", tmp_path, emulated=True)
    assert not {"ARMLLM_ISA", "LD_PRELOAD"} & environment.keys()
    assert environment["PYTHONPATH"].startswith(str(tmp_path / "own"))


def test_a_real_core_runs_torch_as_it_is(tmp_path):
    environment = smoke.environment(tmp_path / "own", tmp_path / "site", tmp_path, emulated=False)
    assert not smoke.EMULATED.keys() & environment.keys()


def test_an_empty_report_is_no_proof():
    assert not smoke.SmokeReport(wheel="x", python="3.11", torch=None, results=()).ok


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        (
            "ModuleNotFoundError: No module named 'thing.core'",
            "\n  modules of machine code in it: thing._core",
        ),
        (
            "ModuleNotFoundError: No module named 'torch'",
            (
                "\n  modules of machine code in it: thing._core"
                "\n  if torch is another package's: --requires names that package"
            ),
        ),
        ("ImportError: x.so: undefined symbol: _ZNK3re23RE25EmptyEv", f"\n  {smoke.OF_ANOTHER_RUNTIME}"),
        ("it crashed", ""),
    ],
)
def test_a_module_that_the_wheel_lacks_is_answered_with_those_that_it_has(tmp_path, reason, more):
    result = CpuResult(
        cpu="max", passed=False, reason=reason, kernels={}, tokens_per_second=None, seconds=1.0, report=None
    )
    report = smoke.SmokeReport(wheel="thing", python="3.11", torch=None, results=(result,))
    assert smoke.explain_failure(report, wheels.write(tmp_path)) == f"max: {reason}{more}"
