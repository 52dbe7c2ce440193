"""Published AArch64 wheels: emulation judges the audit's table of cores (tools/judge_published.py)."""

from __future__ import annotations

import pytest

import judge_published as tool


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
@pytest.mark.parametrize(
    ("package", "cpu", "verdict"),
    [
        ("numpy", "cortex-a72", "only if dispatched"),
        ("numpy", "neoverse-v1", "yes"),
        ("tokenizers", "cortex-a53", "yes"),
        ("tokenizers", "a64fx", "yes"),
    ],
)
def test_wheels_that_run_are_not_refused(package, cpu, verdict):
    (finding,) = tool.judge(package, (cpu,))
    assert finding.outcome == "runs"
    assert finding.verdict == verdict


def test_a_yes_that_dies_and_a_no_that_runs_contradict():
    def finding(verdict, outcome):
        return tool.Finding("p", "c", verdict, (), outcome).contradicts

    assert finding("yes", "SIGILL")
    assert finding("no", "runs")
    assert not finding("no", "SIGILL")
    assert not finding("only if dispatched", "SIGILL")
    assert not finding("yes", "runs")
