import inspect
import re
from pathlib import Path

import pytest

from armbuild.cli import main, options, wheel
from armbuild.errors import UsageError
from armbuild.wheel import settings

ROOT = Path(__file__).parents[3]


def load(given=None, table=None, environ=None):
    return settings.load(given or {}, table or {}, environ or {}, where="pyproject.toml")


def test_options_win_over_variables_and_these_over_the_table():
    table = {"lane": "cross", "with": ["a-dev"], "out": "one"}
    told = load(
        {"out": "three", "lane": None}, table, {"ARMBUILD_OUT": "two", "ARMBUILD_WITH": "b-dev, c-dev"}
    )
    assert (told.lane, told.packages, told.out) == ("cross", ("b-dev", "c-dev"), "three")
    assert load() == settings.Settings()


@pytest.mark.parametrize(
    ("table", "environ", "reason"),
    [
        ({"pyton": ["3.11"]}, {}, r"\[tool\.armbuild\] pyton: no such setting; did you mean python\?"),
        ({"zzz": 1}, {}, "there are python, lane"),
        ([1], {}, "must be a table"),
        ({"python": "3.11"}, {}, "python = '3.11': it must be a list of strings"),
        ({"isolation": "no"}, {}, "it must be true or false"),
        ({"lane": True}, {}, "it must be a string"),
        ({}, {"ARMBUILD_TOOLCHIAN": "gcc"}, "did you mean ARMBUILD_TOOLCHAIN"),
        ({}, {"ARMBUILD_SMOKE": "maybe"}, "ARMBUILD_SMOKE=maybe: it must be 1 or 0"),
    ],
)
def test_a_misspelled_key_or_a_wrong_value_is_named(table, environ, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        load(table=table, environ=environ)
    assert "\n" not in str(caught.value)


def test_variables_of_other_meaning_and_empty_ones_are_let_alone():
    environ = {
        "ARMBUILD_CACHE_DIR": "/x",
        "ARMBUILD_MIRROR": "http://x",
        "ARMBUILD_LANE": "",
        "ARMBUILD_COLOUR": "1",
        "ARMLLM_ISA": "neon",
    }
    assert load(environ=environ) == settings.Settings()
    assert not load(environ={"ARMBUILD_PROVENANCE": "off"}).provenance


def test_every_setting_is_an_option_of_the_wheel_command():
    source = inspect.getsource(wheel.wheel) + inspect.getsource(options)
    for key in sorted(settings.keys()):
        assert re.search(rf'"--(?:no-)?{key}"', source), key


def test_the_schema_describes_what_is_accepted():
    schema = settings.schema()
    assert set(schema["properties"]) == set(settings.keys())
    assert schema["properties"]["with"]["type"] == "array"
    assert schema["properties"]["smoke"]["type"] == "boolean"
    assert schema["additionalProperties"] is False


def test_the_reference_page_is_the_one_that_the_settings_give():
    assert settings.reference() in (ROOT / "docs/wheel.md").read_text()


def test_a_projects_own_table_decides_the_plan(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "x"\nversion = "1"\n'
        '[tool.armbuild]\nlane = "cross"\nwith = ["zlib1g-dev"]\nimport = ["x"]\ncpu = ["max"]\n'
    )
    assert main(["wheel", str(tmp_path), "--plan"]) == 0
    said = capsys.readouterr().out
    assert "zlib1g-dev" in said
    assert re.search(r"smoke +max", said)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.armbuild]\nimports = ["x"]\n')
    assert main(["wheel", str(tmp_path), "--plan"]) == 2
    assert "did you mean import?" in capsys.readouterr().err
