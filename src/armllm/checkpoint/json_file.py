"""JSON objects from untrusted files: read whole or refused in a line, in bounded memory.

Sizes are looked at before a file is read. Deep nesting would end the interpreter's own stack, in the parser
or where a value is shown in an error.
"""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

# The largest known index of tensors, of 91,000, has 9 MB. In memory a file becomes up to 30 times as much.
MAX_BYTES = 16 << 20
MAX_DEPTH = 32


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file; CheckpointError for anything else. FileNotFoundError where there is no file."""
    values = read_document(path)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return values


def read_document(path: Path) -> Any:
    """The value in a file, of any kind; errors as `read_object`'s."""
    try:
        check_size(path, MAX_BYTES)
        return parse(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is not JSON: {error}") from None


def check_size(path: Path, most: int) -> int:
    """The size of a file; CheckpointError for more than ``most`` bytes, and for what can be read for ever."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # to open a pipe waits for a writer, and a device has no end
        raise CheckpointError(f"{path} is no regular file")
    if found.st_size > most:
        raise CheckpointError(f"{path} has {found.st_size:,} bytes; one of more than {most:,} is not read")
    return found.st_size


def parse(data: bytes) -> Any:
    """A JSON document in UTF-8; ValueError for what is none, or is nested deeper than `MAX_DEPTH`."""
    too_deep = f"it is nested deeper than {MAX_DEPTH} levels"
    try:
        document = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError(too_deep) from None
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return document
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, (dict, list))
        ]
    raise ValueError(too_deep)
