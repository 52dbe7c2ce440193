"""Layers that are made once, and cached by their inputs."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from functools import cache as once
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild import audit
from armbuild.host import cache
from armbuild.image import content, documents, layers, packages, recipes, root, sbom

if TYPE_CHECKING:
    from armbuild.image.recipes import Recipe

BLOB, FACTS, TREE = "layer.tar.gz", "layer.json", "tree"


def layer(recipe: Recipe) -> tuple[layers.Layer, content.Content]:
    """Return the layer that ``recipe`` stands for, made when there is none yet."""

    def make(folder: Path) -> None:
        tree = folder / TREE
        tree.mkdir()
        found = recipe.inspect(tree, recipe.fill(tree))
        written = layers.write(tree, folder / BLOB, comment=recipe.comment, owners=recipe.owners)
        shutil.rmtree(tree)
        facts = {**asdict(written), "blob": BLOB, "content": found.as_dict()}
        (folder / FACTS).write_text(json.dumps(facts))
        for name in (BLOB, FACTS):
            with (folder / name).open("rb") as file:
                os.fsync(file.fileno())

    folder = _folder(recipe)
    if folder.is_dir() and not _intact(folder):  # a bit has flipped
        with cache.lock(folder):
            if not _intact(folder):
                shutil.rmtree(folder)
    cache.fill(folder, make)
    facts = json.loads((folder / FACTS).read_text())
    found = content.Content.from_dict(facts.pop("content"))
    return replace(layers.Layer(**facts), blob=folder / BLOB), found


def _intact(folder: Path) -> bool:
    """Return whether a cached layer is unchanged."""
    try:
        facts = json.loads((folder / FACTS).read_text())
        with (folder / BLOB).open("rb") as file:
            return bool(documents.digest_of(file) == facts["digest"])
    except (OSError, ValueError, LookupError, AttributeError):
        return False


def there(recipe: Recipe) -> bool:
    """Return whether the layer need not be made."""
    return _folder(recipe).is_dir()


def _folder(recipe: Recipe) -> Path:
    """Return where the layer is cached: whoever changes the code that makes layers changes the key."""
    return cache.root() / "layers" / cache.digest([recipe.inputs, recipe.comment, code()])


@once
def code() -> str:
    """Return a digest of the code that decides how layers look and what is found in them."""
    files = [Path(str(module.__file__)) for module in (content, layers, packages, recipes, root, sbom)]
    seen = sha256()
    for path in (*files, *sorted(Path(str(audit.__file__)).parent.glob("*.py"))):
        seen.update(path.read_bytes())
    return seen.hexdigest()
