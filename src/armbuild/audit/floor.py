"""What code may use: a floor for the whole file, and guards for functions that run only behind a check."""

from __future__ import annotations

import fnmatch
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from armbuild.errors import UsageError
from armisa import Isa, kernel_targets
from armisa.tables import (
    architectures,
    extension_name,
    extensions_of,
    find_target,
    implied,
    key,
    suggestion,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Functions or sections that match ``pattern`` (shell style) may use ``extensions`` above the floor."""

    pattern: str
    extensions: frozenset[str]

    def matches(self, function: str, section: str) -> bool:
        """Return whether code of this function in this section is meant."""
        return bool(self._expression(function) or self._expression(section))

    @functools.cached_property
    def _expression(self) -> Callable[[str], re.Match[str] | None]:
        """Match a name; compiled once, since a file may have 100,000 functions."""
        return re.compile(fnmatch.translate(self.pattern)).match


def parse_floor(text: str) -> frozenset[str]:
    """Return the extensions that a floor allows.

    ``text`` is a core or product (``neoverse-n1``), an architecture level (``armv8.2-a``), or a level with
    extensions (``armv8.2-a+dotprod+fp16``), as in compilers' -march. Raises UsageError for anything else.
    """
    name, *added = [part.strip() for part in text.split("+")]
    levels = {
        key(spelling): level
        for level in architectures().values()
        for spelling in (level.name, *level.aliases)
    }
    if key(name) in levels:
        base = levels[key(name)].extensions
    elif re.match(r"armv?\d", name, re.IGNORECASE):
        raise UsageError(f"unknown architecture {name!r}{suggestion(name, architectures())}")
    else:
        find_target(name)
        base = extensions_of(Isa.from_target(name).features)
    return _closed(base | {extension_name(item) for item in added})


def parse_guard(text: str) -> Guard:
    """Return the guard ``PATTERN=FEATURES`` (features joined by ``+`` or ``,``); raises UsageError."""
    pattern, equals, features = text.rpartition("=")
    names = [name for name in re.split(r"[+,\s]+", features) if name]
    if not equals or not pattern or not names:
        raise UsageError(f"--guard {text!r}: expected PATTERN=FEATURES, such as '*_sve_*=sve+bf16'")
    return make_guard(pattern, names)


def make_guard(pattern: str, names: Iterable[str]) -> Guard:
    """Return a guard that allows the extensions called ``names`` (any spelling)."""
    return Guard(pattern=pattern, extensions=_closed(extension_name(name) for name in names))


def built_in_guards() -> tuple[Guard, ...]:
    """Return the guards of armllm's own code: a target's section may use what the target requires.

    The counters of csrc/atomics.cpp, in ``armllm_lse``, may use LSE.
    """
    return (
        Guard(pattern="armllm_lse", extensions=_closed({"lse"})),
        *(
            Guard(
                pattern=f"armllm.{target.name}",
                extensions=_closed(extensions_of(target.features | {"fp", "asimd"})),
            )
            for target in kernel_targets()
            if target.machine in ("any", "aarch64")
        ),
    )


def _closed(names: Iterable[str]) -> frozenset[str]:
    """Return ``names`` with what they imply to compilers: +sve+bf16 allows SVE's bf16 too."""
    found = implied(names)
    if "sve" in found:
        found |= {f"sve-{base}" for base in ("bf16", "i8mm") if base in found}
    return found


__all__ = ["Guard", "built_in_guards", "make_guard", "parse_floor", "parse_guard"]
