"""Plans for tests."""

from armbuild.host import pythons
from armbuild.wheel import planning, project
from armbuild.wheel.settings import Settings


def planned(folder, *, find=pythons.find, **settings):
    """The plan of the project in ``folder`` with these settings."""
    return planning.plan(Settings(**settings), project.read(folder), find=find)
