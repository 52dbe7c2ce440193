import os
import subprocess

import pytest

from armbuild.wheel import source


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    for name in (
        "setup.py",
        "src/x.c",
        "build/lib.linux-x86_64/x.so",
        "src/build/y.py",
        "a/__pycache__/z.pyc",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def git(folder, *words):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True)


def test_what_earlier_builds_left_at_the_top_is_not_built_again(project, tmp_path):
    copy = source.mirror(project, tmp_path / "work")
    assert files(copy) == ["setup.py", "src/build/y.py", "src/x.c"]


def test_in_a_git_work_tree_the_files_are_those_that_git_would_take(project, tmp_path):
    git(project, "init", "-q")
    (project / ".gitignore").write_text("build/lib*\n__pycache__\nsecret.txt\n")
    (project / "secret.txt").touch()
    git(project, "add", ".gitignore", "setup.py")
    git(project, "commit", "-qm", "x")
    copy = source.mirror(project, tmp_path / "work")
    assert [name for name in files(copy) if name != ".git"] == [
        ".gitignore",
        "setup.py",
        "src/build/y.py",
        "src/x.c",
    ]
    said = subprocess.run(["git", "-C", copy, "log", "--oneline"], capture_output=True, text=True, check=True)
    assert said.stdout.endswith(" x\n"), "a version computed from git needs the history"


def test_only_what_changed_is_written_and_counts_as_new(project, tmp_path):
    copy = source.mirror(project, tmp_path / "work")
    before = {name: (copy / name).stat().st_mtime_ns for name in files(copy)}
    (project / "src/x.c").write_text("older but different")
    os.utime(project / "src/x.c", (1, 1))
    source.mirror(project, tmp_path / "work")
    after = {name: (copy / name).stat().st_mtime_ns for name in files(copy)}
    assert [name for name in after if after[name] != before[name]] == ["src/x.c"]
    assert after["src/x.c"] > before["src/x.c"], "a build system would not see an older file"


def test_what_was_deleted_is_deleted_and_what_the_build_made_stays(project, tmp_path):
    copy = source.mirror(project, tmp_path / "work")
    (copy / "build").mkdir()
    (copy / "build/object.o").touch()
    (project / "src/x.c").unlink()
    source.mirror(project, tmp_path / "work")
    assert files(copy) == ["build/object.o", "setup.py", "src/build/y.py"]


def test_an_interrupted_copy_is_made_whole(project, tmp_path):
    copy = source.mirror(project, tmp_path / "work")
    (tmp_path / "work" / source.MANIFEST).unlink()
    (copy / "src/x.c").write_text("half")
    source.mirror(project, tmp_path / "work")
    assert (copy / "src/x.c").read_text() == "src/x.c"


def test_links_and_modes_are_kept(project, tmp_path):
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "link").symlink_to("src")
    (project / "dangling").symlink_to("nowhere")
    copy = source.mirror(project, tmp_path / "work")
    assert (copy / "run.sh").stat().st_mode & 0o100
    assert (copy / "link").is_symlink()
    assert (copy / "dangling").is_symlink()
    source.mirror(project, tmp_path / "work")


def test_nothing_is_written_into_the_project(project, tmp_path):
    before = files(project)
    source.mirror(project, tmp_path / "work")
    assert files(project) == before


def test_cxx_is_recognized(tmp_path):
    (tmp_path / "a.c").touch()
    assert not source.has_cxx(tmp_path)
    (tmp_path / "b.cpp").touch()
    assert source.has_cxx(tmp_path)


def test_the_output_folder_inside_a_project_is_not_built_into_the_next_wheel(project, tmp_path):
    (project / "wheels").mkdir()
    (project / "wheels/old.whl").touch()
    copy = source.mirror(project, tmp_path / "work", leave_out=project / "wheels")
    assert "wheels/old.whl" not in files(copy)
    for around in (project, project.parent):
        assert "setup.py" in files(source.mirror(project, tmp_path / "work", leave_out=around))
