"""Whether the methods of vLLM that ours replace, and what these read of objects, are those that we know."""

from __future__ import annotations

import dis
import inspect
from inspect import Parameter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_ANY_OTHERS = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def check_attributes(kind: type, names: Iterable[str]) -> None:
    """TypeError where no class that ``kind`` derives from has or sets attributes of such names."""
    found: set[str] = set()
    for one in kind.__mro__:
        found |= vars(one).keys() | inspect.get_annotations(one).keys()
        for method in filter(inspect.isfunction, vars(one).values()):
            for step in dis.get_instructions(method):
                # a buffer of torch has its name in a text
                found |= {step.argval} if step.opname in {"STORE_ATTR", "LOAD_CONST"} else set()
    if missing := set(names) - found:
        raise TypeError(f"its {kind.__name__} has no {', '.join(sorted(missing))}")


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
    takes_others = any(one.kind in _ANY_OTHERS for one in parameters)
    found = [name for name in inspect.signature(replaced).parameters if name != "self"]
    others = set(found[len(wanted) :]) - named
    if found[: len(wanted)] != wanted or not named <= set(found) or (others and not takes_others):
        raise TypeError(f"its {replaced.__qualname__} takes {', '.join(found)}")
