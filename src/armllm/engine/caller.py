"""Who asks, and in which order each of them is served."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Rank: TypeAlias = tuple[int, float, int]  # priority, place among those of its client, order of arrival


class Caller(NamedTuple):
    """Who asks, and which of their requests it is."""

    client: str = ""
    request: int = 0


NOBODY = Caller()
