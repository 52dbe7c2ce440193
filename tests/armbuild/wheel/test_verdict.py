import json
import signal
import time

import pytest

import armisa
from armbuild.wheel import cpus, verdict
from armbuild.wheel.verdict import Run

RUNS = [
    {"dtype": dtype, "requests": requests, "ok": True, "quantization": scheme}
    for dtype, requests, scheme in (
        ("float32", 1, None),
        ("float32", 3, None),
        ("bfloat16", 1, None),
        ("bfloat16", 3, None),
        ("bfloat16", 1, "int8"),
        ("bfloat16", 1, "int4-g32"),
    )
]
RUNS.append(RUNS[2] | {"kv_cache_dtype": "int8"})
RUNS += [RUNS[2] | {"model": "mixture"}, RUNS[5] | {"model": "mixture"}]


OPS = {"rms_norm_f32": {"error": 0.0, "bound": 1e-5}}


def cpu(name):
    return cpus.check_names([name])[0]


def judge(tmp_path, name="neoverse-v1", *, status=0, report=None, said="", available=None):
    output, log = tmp_path / "out.json", tmp_path / "run.log"
    output.write_text("" if report is None else json.dumps(report))
    log.write_text(f"$ python\n{said}")
    run = Run(cpu=cpu(name), poll=lambda: status, output=output, log=log, start=0.0)
    return verdict.judge(run, status, available)


def report(name="neoverse-v1", **changes):
    kernels = armisa.Isa.from_target(name).kernels()
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
    kernels = armisa.Isa.from_target("neoverse-v1").kernels(available)
    assert judge(tmp_path, report=report(kernels=kernels), available=available).passed
    assert not judge(tmp_path, report=report(), available=available).passed


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([], "alone in float32"),
        (RUNS[:2], "alone in bfloat16"),
        ([run for run in RUNS if run["requests"] == 1], "in a batch in float32"),
        ([RUNS[0], RUNS[1], RUNS[2], RUNS[3] | {"ok": False}], "in a batch in bfloat16"),
        (RUNS[:4], "weights of 8 bits"),
        ([*RUNS[:5], RUNS[5] | {"ok": False}], "weights of 4 bits"),
        ([*RUNS[:6], RUNS[6] | {"ok": False}], "KV cache of int8"),
        ([*RUNS[:2], *RUNS[3:]], "alone in bfloat16"),
        ([*RUNS[:7], RUNS[8]], "with experts"),
        (RUNS[:8], "with experts of 4 bits"),
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
def test_on_an_old_core_the_error_says_that_torch_needs_a_newer_one(tmp_path, status):
    result = judge(tmp_path, "cortex-a72", status=status)
    assert result.reason.startswith("torch 2.10 needs a newer core than cortex-a72")
    assert "\n" not in result.reason


def test_an_illegal_instruction_on_a_newer_core_is_not_blamed_on_torch(tmp_path):
    result = judge(tmp_path, "neoverse-n1", status=-signal.SIGILL)
    assert "SIGILL" in result.reason
    assert "torch" not in result.reason


def judged(tmp_path, status, *, said="", heard="", start=1e18):
    (tmp_path / "out").write_text(said)
    (tmp_path / "log").write_text(f"$ sh\n{heard}")
    run = Run(
        cpu=cpus.check_names(["neoverse-n1"])[0],
        poll=lambda: status,
        output=tmp_path / "out",
        log=tmp_path / "log",
        start=start,
    )
    return verdict.judge_status(run, status, timeout=5.0)


@pytest.mark.parametrize(
    ("status", "said", "heard", "reason"),
    [
        (1, "x\n=== 1 failed ===\n", "", "ended with status 1: === 1 failed ==="),
        (1, "", "Traceback\nImportError: libz.so", "ended with status 1: ImportError: libz.so"),
        (
            4,
            "imported it",
            "ERROR: Missing required plugins: pytest-x",
            "status 4: ERROR: Missing required plugins",
        ),
        (-signal.SIGILL, "", "", "illegal instruction"),
        (132, "", "", "illegal instruction"),
        (139, "", "", "was killed by SIGSEGV"),
        (-signal.SIGBUS, "", "", "SIGBUS on neoverse-n1: an atomic access that is not aligned"),
        (2, "", "", "it said nothing"),
    ],
)
def test_a_failure_says_how_it_ended_and_what_was_said_last(tmp_path, status, said, heard, reason):
    result = judged(tmp_path, status, said=said, heard=heard)
    assert not result.passed
    assert reason in result.reason
    assert "torch" not in result.reason


def test_success_keeps_the_last_line_wherever_it_was_written(tmp_path):
    assert judged(tmp_path, 0, said="...\n==== 250 passed ====\n").said == "250 passed"
    assert judged(tmp_path, 0, heard="Ran 5 tests\n\nOK\n").said == "OK"
    assert judged(tmp_path, 0, said="x" * 999).said == "x" * 200


def test_a_run_that_is_killed_for_its_length_says_so(tmp_path):
    assert "within 5 s" in judged(tmp_path, -signal.SIGTERM, start=0.0).reason


def test_what_a_users_test_prints_is_read_up_to_a_limit(tmp_path):
    output, log = tmp_path / "out", tmp_path / "log"
    with output.open("wb") as file:
        file.truncate(1 << 35)  # a hole takes no place
        file.seek(0, 2)
        file.write(b"\n3 passed\n")
    log.write_text("$ pytest\n")
    run = Run(cpu=cpu("neoverse-v1"), poll=lambda: 0, output=output, log=log, start=time.monotonic())
    result = verdict.judge_status(run, 0)
    assert (result.passed, result.said) == (True, "3 passed")


@pytest.mark.parametrize(
    "said",
    [
        [1], 5, "x", None, {"ok": True, "ops": 1, "runs": 5}, {"ok": True, "kernels": [1]},
        report(runs=[1]), report(runs=[{"ok": True}]), report(kernels=[["a", 1, 2]]),
        report(runs=[{"ok": True, "dtype": "float32", "requests": "x", "quantization": ["x"]}]),
    ],
)  # fmt: skip
def test_a_report_of_another_shape_is_none(tmp_path, said):
    result = judge(tmp_path, status=1, report=said, said="it broke")
    assert (result.passed, result.reason[:36]) == (False, "it ended with status 1: it broke (lo")


def test_a_report_is_read_up_to_its_limit(tmp_path):
    nested = judge(tmp_path, report={"ok": "[" * 5_000_000}, said="it broke")
    assert "it broke" in nested.reason
    assert not nested.passed


def test_a_signal_without_a_name_has_its_number(tmp_path):
    assert "killed by signal 35 after it broke" in judge(tmp_path, status=-35, said="it broke").reason
