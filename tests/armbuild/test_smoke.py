import json
import signal

import armbuild_test_wheels as wheels
import pytest

from armbuild import isa, smoke
from armbuild.errors import UsageError

RUNS = [
    {"dtype": dtype, "requests": requests, "ok": True}
    for dtype in ("float32", "bfloat16")
    for requests in (1, 3)
]


OPS = {"rms_norm_f32": {"error": 0.0, "bound": 1e-5}}


def cpu(name):
    return smoke.check_names([name])[0]


def judge(tmp_path, name="neoverse-v1", *, status=0, report=None, said="", available=None):
    output, log = tmp_path / "out.json", tmp_path / "run.log"
    output.write_text("" if report is None else json.dumps(report))
    log.write_text(f"$ python\n{said}")
    run = smoke.Run(cpu=cpu(name), poll=lambda: status, output=output, log=log, start=0.0)
    return smoke.judge(run, status, available)


def report(name="neoverse-v1", **changes):
    kernels = isa.Isa.from_target(name).kernels()
    return {"ok": True, "kernels": kernels, "ops": OPS, "runs": RUNS, "tokens_per_second": 12.5, **changes}


def test_a_recital_with_the_right_kernels_passes(tmp_path):
    result = judge(tmp_path, report=report())
    assert result.passed
    assert result.reason == ""
    assert result.tokens_per_second == 12.5


def test_the_wrong_kernel_fails_although_the_text_is_right(tmp_path):
    wrong = report()["kernels"] | {"rms_norm_f32": "scalar"}
    result = judge(tmp_path, report=report(kernels=wrong))
    assert not result.passed
    assert "rms_norm_f32 ran scalar" in result.reason


def test_a_wheel_without_a_target_must_choose_the_next_one(tmp_path):
    available = frozenset({"scalar", "neon"})
    kernels = isa.Isa.from_target("neoverse-v1").kernels(available)
    assert judge(tmp_path, report=report(kernels=kernels), available=available).passed
    assert not judge(tmp_path, report=report(), available=available).passed


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([], "alone in float32"),
        (RUNS[:2], "alone in bfloat16"),
        ([run for run in RUNS if run["requests"] == 1], "in a batch in float32"),
        ([RUNS[0], RUNS[1], RUNS[2], RUNS[3] | {"ok": False}], "in a batch in bfloat16"),
    ],
)
def test_a_yes_that_leaves_a_part_out_is_no_yes(tmp_path, runs, reason):
    result = judge(tmp_path, report=report(runs=runs))
    assert not result.passed
    assert reason in result.reason


def test_a_yes_without_the_comparison_of_ops_is_no_yes(tmp_path):
    result = judge(tmp_path, report=report(ops={}))
    assert not result.passed
    assert "compare its ops" in result.reason


def test_a_no_is_a_no_with_its_reason(tmp_path):
    result = judge(tmp_path, status=1, report=report(ok=False, reason="bfloat16, alone: token 3"))
    assert result.reason == "bfloat16, alone: token 3"
    assert not judge(tmp_path, status=1, report=report()).passed


def test_a_traceback_becomes_a_line(tmp_path):
    said = "Traceback (most recent call last):\n  File x\nImportError: libfoo.so: cannot open\n"
    result = judge(tmp_path, status=1, said=said)
    assert "ImportError: libfoo.so: cannot open" in result.reason


@pytest.mark.parametrize("status", [-signal.SIGILL, 132])
def test_an_old_core_is_told_that_torch_needs_a_newer_one(tmp_path, status):
    result = judge(tmp_path, "cortex-a72", status=status)
    assert result.reason.startswith("torch 2.10 needs a newer core than cortex-a72")
    assert "\n" not in result.reason


def test_an_illegal_instruction_on_a_newer_core_is_not_blamed_on_torch(tmp_path):
    result = judge(tmp_path, "neoverse-n1", status=-signal.SIGILL)
    assert "SIGILL" in result.reason
    assert "torch" not in result.reason


def test_names_of_products_and_cores_reach_the_emulators_model():
    models = [known.model for known in smoke.check_names(["neoverse_v1", "graviton3", "Cortex-A72", "max"])]
    assert models == ["neoverse-v1", "neoverse-v1", "cortex-a72", "max"]


def test_a_cpu_that_nobody_knows_or_qemu_lacks_is_refused(monkeypatch):
    with pytest.raises(UsageError, match="neoverse-v1"):
        smoke.check_names(["neoverse-v11"])
    with pytest.raises(UsageError, match="QEMU has no model of neoverse-v2; it has"):
        smoke.check_names(["neoverse-v2"])
    monkeypatch.setattr(smoke.platform, "machine", lambda: "x86_64")
    with pytest.raises(UsageError, match="native"):
        smoke.check_names(["native"])


@pytest.mark.parametrize(
    ("name", "files", "reason"),
    [
        ("thing-1.0-cp311-cp311-linux_aarch64.whl", {}, "say --import NAME or --command TEXT"),
        ("armllm-1.0-cp311-cp311-linux_x86_64.whl", {}, "for another machine"),
        ("armllm-1.0-cp311-cp311-linux_aarch64.whl", {"x.so": wheels.elf("x86_64")}, "x.so is x86_64"),
    ],
)
def test_a_wheel_that_cannot_be_smoked_is_refused_in_a_line(tmp_path, name, files, reason):
    with pytest.raises(UsageError, match=reason) as caught:
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
