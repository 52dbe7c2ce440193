"""The container engines that armbuild drives."""

from __future__ import annotations

import shutil

ENGINES = ("docker", "podman")


def installed() -> list[str]:
    """Return the engines whose programs are on this machine."""
    return [name for name in ENGINES if shutil.which(name)]
