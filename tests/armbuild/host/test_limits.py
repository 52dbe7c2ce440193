"""A program that downloads without an end is ended, with all that it started."""

import time
import zipfile

import pytest
from tests.armbuild import wheels

from armbuild.errors import MissingError
from armbuild.host import limits, process
from armbuild.target import target_packages

ENDLESS = "while :; do head -c 100000 /dev/zero > part$((n += 1)); sleep 0.01; done"
MEMORY = "python3 -c 'import time; taken = bytearray(100 << 20); time.sleep(600)' & wait"
ONE_FILE = "sleep 1; head -c 4M /dev/zero > file"
"""After a second, in which the limit of the process is set from outside."""


@pytest.fixture(autouse=True)
def look_often(monkeypatch):
    monkeypatch.setattr(limits, "LOOK_EVERY", 0.05)


def run(tmp_path, script, **values):
    return process.run(
        ["sh", "-c", script], cwd=tmp_path, log=tmp_path / "log", what="it", limits=limits.Limits(**values)
    )


@pytest.mark.parametrize(
    ("script", "values", "reason"),
    [
        ("sleep 600 & wait", {"seconds": 0.1}, "it took more than 0 s"),
        (ENDLESS, {"written_bytes": 1 << 20}, "it wrote more than 1048576 bytes"),
        (f"({ENDLESS}) & wait", {"written_bytes": 1 << 20}, "it wrote more than 1048576 bytes"),
        (ONE_FILE, {"file_bytes": 1 << 20}, "it wrote a file of more than 1048576 bytes"),
        (MEMORY, {"memory_bytes": 64 << 20}, "it took more than 67108864 bytes of memory"),
    ],
    ids=["time", "files", "children", "one file", "memory"],
)  # fmt: skip
def test_a_program_is_ended_with_the_reason(tmp_path, script, values, reason):
    with pytest.raises(MissingError, match=f"it: ended, because {reason}\n  log: "):
        run(tmp_path, script, **values)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100 << 20
    deadline = time.monotonic() + 10
    while list(process._working_in(tmp_path)):  # the kernel takes its memory back
        assert time.monotonic() < deadline, "it still works there"


def test_a_program_within_its_limits_says_what_it_says(tmp_path):
    assert run(tmp_path, "echo this") == "this\n"
    with pytest.raises(process.BuildError, match="it failed: that"):
        run(tmp_path, "echo that >&2; exit 1")


def test_what_an_ended_child_wrote_counts(tmp_path):
    script = f"head -c {1 << 20} /dev/zero > file; sleep 600"
    with pytest.raises(MissingError, match="it wrote more than 1000000 bytes"):
        run(tmp_path, script, written_bytes=1_000_000)


def test_what_a_program_wrote_counts_though_it_ended_before_anybody_looked(tmp_path, monkeypatch):
    """Catches a fast program, or a slow machine, whose excess nobody sees."""
    monkeypatch.setattr(limits, "LOOK_EVERY", 600)
    with pytest.raises(MissingError, match="it wrote more than 1000000 bytes"):
        run(tmp_path, f"head -c {1 << 20} /dev/zero > file", written_bytes=1_000_000)
    assert run(tmp_path, "echo this", written_bytes=1_000_000) == "this\n"


def test_uv_does_not_unpack_more_than_a_download_may_have(tmp_path, monkeypatch):
    """A wheel of 100 kB that becomes 100 MB."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setattr(limits, "DOWNLOAD", limits.Limits(file_bytes=20 << 20))
    wheel = wheels.write(tmp_path, "thing-1.0-py3-none-any.whl", {"thing/zeros": bytes(100 << 20)})
    with zipfile.ZipFile(wheel) as plain, zipfile.ZipFile(tmp_path / "packed", "w", 8) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    (tmp_path / "packed").replace(wheel)
    with pytest.raises(MissingError, match="it wrote a file of more than 20971520 bytes"):
        target_packages.install([wheel], "3.11", tmp_path / "site", log=tmp_path / "log")


@pytest.mark.parametrize(
    ("script", "values", "reason"),
    [
        (
            "for i in 1 2 3 4 5 6 7 8; do sleep 600 & done; wait",
            {"processes": 5},
            "it had more than 5 processes",
        ),
        ("sleep 600", {"left": 1.0}, "it left less than 100% of this machine's memory to others"),
    ],
)
def test_a_program_beside_others_is_ended_without_being_polled(tmp_path, script, values, reason):
    running = process.start(
        ["sh", "-c", script],
        cwd=tmp_path,
        output=tmp_path / "out",
        log=tmp_path / "log",
        timeout=60,
        what="it",
        limits=limits.Limits(**values),
    )
    while list(process._working_in(tmp_path)):
        time.sleep(0.02)
    assert running.excess == reason
    assert running.poll() is not None
