from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

CAPTURES = sorted((Path(__file__).parent / "cpuinfo").glob("qemu-*.txt"))


@dataclass(frozen=True)
class Capture:
    """/proc/cpuinfo, auxiliary vector and vector lengths in bytes as seen under `qemu-aarch64 -cpu`."""

    name: str
    cpuinfo: str
    hwcap: int
    hwcap2: int
    sve: int
    sme: int


def read_capture(path: Path) -> Capture:
    head, _, cpuinfo = path.read_text().partition("--\n")
    values = dict(line.split() for line in head.splitlines())
    return Capture(
        name=path.stem.removeprefix("qemu-"),
        cpuinfo=cpuinfo,
        hwcap=int(values["hwcap"], 16),
        hwcap2=int(values["hwcap2"], 16),
        sve=int(values["sve"]),
        sme=int(values["sme"]),
    )


@pytest.fixture(params=CAPTURES, ids=[path.stem for path in CAPTURES])
def capture(request):
    return read_capture(request.param)


@pytest.fixture
def captures():
    return {item.name: item for item in map(read_capture, CAPTURES)}
