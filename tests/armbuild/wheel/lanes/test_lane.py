"""A lane is one module behind one protocol: nothing else has to know it."""

import inspect
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.armbuild import wheels
from tests.armbuild.plans import planned

from armbuild.host import pythons
from armbuild.wheel import build, planning
from armbuild.wheel.lanes import LANES
from armbuild.wheel.lanes.lane import BuiltWheel, Lane


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("function", ["plan", "build"])
def test_every_lane_has_the_functions_of_the_protocol(name, function):
    wanted = list(inspect.signature(getattr(Lane, function)).parameters)[1:]
    assert list(inspect.signature(getattr(LANES[name], function)).parameters) == wanted


def test_a_lane_that_is_added_to_the_table_is_planned_and_built(monkeypatch, tmp_path):
    def plan(draft, find):
        return replace(draft, pythons=(find(pythons.running()),), flags=("-DANOTHER",))

    def make(plan, python, work, *, mirror, watcher):
        with watcher.step("build", "in another way"):
            path = wheels.write(work)
        return BuiltWheel(plan=plan, python=python, path=path, compiler="another", headers="")

    monkeypatch.setitem(LANES, "another", SimpleNamespace(plan=plan, build=make))
    monkeypatch.setattr(planning.platform, "machine", lambda: "x86_64")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "thing"\nversion = "1.0"\n')
    draft = planned(tmp_path, lane="cross", output=tmp_path, compile_cache="none")
    completed = LANES["another"].plan(replace(draft, lane="another"), pythons.find)
    built = build.build_wheel(completed, completed.pythons[0], tmp_path)
    assert (built.compiler, built.plan.flags) == ("another", ("-DANOTHER",))
