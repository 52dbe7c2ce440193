"""What a failed program says is searched for the reason."""

import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.armbuild.host.test_process import python

from armbuild.errors import BuildError, MissingError
from armbuild.host import failure, process

COMPILER = """\
[1/3] Building CXX object a.o
../src/a.cpp:7:3: error: use of undeclared identifier 'foo'
ninja: build stopped: subcommand failed.
*** CMake build failed
"""
SETUPTOOLS = """\
src/core.c:1:10: fatal error: nothing.h: No such file or directory
error: command '/kit/cc' failed with exit code 1
"""
CMAKE = """\
-- Detecting CXX compile features - done
CMake Error at CMakeLists.txt:12 (find_package):
  Could not find a package configuration file provided by "Foo"

*** CMake configuration failed
"""
PYTHON = """\
Traceback (most recent call last):
  File "setup.py", line 3, in <module>
    raise RuntimeError("no version")
RuntimeError: no version
"""
LINKER = """\
ld.lld: error: undefined symbol: cblas_sgemm
clang: error: linker command failed with exit code 1 (use -v to see invocation)
"""
PIP_IN_A_CONTAINER = """\
  Traceback (most recent call last):
    File x, line 1
  Exception: HDF5 >= 1.10.7
  error: subprocess-exited-with-error
  ERROR: Failed building wheel for h5py
ERROR: Failed to build one or more wheels
cibuildwheel: error: Command ['pip'] failed with code 1.
Failed to build h5py
"""


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (COMPILER, "../src/a.cpp:7:3: error: use of undeclared identifier 'foo'"),
        (SETUPTOOLS, "src/core.c:1:10: fatal error: nothing.h: No such file or directory"),
        (
            CMAKE,
            (
                "CMake Error at CMakeLists.txt:12 (find_package): "
                'Could not find a package configuration file provided by "Foo"'
            ),
        ),
        (PYTHON, "RuntimeError: no version"),
        (LINKER, "ld.lld: error: undefined symbol: cblas_sgemm"),
        (
            '../meson.build:4:0: ERROR: Dependency "z" not found\n',
            '../meson.build:4:0: ERROR: Dependency "z" not found',
        ),
        ("error: command 'cc' failed with exit code 1\n", "error: command 'cc' failed with exit code 1"),
        ("one\ntwo\n\n", "two"),
        ("", "it said nothing"),
        (
            'level=warning msg="Retrying. Error: no route"\nError: creating build container: no route',
            "Error: creating build container: no route",
        ),
        ("Traceback (most recent call last):\n  File x, in <module>\nException: no way", "Exception: no way"),
        (
            "error: No solution found when resolving\n  cause: Because a was not found, we give up\n",
            "Because a was not found, we give up",
        ),
        (PIP_IN_A_CONTAINER, "Exception: HDF5 >= 1.10.7"),
    ],
)
def test_the_first_real_error_is_found_in_a_build_log(output, line):
    assert failure.first_error(output) == line


def test_where_nothing_stands_out_the_last_word_is_that_of_standard_error(tmp_path):
    code = "print('compiling a.c'); import sys; sys.exit('the license server said no')"
    with pytest.raises(BuildError, match="failed: the license server said no"):
        process.run(python(code), log=tmp_path / "x.log", what="it")


def test_a_silent_death_is_described_by_its_signal(tmp_path):
    with pytest.raises(BuildError, match="killed by SIGKILL"):
        process.run(python("import os; os.kill(os.getpid(), 9)"), log=tmp_path / "x.log", what="it")


@pytest.mark.parametrize("said", ["write: No space left on device", "unable to write: NoSpaceLeft"])
def test_a_full_disk_is_not_blamed_on_the_build(tmp_path, said):
    code = f"import sys; sys.exit({said!r})"
    with pytest.raises(MissingError, match="no space left"):
        process.run(python(code), log=tmp_path / "x.log", what="it")


def test_a_disk_so_full_that_the_reason_was_not_written_is_still_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(failure.shutil, "disk_usage", lambda _path: SimpleNamespace(free=4096))
    with pytest.raises(MissingError, match="no space left"):
        process.run(python("raise SystemExit('trunc')"), log=tmp_path / "x.log", what="it")


@pytest.mark.parametrize(
    "said",
    [
        "error: Request failed after 3 retries in 8.7s",
        "curl: (6) Could not resolve host: index.example",
        "urllib3.exceptions.MaxRetryError: Max retries exceeded with url: /simple/",
        "OSError: [Errno 101] Network is unreachable",
    ],
)
def test_no_network_is_something_missing_here(tmp_path, said):
    with pytest.raises(MissingError, match="failed: no answer from the network"):
        process.run(["sh", "-c", f"echo '{said}' >&2; exit 1"], log=tmp_path / "log", what="fetching")


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (
            "W: Failed to fetch http://a.example/x  Temporary failure resolving 'a.example'\nE: Some\n",
            r"answer from a\.example: Temporary failure resolving 'a\.example'\n",
        ),
        (
            "E: Failed to fetch http://a.example:80/pool/x.deb  Could not connect to a.example:80\n",
            r"answer from a\.example:80: Could not connect to a\.example:80\n",
        ),
    ],
)
def test_an_archive_that_does_not_answer_apt_is_named(tmp_path, said, named):
    with pytest.raises(MissingError, match=named):
        process.run(["sh", "-c", 'echo "$0" >&2; exit 100', said], log=tmp_path / "log", what="it")


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("  cause: failed to open file `/uv/archive-v0/.tmpx`: No space left on device (os error 28)",
         "/uv/archive-v0/.tmpx"),
        ("E: You don't have enough free space in /cache/apt/archives/.", "/cache/apt/archives/"),
        ("E: Failed to fetch http://a.example/x/y  Write error - write (28: No space left on device)", None),
        ("ld: No space left on device", None),
    ],
)  # fmt: skip
def test_a_full_disk_has_the_place_that_a_program_names(tmp_path, said, named):
    with pytest.raises(MissingError, match=re.escape(f"that holds {named or tmp_path} (log: ")):
        process.run(["sh", "-c", 'echo "$0" >&2; exit 2', said], log=tmp_path / "log", what="it")


def test_a_long_line_of_a_build_about_a_full_disk_is_read_at_once(tmp_path):
    """It would catch a pattern whose time grows with the square of the line: hours for this one."""
    said = "print(' /' + 'x' * 1_000_000 + '\\nno space left on device'); raise SystemExit(1)"
    before = time.process_time()
    with pytest.raises(MissingError, match="no space left"):
        process.run(python(said), log=tmp_path / "log", what="it")
    said = said.replace("\\n", " ")
    with pytest.raises(MissingError, match="no space left"):
        process.run(python(said), log=tmp_path / "log", what="it")
    assert time.process_time() - before < 10


def test_the_search_for_a_full_place_takes_no_time_with_the_cube_of_a_line():
    before = time.process_time()
    assert failure.FULL_PLACE.search("-/" * 2000 + "x" * 4000) is None
    assert time.process_time() - before < 10


@pytest.mark.parametrize("said", ["'x' * 30_000_000", "('x' * 99 + '\\n') * 300_000"])
def test_of_a_long_output_the_beginning_and_the_end_are_searched(tmp_path, said):
    """A link of an index page may have 30 MB, which uv repeats in its error: each pattern takes seconds."""
    said = f"print('error: no ' + {said} + 'x is broken'); raise SystemExit(1)"
    before = time.process_time()
    with pytest.raises(BuildError, match=r"^it failed: error: no xxx"):
        process.run(python(said), log=tmp_path / "log", what="it")
    assert time.process_time() - before < 10
    log = failure.read_log(tmp_path / "log")
    assert (log[:2], log[-12:], len(log) <= failure.MOST_SEARCHED) == ("$ ", "x is broken\n", True)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (failure.UNSOLVABLE, "\n" * 100_000),
        (failure.APT_UNANSWERED, "E: Failed to fetch http://a" + " " * 100_000),
        (failure.APT_UNANSWERED, "E: Failed to fetch http://" + "a" * 100_000),
        (failure.UNANSWERED, "failed to fetch: " + "a" * 100_000 + " "),
    ],
)
def test_a_pattern_for_what_downloaders_say_takes_no_time_with_the_square_of_a_line(pattern, text):
    before = time.process_time()
    assert pattern.search(text) is None
    assert time.process_time() - before < 10


def test_a_full_folder_of_temporary_files_has_its_name_though_nothing_can_be_written_there(monkeypatch):
    """`tempfile.gettempdir` names the current folder in its place, or finds none."""
    monkeypatch.delenv("TMPDIR", raising=False)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda path: usage._replace(free=4096 if str(path) == "/tmp" else 1 << 40),  # noqa: S108
    )
    monkeypatch.setattr(tempfile, "tempdir", "/var")
    assert "the device that holds /tmp (log: " in failure.no_space("it", Path("/nowhere/log"))
    assert "the device that holds /tmp (log: " in failure.no_space("it", Path("/nowhere/log"), env={})


@pytest.mark.parametrize("full", ["temporary", "log", "both"])
def test_a_full_folder_of_temporary_files_is_named_and_not_the_one_of_the_log(tmp_path, monkeypatch, full):
    """Compilers and Python write there, and seldom say where they wrote."""
    folders = {name: tmp_path / name for name in ("temporary", "log")}
    for folder in folders.values():
        folder.mkdir()
    usage = shutil.disk_usage(tmp_path)
    few = {str(folder) for name, folder in folders.items() if full in (name, "both")}
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(free=4096 if str(path) in few else 1 << 40)
    )
    said = "OSError: [Errno 28] No space left on device"
    named = folders["log" if full == "both" else full]
    with pytest.raises(MissingError, match=re.escape(f"that holds {named} (log: ")):
        process.run(
            ["sh", "-c", 'echo "$0" >&2; exit 1', said],
            log=folders["log"] / "x.log",
            what="it",
            env={**os.environ, "TMPDIR": str(folders["temporary"])},
        )


@pytest.mark.parametrize(
    "failed", ["fetch: http://index.example/simple/x/", "download `http://index.example/python.tar.gz`"]
)
def test_a_host_that_does_not_answer_is_named_with_the_last_reason(tmp_path, failed):
    said = (
        "error: Request failed after 3 retries in 8.4s\n"
        f"  cause: Failed to {failed}\n"
        "  cause: error sending request for url (http://index.example/simple/x/)\n"
        "  cause: tcp connect error\n  cause: Connection refused (os error 111)\n"
    )
    with pytest.raises(
        MissingError, match=r"answer from index\.example: Connection refused \(os error 111\)\n"
    ):
        process.run(["sh", "-c", 'echo "$0" >&2; exit 2', said], log=tmp_path / "log", what="it")
