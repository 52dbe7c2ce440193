import json

import pytest

from armbuild.cli import main
from armbuild.errors import UsageError
from armbuild.wheel import matrix


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "thing"\nversion = "1"\nrequires-python = ">=3.12"\n'
        '[tool.armbuild]\nimport = ["thing"]\ncpu = ["neoverse-n1", "max"]\n'
    )
    return tmp_path


def test_there_is_one_job_per_allowed_python_which_tests_on_every_core(project):
    found = matrix.jobs([project], {})
    assert [(job.python, job.cpus) for job in found] == [
        (version, ("neoverse-n1", "max")) for version in ("3.12", "3.13", "3.14")
    ]
    assert found[0].command == f"armbuild wheel {project} --python 3.12 --cpu neoverse-n1 --cpu max"
    assert len({job.name for job in found}) == len(found)


def test_a_set_of_projects_becomes_one_list_in_which_each_has_its_own_pythons_and_cores(project, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text(
        '[project]\nname = "other"\nversion = "1"\nrequires-python = ">=3.14"\n'
        '[tool.armbuild]\nimport = ["other"]\ncpu = ["cortex-a72"]\n'
    )
    found = matrix.jobs([project, other], {})
    assert [(job.name, job.cpus) for job in found] == [
        *((f"thing {version}", ("neoverse-n1", "max")) for version in ("3.12", "3.13", "3.14")),
        ("other 3.14", ("cortex-a72",)),
    ]


def test_only_a_project_that_wants_no_test_has_jobs_that_say_so(tmp_path):
    """The job of a project that only forgot to name one says so in CI, where a wheel must be run."""
    (tmp_path / "setup.py").touch()
    found = matrix.jobs([tmp_path], {}, versions=["3.11"])
    assert [job.command for job in found] == [f"armbuild wheel {tmp_path} --python 3.11"]
    found = matrix.jobs([tmp_path], {"ARMBUILD_SMOKE": "false"}, versions=["3.11"])
    assert [job.command for job in found] == [f"armbuild wheel {tmp_path} --python 3.11 --no-smoke"]


@pytest.mark.parametrize("form", sorted(matrix.FORMATS))
def test_each_form_names_every_command(project, form):
    found = matrix.jobs([project], {})
    text = matrix.render(found, form)
    assert json.loads(text)
    assert all(json.dumps(job.command)[1:-1] in text for job in found)
    assert ("\n" in text) == (form != "github")


def test_gitlab_jobs_have_a_name_each(project):
    found = matrix.jobs([project], {})
    assert set(json.loads(matrix.render(found, "gitlab"))) == {
        "default",
        "variables",
        *(job.name for job in found),
    }


def test_what_fits_no_job_is_an_error(project, capsys):
    with pytest.raises(UsageError, match="no job fits"):
        matrix.jobs([project], {}, versions=["3.10"])
    for words, reason in (
        (["--format", "jenkins"], "there are github"),
        (["--python", "2.7"], "--python 2.7"),
        (["--cpu", "z80"], "z80"),
    ):
        assert main(["matrix", str(project), *words]) == 2
        assert reason in capsys.readouterr().err
