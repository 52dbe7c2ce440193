"""TOML files of strangers: no more bytes than asked for, and no key that takes the parser gigabytes."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_PARTS = 32
# What stands in a string or a comment is no key. One without an end takes all: none is read twice.
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)'
    r"|'''.*?(?:'''|\Z)"
    r'|"(?:\\.|[^"\\\n])*(?:"|(?=\n)|\Z)'
    r"|'[^'\n]*(?:'|(?=\n)|\Z)"
    r"|#[^\n]*",
    re.DOTALL,
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{_MOST_PARTS}}}")


def read(path: Path, limit: int) -> dict[str, Any]:
    """Return the table in a file; raises ValueError for what is none, or takes too much to read."""
    if path.stat().st_size > limit:
        raise ValueError(f"it has more than {limit >> 10} KiB")
    text = path.read_text(encoding="utf-8")
    if _LONG_KEY.search(_STRING.sub("s", text)):
        raise ValueError(f"a key has more than {_MOST_PARTS} parts")
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    return table
