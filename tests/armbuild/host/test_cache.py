import errno
import fcntl
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from armbuild.cli import main
from armbuild.errors import BuildError, MissingError
from armbuild.host import cache, outputs


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))


def test_the_cache_follows_its_variable_then_xdg_then_home(tmp_path, monkeypatch):
    assert cache.root() == tmp_path / "cache"
    monkeypatch.delenv("ARMBUILD_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.root() == tmp_path / "xdg/armbuild"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.root() == tmp_path / "home/.cache/armbuild"


def test_a_cache_that_cannot_be_made_is_named_with_the_way_out(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "file/cache"))
    with pytest.raises(MissingError, match="set ARMBUILD_CACHE_DIR"):
        cache.root()


def test_equal_values_have_equal_keys_whatever_their_order():
    assert cache.digest({"a": 1, "b": [2]}) == cache.digest({"b": [2], "a": 1})
    assert cache.digest({"a": 1}) != cache.digest({"a": 2})


def _fill_slowly(folder, counter):
    def make(fresh):
        with Path(counter).open("a") as sink:
            sink.write("x")
        time.sleep(0.3)
        (fresh / "file").write_text("whole")

    cache.fill(Path(folder), make)
    if (Path(folder) / "file").read_text() != "whole":
        raise SystemExit(1)


def test_two_processes_fill_a_folder_once_and_both_see_it_whole(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_fill_slowly, args=(str(tmp_path / "folder"), str(tmp_path / "count")))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert (tmp_path / "count").read_text() == "x"


@pytest.mark.parametrize("error", [BuildError("no"), KeyboardInterrupt()])
def test_a_fill_that_fails_leaves_nothing_and_can_be_repeated(tmp_path, error):
    def broken(fresh):
        (fresh / "half").touch()
        raise error

    with pytest.raises(type(error)):
        cache.fill(tmp_path / "folder", broken)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.lock"]
    assert cache.fill(tmp_path / "folder", lambda fresh: (fresh / "file").touch()) == tmp_path / "folder"


def test_a_fill_that_was_killed_is_cleared_away_by_the_next(tmp_path):
    def killed(fresh):
        (fresh / "half").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    other = multiprocessing.get_context("fork").Process(target=cache.fill, args=(tmp_path / "folder", killed))
    other.start()
    other.join()
    assert other.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".folder-*/content/half"))) == 1
    cache.fill(tmp_path / "folder", lambda fresh: (fresh / "file").touch())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "folder.lock"]


def test_waiting_for_another_build_is_announced(tmp_path):
    told = []
    with cache.lock(tmp_path / "x"):
        pid = os.fork()
        if pid == 0:  # the child meets a lock that the parent holds, and says so by its exit status
            try:
                with cache.lock(tmp_path / "x", on_wait=lambda: os._exit(7)):
                    os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    with cache.lock(tmp_path / "x", on_wait=lambda: told.append(1)):
        pass
    assert not told


def test_a_work_folder_goes_on_success_and_interrupt_and_stays_on_failure():
    with cache.work_folder("a") as done:
        (done / "file").touch()
    assert not done.exists()
    with pytest.raises(KeyboardInterrupt), cache.work_folder("b") as interrupted:
        raise KeyboardInterrupt
    assert not interrupted.exists()
    with pytest.raises(BuildError), cache.work_folder("c") as failed:
        raise BuildError("no")
    assert failed.is_dir()
    with cache.work_folder("d") as kept:
        cache.keep(kept)
    assert kept.is_dir()


def _fill_the_disk(work, outside):
    for name in ("root/usr/file", "run/build.log", "a.deb"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).touch()
    (work / "link").symlink_to(outside)
    raise MissingError("apt: no space left on the device that holds /x")


def test_a_full_disk_keeps_the_logs_alone(tmp_path):
    """Hundreds of packages that were downloaded would leave the next command no space."""
    (outside := tmp_path / "outside").mkdir()
    (outside / "file").touch()
    with pytest.raises(MissingError, match="no space"), cache.work_folder("a") as work:
        _fill_the_disk(work, outside)
    left = sorted(str(path.relative_to(work)) for path in work.rglob("*"))
    assert left == [".kept", "run", "run/build.log"]
    assert (outside / "file").is_file()


def test_a_full_disk_is_named_where_the_error_names_no_file(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught, cache.scratch_folder("audit", tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_failures_of_last_month_are_swept_away():
    with cache.work_folder("old") as old:
        cache.keep(old)
    past = time.time() - 30 * 24 * 3600
    os.utime(old, (past, past))
    with cache.work_folder("new"):
        assert not old.exists()


DAY = 24 * 3600


def _made(name, days_ago):
    """An entry of the cache that was used so many days ago, by its lock."""
    folder = cache.fill(cache.root() / name, lambda fresh: (fresh / "file").touch())
    _last_used(folder, days_ago)
    return folder


def _last_used(folder, days_ago):
    lock = cache.root() / cache.LOCKS / folder.parent.name / f"{folder.name}.lock"
    os.utime(lock, (time.time() - days_ago * DAY,) * 2)


def test_what_was_not_used_for_a_month_goes_and_all_else_stays():
    old, used, young = (_made(f"tools/{name}-1.2", 40) for name in ("old", "used", "young"))
    _last_used(young, 20)
    cache.fill(used, lambda _fresh: pytest.fail("it is there"))
    with cache.lock(build := cache.root() / "builds/of-a-month-ago"):
        (build / "source").mkdir(parents=True)
    _last_used(build, 31)
    (objects := cache.root() / "ccache/0").mkdir(parents=True)  # it has its own limit, and no lock here
    os.utime(objects, (0, 0))
    cache.remove_unused()
    assert [path.is_dir() for path in (old, build, used, young, objects)] == [False, False, True, True, True]
    assert sorted(path.name for path in (cache.root() / "tools").iterdir()) == ["used-1.2", "young-1.2"]
    locks = sorted(path.name for path in (cache.root() / cache.LOCKS / "tools").iterdir())
    assert locks == ["used-1.2.lock", "young-1.2.lock"]


def test_what_is_found_without_its_lock_counts_as_used_too():
    """An emulator of last month, found by its pattern, is not taken from under a test."""
    folder = _made("qemu/bookworm-amd64", 40)
    assert cache.use(folder / "usr/bin/qemu-aarch64") == folder / "usr/bin/qemu-aarch64"
    cache.remove_unused()
    assert folder.is_dir()


def test_what_another_command_holds_stays_however_old_its_lock_looks():
    folder = _made("builds/long", 0)
    with cache.lock(folder):
        _last_used(folder, 40)
        cache.remove_unused()
        assert folder.is_dir()


def test_the_search_for_what_is_unused_runs_once_a_day():
    cache.remove_unused()
    folder = _made("tools/old", 40)
    cache.remove_unused()
    assert folder.is_dir()
    os.utime(cache.root() / cache.LOOKED, (time.time() - 2 * DAY,) * 2)
    cache.remove_unused()
    assert not folder.exists()


def _hold_after_a_removal(folder, pipe):
    with cache.lock(folder, on_wait=lambda: pipe.send("waits")):
        pipe.send("holds")
        pipe.recv()


def test_who_waits_for_a_lock_that_is_removed_gets_the_next_one(tmp_path):
    """Else two builds would work in one folder: one with the lock that is gone, one with a new one."""
    ours, theirs = multiprocessing.Pipe()
    folder, mark = tmp_path / "x", tmp_path / "x.lock"
    other = multiprocessing.get_context("spawn").Process(target=_hold_after_a_removal, args=(folder, theirs))
    with cache.lock(folder):
        other.start()
        assert ours.recv() == "waits"
        mark.unlink()
    assert ours.recv() == "holds"
    with mark.open("a") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    ours.send("go")
    other.join()


def test_clearing_a_part_waits_for_what_is_being_made_there():
    clearing = threading.Thread(target=cache.remove, args=("tools",))

    def make(fresh):
        (fresh / "file").touch()
        clearing.start()
        clearing.join(0.2)
        assert (fresh / "file").exists()

    assert (cache.fill(cache.root() / "tools/new", make) / "file").exists()
    clearing.join()


def _work_until_told(pipe, how):
    with cache.work_folder("image") as folder:
        (folder / "layer").write_text("large")
        long_ago = time.time() - 3600
        os.utime(folder, (long_ago, long_ago))
        pipe.send(str(folder))
        pipe.recv()
        os.kill(os.getpid(), how)


def test_the_folder_of_a_killed_command_goes_with_the_next_one_and_that_of_a_living_stays():
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("fork").Process(
        target=_work_until_told, args=(theirs, signal.SIGKILL)
    )
    other.start()
    folder = Path(ours.recv())
    with cache.work_folder("next"):
        assert folder.is_dir()
    assert cache.remove("work") == 0
    ours.send("go")
    other.join()
    assert (folder / "layer").read_text() == "large"
    with cache.work_folder("next"):
        assert not folder.exists()


def _killed(work):
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()


def _aged(*paths):
    for path in paths:
        os.utime(path, (time.time() - 60,) * 2, follow_symlinks=False)


def test_what_a_killed_command_left_outside_of_the_cache_goes_with_the_next_one(tmp_path, monkeypatch):
    """Audits work below /tmp, and files are copied beside what they replace."""
    (shared := tmp_path / "tmp").mkdir()
    (output := tmp_path / "out").mkdir()
    (source := tmp_path / "x.whl").write_text("whole")
    (shared / "audit-link").symlink_to(output)
    (shared / "other-folder").mkdir()

    def audit():
        with cache.scratch_folder("audit", shared) as folder:
            (folder / "member.elf").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def move():
        monkeypatch.setattr(Path, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        outputs.move_into(source, output)

    _killed(audit)
    _killed(move)
    (left,), (half,) = shared.glob("audit-????????"), output.iterdir()
    with cache.scratch_folder("audit", shared) as living:
        assert left.is_dir(), "it might be of a command that is starting now"
        _aged(left, living, half, *shared.iterdir())
        with cache.scratch_folder("audit", shared):
            assert not left.exists()
            assert living.is_dir()
    outputs.move_into(source, output)
    assert [path.name for path in output.iterdir()] == ["x.whl"]
    assert sorted(path.name for path in shared.iterdir()) == ["audit-link", "other-folder"]


def test_the_parts_of_the_cache_are_shown_and_removed_one_by_one(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    for name, size in (("kits/a/x", 3), ("roots/b/y", 5), ("work/running/z", 7), ("work/kept/z", 1)):
        path = tmp_path / "cache" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"." * size)
    cache.keep(tmp_path / "cache/work/kept")
    assert cache.parts() == {"kits": 3, "roots": 5, "work": 8}
    assert main(["cache", "--clear", "kits", "--clear", "work", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["removed"] == {"kits": 3, "work": 1}
    assert told["parts"] == {"kits": 0, "roots": 5, "work": 7}
    assert not list((tmp_path / "cache").rglob("*.lock")), "of ccache's own folders, say, which have none"
    assert main(["cache", "--clear", "kit"]) == 2
    assert "--clear kit: the cache has kits, roots, work" in capsys.readouterr().err


def test_a_part_with_folders_deeper_than_pythons_stack_has_a_size(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache/work").mkdir(parents=True)
    (tmp_path / "cache/work/file").write_bytes(b"12")
    try:
        deep = os.open(tmp_path / "cache/work", os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("a", dir_fd=deep)
            above, deep = deep, os.open("a", os.O_RDONLY, dir_fd=deep)
            os.close(above)
        with os.fdopen(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=deep), "wb") as file:
            file.write(b"345")
        os.close(deep)
        assert cache.parts() == {"work": 5}
    finally:  # pytest's own removal does not go that deep
        subprocess.run(["rm", "-rf", tmp_path / "cache"], check=True)


@pytest.mark.parametrize("name", ["a b", "a:b", "it's", 'say "a"', "a;b", "a$b"])
def test_a_cache_whose_path_build_tools_split_is_reached_by_a_link_that_stays_the_same(
    tmp_path, monkeypatch, name
):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / name))
    link = cache.root()
    assert not cache.SPLIT.search(str(link))
    assert link.readlink() == tmp_path / name
    assert stat.S_IMODE(link.parent.stat().st_mode) == 0o700
    assert cache.root() == link
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / f"{name} other"))
    assert cache.root() != link
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "a-b_c.d+é"))
    assert cache.root() == tmp_path / "a-b_c.d+é"


def test_a_folder_for_the_link_that_others_can_write_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "a b"))
    monkeypatch.setattr(cache, "LINKS", tmp_path)
    (tmp_path / f"armbuild-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(MissingError, match="is not private: set ARMBUILD_CACHE_DIR"):
        cache.root()
