"""How much the audit of an archive may come to: each file of a stranger's takes its time."""

from __future__ import annotations

import dataclasses
from collections import Counter

from armbuild.audit import code, gpu
from armbuild.audit.archive import BrokenArchive

LIMITS = {
    "files": 10_000,
    "broken": 20,
    "sections": 500_000,
    "work": 3_000_000,  # steps through what runs when libraries are loaded: 2.3 million with torch, OpenVINO
    "uses": code.MAX_USES,
    "gpu entries": gpu.MAX_ENTRIES,
}
_REFUSALS = {
    "files": "it has more than {} ELF files and static libraries",
    "broken": "it has more than {} broken ELF files",
    "sections": "its ELF files have more than {} sections",
    "work": "loading its ELF files runs more code than is followed",
    "uses": "its functions use extensions in more than {} ways",
    "gpu entries": "it has more than {} pieces of code for GPUs",
}


@dataclasses.dataclass
class Effort:
    """What the audit of an archive has come to; its images share the limits.

    kept_bytes: of documents that the caller wanted.
    """

    spent: Counter[str] = dataclasses.field(default_factory=Counter)
    kept_bytes: int = 0

    def check(self) -> None:
        """Raise BrokenArchive once there is more than a limit of anything."""
        for name, limit in LIMITS.items():
            if self.spent[name] > limit:
                raise BrokenArchive(f"refused: {_REFUSALS[name].format(limit)}")
