"""The cache folder, locks between processes, and private work folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armbuild.errors import MissingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

KEEP_FAILED_SECONDS = 7 * 24 * 3600
KEEP_UNUSED_SECONDS = 30 * 24 * 3600
LOOKED_EVERY_SECONDS = 24 * 3600
LOCKED_WITHIN_SECONDS = 5
KEPT = ".kept"
LOCK = ".lock"
"""How the file ends that says whose turn it is, and by its time when the last one was."""
LOCKS = ".locks"
"""The folder with those of the cache's entries, which no sandbox shows: a build could hold them for ever."""
LOOKED = "looked-for-unused"
LINKS = Path("/tmp")  # noqa: S108 - where a folder is made that others cannot write
NO_SPACE = re.compile(r"no space left on|disk quota exceeded", re.IGNORECASE)
"""In an error: what a failed command made then only takes space from the next one."""
SPLIT = re.compile(r"[^\w/.,+@%~=-]")
"""What the cache's path must not have for the tools of a build."""


def root() -> Path:
    """Return the cache: ``ARMBUILD_CACHE_DIR``, else ``armbuild`` under ``XDG_CACHE_HOME``, ``~/.cache``."""
    folder = _named()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingError(
            f"the cache folder {folder} cannot be made ({error.strerror}): set ARMBUILD_CACHE_DIR"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise MissingError(f"the cache folder {folder} is not writable: set ARMBUILD_CACHE_DIR")
    return _plain(folder) if SPLIT.search(str(folder)) else folder


def _named() -> Path:
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if own := os.environ.get("ARMBUILD_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    # the XDG specification says to ignore a relative path
    return (Path(shared) if Path(shared).is_absolute() else Path.home() / ".cache") / "armbuild"


def _plain(folder: Path) -> Path:
    """Return a link to ``folder`` without the characters at which build tools split lists of folders.

    apt's sources, PATH, PYTHONPATH, PKG_CONFIG_LIBDIR, CFLAGS and make's rules cannot have all of them. It is
    the same link each time: what was built remembers it.
    """
    private = LINKS / f"armbuild-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        private.mkdir(mode=0o700)
    found = private.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise MissingError(
            f"the cache folder {folder} needs a link without spaces, and {private} is not private: set "
            "ARMBUILD_CACHE_DIR to a folder without spaces, quotes and colons"
        )
    link = private / digest(str(folder))
    if not link.is_symlink() or link.readlink() != folder:
        scratch = link.with_name(f".{link.name}-{os.getpid()}")
        scratch.symlink_to(folder)
        scratch.replace(link)
    return link


def digest(value: Any) -> str:
    """Return a short key for a JSON value: the same for equal values, in every process."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def sha256(path: Path) -> str:
    """Return a file's digest in hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


@contextlib.contextmanager
def lock(path: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of ``path`` alone. Another process waits, after ``on_wait`` was called once.

    That counts as a use of ``path``: `remove_unused` leaves it alone.
    """
    mark = _mark(path)
    for folder in (path.parent, mark.parent):
        folder.mkdir(parents=True, exist_ok=True)
    while True:
        with mark.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if on_wait:
                    on_wait()
                    on_wait = None
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink == 0:  # it was removed meanwhile, with what it was for
                continue
            os.utime(file.fileno())
            yield  # closing the file releases the lock, also when the process dies
            return


def _mark(path: Path) -> Path:
    """Return the lock of ``path``: of an entry of the cache in LOCKS, of all else beside it."""
    place = path.parent.parent
    folder = place / LOCKS / path.parent.name if place.resolve() == _named().resolve() else path.parent
    return folder / f"{path.name}{LOCK}"


def fill(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return ``folder``, made once by ``make(empty folder)``; a failed ``make`` leaves nothing."""
    with lock(folder):
        if not folder.is_dir():
            _remove_left_of(folder)
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
                fresh = Path(scratch) / "content"
                fresh.mkdir()
                make(fresh)
                fresh.rename(folder)
    return folder


def use(path: Path) -> Path:
    """Return ``path``, of an entry of the cache that was found without its lock, and note that it is used."""
    part, entry, *_ = path.relative_to(root()).parts
    with contextlib.suppress(OSError):
        os.utime(_mark(root() / part / entry))
    return path


def remove_unused() -> None:
    """Remove what no command has used for a month, in all parts of the cache; looks once a day.

    For the end of a command: what it used is new then.
    """
    with contextlib.suppress(OSError):
        looked = root() / LOOKED
        if looked.exists() and _age(looked) < LOOKED_EVERY_SECONDS:
            return
        looked.touch()
        for mark in root().glob(f"{LOCKS}/*/*{LOCK}"):
            if _age(mark) > KEEP_UNUSED_SECONDS:
                _remove_if_unused(mark)


def _remove_if_unused(mark: Path) -> None:
    """Remove what the lock ``mark`` is for, and the lock, unless another command holds or has taken it."""
    with contextlib.suppress(OSError), mark.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _age(mark) > KEEP_UNUSED_SECONDS:
            folder = root() / mark.parent.name / mark.name.removesuffix(LOCK)
            _remove_left_of(folder)
            if folder.exists():
                _take_away(folder)
            mark.unlink()


def _remove_left_of(folder: Path) -> None:
    """Remove what the killed left of ``folder``, whose lock is held."""
    for left in folder.parent.glob(f".{glob.escape(folder.name)}-????????"):
        shutil.rmtree(left, ignore_errors=True)


def _take_away(entry: Path) -> None:
    """Remove an entry of the cache, whose lock is held: at once for all others."""
    gone = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
    moved = entry.rename(gone / "content")
    if moved.is_dir() and not moved.is_symlink():
        shutil.rmtree(gone)
    else:
        moved.unlink()
        gone.rmdir()


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


@contextlib.contextmanager
def work_folder(label: str) -> Iterator[Path]:
    """Give a private folder, removed at the end; a failure keeps it for a week, with its logs."""
    parent = root() / "work"
    if parent.is_dir():
        _remove_old(parent)
    with scratch_folder(label, parent) as folder:
        try:
            yield folder
        except Exception as error:
            if NO_SPACE.search(str(error)):
                _remove_all_but_logs(folder)
            keep(folder)
            raise


@contextlib.contextmanager
def scratch_folder(label: str, parent: Path) -> Iterator[Path]:
    """Give a private folder in ``parent``, removed at the end; those that killed commands left go first.

    An error that no space is left, which a write alone does not place, names the ``parent``.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_left(parent, f"{label}-????????")
    folder = Path(tempfile.mkdtemp(prefix=f"{label}-", dir=parent))
    descriptor = os.open(folder, os.O_RDONLY)
    claim(descriptor)
    try:
        yield folder
    except OSError as error:
        if error.filename or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(error.errno, error.strerror, str(parent)) from error
    finally:
        os.close(descriptor)
        if not (folder / KEPT).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def removed(folder: Path) -> Iterator[None]:
    """Remove ``folder`` at the end, and what a killed command left there before."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def claim(descriptor: int) -> None:
    """Say that the command which works in a folder, or writes a file, lives: the lock ends with it."""
    with contextlib.suppress(OSError):  # not every file system locks: a killed command's work then stays
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _remove_all_but_logs(folder: Path) -> None:
    for parent, folders, files in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in (*files, *folders)):
            if path.suffix != ".log":
                with contextlib.suppress(OSError):  # a folder with a log in it
                    path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()


def remove_left(parent: Path, pattern: str) -> None:
    """Remove what killed commands of this user left in ``parent`` under such names."""
    for path in parent.glob(pattern):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid() and _abandoned(path):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def keep(folder: Path) -> None:
    """Keep a work folder after its end: its logs or its wheel are named to the user."""
    with contextlib.suppress(OSError):
        (folder / KEPT).touch()


def parts() -> dict[str, int]:
    """Return the parts of the cache (its folders) with their sizes in bytes."""
    folders = (path for path in sorted(root().iterdir()) if path.is_dir() and path.name != LOCKS)
    return {folder.name: _size(folder) for folder in folders}


def expand(names: Iterable[str]) -> list[str]:
    """Return the parts that ``names`` mean, "all" being every one; raises UsageError for one not there."""
    there = list(parts())
    asked = list(dict.fromkeys(names))
    if "all" in asked:
        return there
    for name in asked:
        if name not in there:
            raise UsageError(f"--clear {name}: the cache has {', '.join(there) or 'no parts'}")
    return asked


def remove(part: str) -> int:
    """Remove a part of the cache and return its size in bytes; what is locked by a build waits for its end.

    Work folders of running commands are left alone.
    """
    folder, freed = root() / part, 0
    for entry in sorted(folder.iterdir()):
        if part == "work" and not ((entry / KEPT).exists() or _abandoned(entry)):
            continue
        unfinished = re.fullmatch(r"\.(.+)-\w{8}", entry.name)
        whole = entry.with_name(unfinished[1]) if unfinished else entry
        with lock(whole):
            if entry.exists():
                freed += _size(entry)
                _take_away(entry)
            if not whole.exists():
                _mark(whole).unlink()
    return freed


def _size(folder: Path) -> int:
    """Return the bytes of all files, without those that running commands remove meanwhile."""
    if not folder.is_dir() or folder.is_symlink():
        return folder.lstat().st_size
    total, waiting = 0, [str(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _remove_old(parent: Path) -> None:
    for folder in parent.iterdir():
        with contextlib.suppress(OSError):
            if _age(folder) > KEEP_FAILED_SECONDS or _abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _abandoned(path: Path) -> bool:
    """Whether the command that works in a folder, or writes a file, was killed: else it holds a lock."""
    if (path / KEPT).exists() or time.time() - path.lstat().st_mtime < LOCKED_WITHIN_SECONDS:
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it lives, or the file system does not lock
        return False
    finally:
        os.close(descriptor)
    return True
