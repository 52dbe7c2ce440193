"""What the ops of kernels.toml expand to. The build runs this file alone: the standard library only."""

from __future__ import annotations

import fnmatch
from typing import Any

STORAGE_TYPES = ("f32", "f16", "bf16")


def all_ops(document: dict[str, Any]) -> list[str]:
    """Return every op of the document: those of each storage type, then the others."""
    ops: dict[str, list[str]] = document["ops"]
    return [f"{name}_{storage}" for storage in STORAGE_TYPES for name in ops["each"]] + ops["others"]


def target_ops(document: dict[str, Any], target: dict[str, Any]) -> list[str]:
    """Return the ops of one target: ``"all"``, or what its patterns leave, one after the other.

    A pattern is a name with wildcards (`fnmatch`); one that begins with ``!`` takes names away. Raises
    ValueError for a pattern that changes nothing.
    """
    everything = all_ops(document)
    present = set(everything) if target["ops"] == "all" else set()
    for pattern in [] if target["ops"] == "all" else target["ops"]:
        names = set(fnmatch.filter(everything, pattern.removeprefix("!")))
        changed = present - names if pattern.startswith("!") else present | names
        if changed == present:
            raise ValueError(
                f"target {target['name']}: {pattern} changes nothing: no such op, or none that is left"
            )
        present = changed
    return [op for op in everything if op in present]
