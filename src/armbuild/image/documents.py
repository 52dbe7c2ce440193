"""The JSON documents of images, where two readers would take one in two ways: an audit and a runtime.

Runtimes are written in Go, whose encoding/json takes a name in any letters, and the last of two.
"""

from __future__ import annotations

import json
from typing import Any

DOCUMENT = ("manifests", "layers", "config", "rootfs", "architecture", "mediaType", "annotations", "fsLayers")
DESCRIPTOR, PLATFORM, ROOT = (
    ("digest", "mediaType", "platform", "annotations"),
    ("architecture",),
    ("diff_ids",),
)
SAVED = ("Config", "Layers", "RepoTags")
SETTINGS = ("User", "Env", "Entrypoint", "Cmd", "Labels", "Healthcheck", "Shell", "WorkingDir", "Volumes")
"""Names in objects of documents, as the specifications spell them."""


def parsed(content: bytes) -> Any:
    """Return a JSON document; ValueError for a name that is there twice, of which readers take either."""
    return json.loads(content, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name that is there twice")
    return found


def spelled(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return an object of a document; ValueError for a name in other letters, which Go takes for the same."""
    folded = {name.casefold(): name for name in names}
    for name in value:
        if folded.get(name.casefold(), name) != name:
            raise ValueError(f"{name!r:.100} in place of {folded[name.casefold()]!r}")
    return value


def check_kind(entry: dict[str, Any], document: dict[str, Any]) -> None:
    """Raise ValueError for a document that is an index and an image (CVE-2021-41190)."""
    kinds = {kind for kind in (entry.get("mediaType"), document.get("mediaType")) if kind}
    both = "manifests" in document and {"layers", "config"} & document.keys()
    if len(kinds) > 1 or both or "fsLayers" in document:
        raise ValueError("an index and an image in one, or an image of the first format")
