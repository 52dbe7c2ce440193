import pytest

from armbuild.errors import UsageError
from armbuild.wheel import project


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
        ("[build-system]\nrequires = [" + 1001 * "'a'," + "]\n", "requires has more than 1000 entries"),
        ('[project]\nname = "x"\nrequires-python = "three"\n', "pyproject.toml"),
        (f'[project]\nname = "x"\nrequires-python = ">={"9" * 5000}"\n', "limit"),
        ('[project]\nname = "../../x"\n', "name is invalid"),
        ('[project]\nname = ""\n', "name is invalid"),
        (f'[project]\nname = "{"x" * 200}"\n', "more than 128 characters"),
        ('[project]\nname = "x"\nclassifiers = 5\n', "classifiers must be a list"),
        ('tool = 5\n[project]\nname = "x"\n', "must be a table"),
        (f"a = [{'1,' * (1 << 19)}]\n", "it has more than 1024 KiB"),
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
    (tmp_path / "setup.py").touch()
    described = project.read(tmp_path)
    assert project.source_epoch(described) == 315532800
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert project.source_epoch(described) == 1700000000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH=today"):
        project.source_epoch(described)


def test_kernel_targets_are_those_of_the_tree_that_is_built(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "armllm"\n')
    described = project.read(tmp_path)
    with pytest.raises(UsageError, match=r"kernels\.toml: no such file"):
        project.kernel_targets(described)
    table = tmp_path / project.KERNEL_TABLE
    table.parent.mkdir(parents=True)
    entries = (("scalar", "any"), ("avx2", "x86_64"), ("sme9", "aarch64"))
    table.write_text(
        "".join(f'[[target]]\nname = "{name}"\nmachine = "{machine}"\n' for name, machine in entries)
    )
    assert project.kernel_targets(described) == ("scalar", "sme9")
    table.write_text("[[target]]\n")
    with pytest.raises(UsageError, match="without 'machine'"):
        project.kernel_targets(described)
