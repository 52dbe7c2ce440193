"""Layers that are made once: kept in the cache under what went into them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from functools import cache as once
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armbuild import cache
from armbuild.image import content, layers, packages, root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

BLOB, FACTS, TREE = "layer.tar.gz", "layer.json", "tree"


def layer(
    inputs: Any,
    fill: Callable[[Path], Iterable[Mapping[str, Any]]],
    *,
    comment: str,
    owners: Mapping[str, int] | None = None,
    inspect: Callable[[Path, Iterable[Mapping[str, Any]]], content.Content] = content.inspect,
) -> tuple[layers.Layer, content.Content]:
    """Return the layer that ``inputs`` (a JSON value) stand for, made by ``fill`` when there is none yet.

    ``fill`` lays files into an empty folder that stands for the image's root and returns the components of
    the bill of materials. Whoever changes the code that makes layers changes the key.
    """

    def make(folder: Path) -> None:
        tree = folder / TREE
        tree.mkdir()
        found = inspect(tree, fill(tree))
        written = layers.write(tree, folder / BLOB, comment=comment, owners=owners)
        shutil.rmtree(tree)
        facts = {**asdict(written), "blob": BLOB, "content": found.as_dict()}
        (folder / FACTS).write_text(json.dumps(facts))

    folder = cache.fill(cache.root() / "layers" / cache.digest([inputs, comment, _code()]), make)
    facts = json.loads((folder / FACTS).read_text())
    found = content.Content.from_dict(facts.pop("content"))
    return replace(layers.Layer(**facts), blob=folder / BLOB), found


@once
def _code() -> str:
    """Return a digest of what decides how layers look."""
    seen = sha256()
    for module in (content, layers, packages, root):
        seen.update(Path(str(module.__file__)).read_bytes())
    return seen.hexdigest()
