"""What a stranger's build reaches in the sandbox, and what it leaves for the builds after it."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.armbuild import cpp_runtime
from tests.armbuild.plans import planned

from armbuild.errors import BuildError, MissingError, UsageError
from armbuild.host import bubblewrap, cache, isolation, process, pythons
from armbuild.wheel import build, repair, sandbox, source

PROJECTS = Path(__file__).parents[1] / "projects"
ATTACK = """\
import ctypes, json, os, pathlib, signal, socket, sys, time
readable, writable, home, secret, cache = sys.argv[1:]
def reached(act):
    try:
        act()
    except OSError:
        return False
    return True
def left_behind():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (1, 2, 3, 13, 15):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(0.5)
            pathlib.Path(writable, "late").touch()
        os._exit(0)
left_behind()
print(json.dumps({
    "home": reached(lambda: os.listdir(home)),
    "secret": reached(lambda: open(secret)),
    "shadow": reached(lambda: open("/etc/shadow")),
    "network": reached(lambda: socket.create_connection(("127.0.0.1", int(os.environ["MAX_JOBS"])), 2)),
    "write what is to be read": reached(lambda: pathlib.Path(readable, "x").write_text("x")),
    "write to the root": reached(lambda: pathlib.Path("/x").write_text("x")),
    "the kernel's settings": reached(lambda: open("/proc/sys/kernel/core_pattern", "w")),
    "mount": ctypes.CDLL(None).unshare(0x10000000) == 0,
    "its folder": reached(lambda: pathlib.Path(writable, "x").write_text("x")),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "git": "".join(path.read_text() for path in pathlib.Path(readable).rglob("config")),
    "environment": sorted(os.environ),
    "the cache": sorted(str(path.relative_to(cache)) for path in pathlib.Path(cache).rglob("*")),
}))
"""


def test_a_program_reaches_its_folders_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    home, readable, writable, work = (tmp_path / name for name in ("home", "readable", "writable", "work"))
    for folder in (home, readable, writable, work):
        folder.mkdir()
    subprocess.run(["git", "init", "-q", "--bare", readable], check=True)
    subprocess.run(["git", "-C", readable, "config", "http.extraheader", "Basic hunter2"], check=True)
    (readable / "modules/part").mkdir(parents=True)
    (readable / "modules/part/config").write_text("[http]\nextraheader = Basic hunter2\n")
    (home / "token").write_text("x")
    (programs := tmp_path / "programs").mkdir()
    for name in ("sh", "bwrap"):  # PATH begins with what packages brought
        (programs / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/escaped\n")
        (programs / name).chmod(0o755)
    cache.fill(cache.root() / "tools/a", lambda fresh: (fresh / "program").touch())
    cache.fill(cache.root() / "sources/b", lambda fresh: (fresh / "secret").touch())
    box = sandbox.make(work, readable=[readable, *sandbox.running()], writable=[writable], mirror=None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        variables = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SECRET": "hunter2",
            "MAX_JOBS": str(server.getsockname()[1]),
        }
        output = process.run(
            box.command(
                [sys.executable, "-I", "-c", ATTACK, readable, writable, home, home / "token", cache.root()],
                writable,
            ),
            env=box.environment({**variables, "OWN": "1"}, own=["OWN"]),
            log=tmp_path / "log",
            what="attack",
        )
    time.sleep(0.7)
    assert not (writable / "late").exists(), "a process outlived the build"
    assert not (tmp_path / "escaped").exists()
    found = json.loads(output)
    assert "repositoryformatversion" in found["git"]
    assert "hunter2" not in found.pop("git")
    assert set(found.pop("environment")) - {"LC_CTYPE", "PWD"} == {
        "HOME",
        "MAX_JOBS",
        "OWN",
        "PATH",
        "TMPDIR",
    }
    assert found.pop("the cache") == ["tools", "tools/a", "tools/a/program"], "with a lock, it stops builds"
    assert found.pop("its folder")
    assert found.pop("processes") <= 4  # bwrap's own, this one, and what it leaves behind
    assert not any(found.values()), found


def test_an_interpreter_whose_names_are_links_in_its_own_folder_starts(tmp_path, monkeypatch):
    """pyenv and CPython's own ``make install`` lay ``python3`` beside ``python3.11`` so."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    for folder in ("prefix/bin", "environment/bin"):
        (tmp_path / folder).mkdir(parents=True)
    program = tmp_path / "prefix/bin/python3.11"
    program.write_text("#!/bin/sh\necho started\n")
    program.chmod(0o755)
    program.with_name("python3").symlink_to("python3.11")
    (tmp_path / "environment/pyvenv.cfg").touch()
    python = tmp_path / "environment/bin/python"
    python.symlink_to(program.with_name("python3"))
    box = sandbox.make(tmp_path / "work", readable=sandbox.interpreters(python), writable=[], mirror=None)
    command = box.command([python], tmp_path / "prefix")
    assert process.run(command, env=box.environment({}), log=tmp_path / "log", what="python") == "started\n"


def test_a_link_that_a_build_left_leads_no_later_copy_out_of_the_folder(tmp_path):
    project, outside = tmp_path / "project", tmp_path / "outside"
    (project / "package").mkdir(parents=True)
    outside.mkdir()
    (project / "package/a.py").write_text("a = 1\n")
    (project / "b.py").write_text("b = 1\n")
    target = source.mirror(project, tmp_path / "build")
    (target / "package/a.py").unlink()
    (target / "package").rmdir()
    (target / "package").symlink_to(outside)
    (target / "b.py").unlink()
    (target / "b.py").mkdir()
    (outside / "a.py").write_text("mine\n")
    for name in ("package/a.py", "b.py"):
        (project / name).write_text("changed\n")
    source.mirror(project, tmp_path / "build")
    assert (outside / "a.py").read_text() == "mine\n"
    assert [(target / name).read_text() for name in ("package/a.py", "b.py")] == ["changed\n"] * 2


def test_programs_that_a_repository_names_do_not_run(tmp_path):
    marker = tmp_path / "ran"
    project = tmp_path / "project"
    subprocess.run(["git", "init", "-q", project], check=True)
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "filter.a=b.clean", "remote.origin.uploadpack"):
        subprocess.run(["git", "-C", project, "config", name, hook], check=True)
    (project / "a.py").write_text("")
    (project / ".gitattributes").write_text("a.py filter=a=b\n")
    source.mirror(project, tmp_path / "build")
    assert (tmp_path / "build/source/a.py").is_file()
    assert not marker.exists()


def test_a_repository_elsewhere_is_not_shown(tmp_path):
    """It would catch an sdist whose .git names a private repository, and a project below a home in git."""
    (private := tmp_path / "private").mkdir()
    subprocess.run(["git", "init", "-q", private], check=True)
    assert list(sandbox.repository(private)) == [private / ".git"]
    for name, make in {
        "file": lambda path: path.write_text(f"gitdir: {private}/.git\n"),
        "link": lambda path: path.symlink_to(private / ".git"),
        "nothing": lambda _path: None,
    }.items():
        (project := private / name).mkdir()
        make(project / ".git")
        assert list(sandbox.repository(project)) == []


def test_a_lock_and_uv_settings_of_a_project_build_nothing(tmp_path, monkeypatch):
    """uv.toml and lines of a lock may ask for sdists, which would be built outside of the sandbox."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    (lock := tmp_path / "build.lock").write_text("thing==1 --hash=sha256:0  # -x\n--no-binary thing\n")
    with pytest.raises(UsageError, match=r"build\.lock: --no-binary: a sandbox takes"):
        isolation.environment(pythons.find(), [], lock=lock, log=tmp_path / "log", wheels_only=True)
    folders = []
    monkeypatch.setattr(isolation.process, "run", lambda *_args, cwd=None, **_options: folders.append(cwd))
    lock.write_text("thing==1 \\\n    --hash=sha256:0\n")
    isolation.environment(pythons.find(), [], lock=lock, log=tmp_path / "log", wheels_only=True)
    assert folders[-1] == Path("/")


def test_a_wheel_outside_of_its_folder_is_none(tmp_path):
    (wheel := tmp_path / "x-1-py3-none-any.whl").write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/link.whl").symlink_to(wheel)
    for path in (wheel, tmp_path / "out/../x-1-py3-none-any.whl", tmp_path / "out/link.whl"):
        with pytest.raises(BuildError, match="not in its folder"):
            sandbox.check_wheel(path, tmp_path / "out")
    assert sandbox.check_wheel(wheel, tmp_path) == wheel


@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "large", "nothing"])
def test_an_answer_of_a_hook_that_is_no_file_of_its_own_is_refused(tmp_path, kind):
    """It is read outside of the sandbox: /dev/zero would fill the memory, a pipe would be waited for."""
    path = tmp_path / sandbox.ANSWER
    match kind:
        case "device":
            path.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "large":
            path.touch()
            os.truncate(path, 1 << 30)
    with pytest.raises(BuildError, match="no answer that can be read"):
        sandbox.check_answer(tmp_path)
    if kind == "large":
        os.truncate(path, 100)
        sandbox.check_answer(tmp_path)


def test_what_would_run_outside_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match="--compile-cache ccache: a build in a sandbox"):
        planned(PROJECTS / "setuptools", sandbox=True, compile_cache="ccache", output=tmp_path)
    with pytest.raises(UsageError, match="--sandbox is for the cross and the native lane"):
        planned(PROJECTS / "setuptools", sandbox=True, lane="container", output=tmp_path)
    requirement = f"fixture-setuptools @ {(PROJECTS / 'setuptools').as_uri()}"
    with pytest.raises((BuildError, MissingError), match=r"build.*disabled|no usable wheels"):
        isolation.environment(pythons.find(), [requirement], log=tmp_path / "log", wheels_only=True)


def test_without_bubblewrap_one_error_names_it_and_how_to_get_it(tmp_path, monkeypatch):
    def unreachable(_mirror):
        raise MissingError("no Debian archive: deb.debian.org does not answer")

    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda _name: None)
    monkeypatch.setattr(bubblewrap, "_fetched", unreachable)
    with pytest.raises(MissingError) as caught:
        sandbox.make(tmp_path, readable=(), writable=(), mirror=None)
    assert "bwrap is not installed" in str(caught.value)
    assert "apt-get install bubblewrap, or build without --sandbox" in str(caught.value)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("project", ["setuptools", "meson", "scikit"])
def test_each_back_end_builds_in_the_sandbox_for_the_target(tmp_path, tmp_path_factory, monkeypatch, project):
    folder = tmp_path_factory.getbasetemp() / "sandbox-cache"
    if not folder.exists():
        cpp_runtime.copy(folder)
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(folder))
    plan = planned(PROJECTS / project, lane="cross", output=tmp_path, sandbox=True)
    for _ in range(2):  # the second finds what the first compiled
        (work := tmp_path / str(len(list(tmp_path.iterdir())))).mkdir()
        built = build.build_wheel(plan, plan.pythons[0], work)
        assert "manylinux" in repair.repair_wheel(built, work).path.name
        assert built.tools
