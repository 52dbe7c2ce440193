import pytest

from armbuild import project
from armbuild.errors import UsageError


def write(folder, text):
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_a_project_is_described_by_its_pyproject(tmp_path):
    found = project.read(
        write(
            tmp_path,
            '[build-system]\nrequires = ["scikit-build-core>=1"]\nbuild-backend = "scikit_build_core.build"\n'
            '[project]\nname = "My_Thing"\nversion = "1.0"\nrequires-python = ">=3.10"\n[tool.x]\ny = 1\n',
        )
    )
    assert (found.name, found.version, found.backend) == ("my-thing", "1.0", "scikit_build_core.build")
    assert found.requires == ("scikit-build-core>=1",)
    assert found.tool == {"x": {"y": 1}}
    assert not found.is_armllm


def test_a_lone_setup_py_is_a_project(tmp_path):
    (tmp_path / "setup.py").touch()
    found = project.read(tmp_path)
    assert found.backend == project.LEGACY_BACKEND
    assert found.version is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "describes no package"),
        ("[tool.ruff]\n", "describes no package"),
        ("[project\n", "not valid TOML"),
        ("project = 3\n", "must be tables"),
        ('[build-system]\nrequires = ["a b c"]\n', "pyproject.toml"),
        ("[build-system]\nrequires = [3]\n", "pyproject.toml"),
        ('[build-system]\nrequires = "setuptools"\n', "must be a list"),
        ('[project]\nname = "x"\nrequires-python = "three"\n', "pyproject.toml"),
    ],
)
def test_a_pyproject_that_makes_no_sense_is_refused_in_a_line(tmp_path, text, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        project.read(write(tmp_path, text))
    assert len(str(caught.value).splitlines()) <= 2


def test_what_is_no_project_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "nowhere", "no such"),
        (tmp_path / "file", "not a project folder"),
        (tmp_path, "neither pyproject.toml nor setup.py"),
    ):
        with pytest.raises(UsageError, match=reason):
            project.read(path)


def test_the_date_of_a_build_is_the_environments_or_the_commits_or_1980(tmp_path, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert project.source_epoch(tmp_path) == 315532800
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert project.source_epoch(tmp_path) == 1700000000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH=today"):
        project.source_epoch(tmp_path)
