import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from armbuild.cli import main, options
from armbuild.errors import UsageError
from armbuild.wheel import settings, settings_reference
from armbuild.wheel.lanes import LANES

ROOT = Path(__file__).parents[3]
PROJECT = ROOT / "tests/armbuild/projects/setuptools"


def load(options=None, table=None, environ=None):
    return settings.load(options or {}, table or {}, environ or {}, where="pyproject.toml")


def test_options_win_over_variables_and_these_over_the_table():
    table = {"lane": "cross", "with": ["a-dev"], "output": "one"}
    environ = {"ARMBUILD_OUTPUT": "two", "ARMBUILD_WITH": "b-dev, c-dev"}
    merged = load({"output": Path("three"), "lane": None}, table, environ)
    assert (merged.lane, merged.packages, merged.output) == ("cross", ("b-dev", "c-dev"), Path("three"))
    assert load() == settings.Settings()


def test_a_variable_of_several_lines_is_a_list_whose_values_may_have_commas():
    environ = {"ARMBUILD_BUILD_REQUIRES": "numpy>=1,<2\n", "ARMBUILD_ENV": "A=1,2\nB=3"}
    merged = load(environ=environ)
    assert (merged.build_requires, merged.env) == (("numpy>=1,<2",), ("A=1,2", "B=3"))


@pytest.mark.parametrize(
    ("table", "environ", "reason"),
    [
        ({"pyton": ["3.11"]}, {}, r"\[tool\.armbuild\] pyton: no such setting; did you mean python\?"),
        ({"zzz": 1}, {}, "there are lane, toolchain"),
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
        "ARMBUILD_COLOR": "1",
        "ARMLLM_ISA": "neon",
    }
    assert load(environ=environ) == settings.Settings()
    assert not load(environ={"ARMBUILD_PROVENANCE": "off"}).provenance


def test_an_option_overrides_yes_and_no_of_the_table(capsys, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\n[tool.armbuild]\nisolation = false\n'
    )
    for words, expected in (([], False), (["--isolation"], True)):
        assert main(["wheel", str(tmp_path), "--lane=cross", "--plan", "--json", *words]) == 0
        assert json.loads(capsys.readouterr().out)["isolation"] is expected


def test_the_schema_describes_what_is_accepted():
    schema = settings_reference.schema()
    assert set(schema["properties"]) == {setting.key for setting in settings.ALL}
    assert schema["properties"]["with"]["type"] == "array"
    assert schema["properties"]["smoke"]["type"] == "boolean"
    assert schema["properties"]["lane"]["enum"] == list(LANES)
    assert schema["additionalProperties"] is False


def test_every_setting_has_a_group_and_an_example_that_it_accepts():
    for setting in settings.ALL:
        assert setting.about.group in settings.GROUPS
        assert setting.type is bool or setting.about.example, setting.name
        if setting.about.example and setting.type is not bool:
            assert setting.from_text("X", setting.about.example), setting.name


@dataclass(frozen=True, kw_only=True)
class WithColor(settings.Settings):
    """The settings after somebody added one, in one place."""

    color: str | None = settings._setting(
        None, "Build", "The wheel's color.", values=("red", "blue"), example="red"
    )


def test_a_setting_that_is_added_in_one_place_is_found_in_all(monkeypatch):
    """Else a new option would have to be spelled in the command, the loader, the schema and the page too."""
    found = settings.describe(WithColor)
    monkeypatch.setattr(settings, "ALL", found)
    monkeypatch.setattr(settings, "Settings", WithColor)
    seen = {}

    @options.with_settings()
    def command(*, options):
        seen.update(options)
        return 0

    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["--color", "blue"])
    assert done.exit_code == 0, done.output
    assert load(seen).color == "blue"
    assert "red | blue" in CliRunner().invoke(app, ["--help"]).output
    assert load(table={"color": "red"}, environ={"ARMBUILD_COLOR": "blue"}).color == "blue"
    with pytest.raises(UsageError, match="--color green: there are red and blue"):
        WithColor(color="green").check()
    assert settings_reference.schema(found)["properties"]["color"]["enum"] == ["red", "blue"]
    assert '| `--color` | `color = "red"` | The wheel\'s color. |' in settings_reference.reference(found)


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
