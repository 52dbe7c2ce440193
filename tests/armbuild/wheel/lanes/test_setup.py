"""What back ends are told: by the plan, and by the user after it."""

from pathlib import Path

import pytest
from tests.armbuild.plans import planned

from armbuild.wheel.lanes import setup

PROJECTS = Path(__file__).parents[2] / "projects"
ROOT = Path(__file__).parents[4]


def back_end_settings(folder, *asked, arguments=("--cross-file=x",)):
    plan = planned(folder, output=Path("/tmp/out"), lane="cross", config_settings=asked)  # noqa: S108
    return setup.settings(plan, Path("/f"), meson_arguments=arguments)


@pytest.mark.parametrize(
    ("asked", "arguments"),
    [
        ((), ["--cross-file=x"]),
        (("setup-args=-Da=b=c",), ["--cross-file=x", "-Da=b=c"]),
        (("setup-args=-Da=1", "setup-args=-Db=2"), ["--cross-file=x", "-Da=1", "-Db=2"]),
    ],
)
def test_meson_keeps_our_arguments_and_gets_the_users(asked, arguments):
    assert back_end_settings(PROJECTS / "meson", *asked) == {"builddir": "/f/build", "setup-args": arguments}


def test_a_users_value_takes_the_place_of_ours_and_leaves_the_others():
    usual = back_end_settings(ROOT)
    changed = back_end_settings(ROOT, "cmake.define.ARMLLM_SVE=OFF", "cmake.build-type=Debug")
    assert usual["cmake.define.ARMLLM_SVE"] == "ON"
    assert changed == usual | {"cmake.define.ARMLLM_SVE": "OFF", "cmake.build-type": "Debug"}


def test_a_key_that_stands_twice_is_a_list():
    asked = ("--build-option=-a", "=--build-option=-b", "--build-option=-c", "one=1")
    assert back_end_settings(PROJECTS / "setuptools", *asked) == {
        "--build-option": ["-a", "-b", "-c"],
        "one": "1",
    }


def test_in_a_container_a_users_value_takes_the_place_of_ours():
    plan = planned(
        ROOT,
        output=Path("/tmp/out"),  # noqa: S108
        lane="container",
        engine="podman",
        config_settings=("cmake.define.ARMLLM_SVE=OFF",),
    )
    settings = plan.container.variables["CIBW_CONFIG_SETTINGS"].split()
    assert [word for word in settings if "SVE=" in word] == ["cmake.define.ARMLLM_SVE=OFF"]
    assert "cmake.define.ARMLLM_BF16=ON" in settings
