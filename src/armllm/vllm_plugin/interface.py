"""Whether the methods of vLLM that ours replace are those that we know."""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def check_methods(ours: type, names: Iterable[str]) -> None:
    """TypeError where methods of ``ours`` take other arguments than those that they replace."""
    base = ours.__mro__[1]
    for name in names:
        if not hasattr(base, name):
            raise TypeError(f"its {base.__name__} has no {name}")
        check_call(getattr(ours, name), getattr(base, name))


def check_call(ours: Callable[..., Any], replaced: Callable[..., Any]) -> None:
    """TypeError where ``ours`` takes other arguments than the method ``replaced``."""
    parameters = inspect.signature(ours).parameters.values()
    wanted = [one.name for one in parameters if one.kind in _BY_POSITION and one.name != "self"]
    named = {one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY}
    found = [name for name in inspect.signature(replaced).parameters if name != "self"]
    if found[: len(wanted)] != wanted or not named <= set(found):
        raise TypeError(f"its {replaced.__qualname__} takes {', '.join(found)}")
