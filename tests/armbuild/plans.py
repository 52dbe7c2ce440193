"""Plans for tests, and what was built by one."""

from pathlib import Path

from tests.armbuild import wheels

from armbuild.host import pythons
from armbuild.wheel import planning, project
from armbuild.wheel.lanes.lane import BuiltWheel
from armbuild.wheel.settings import Settings


def planned(folder, *, find=pythons.find, **settings):
    """The plan of the project in ``folder`` with these settings."""
    return planning.plan(Settings(**settings), project.read(folder), find=find)


def built_wheel(folder, **others):
    """A wheel that the cross lane made of a fixture with pybind11 in it."""
    plan = planned(Path(__file__).parent / "projects/scikit", lane="cross", output=folder / "dist")
    return BuiltWheel(
        plan=plan,
        python=plan.pythons[0],
        path=wheels.write(folder),
        compiler="zig 0.15.2",
        headers="this machine's",
        tools={"pybind11": "3.0.1", "Scikit_Build_Core": "1.1"},
        **others,
    )
