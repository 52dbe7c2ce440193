"""The engine's options as one object, and as flags of a program's own parser; names are vLLM's."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from armllm.engine.config import USAGES, EngineConfig
from armllm.engine.spread import NAME, config_of
from armllm.errors import RequestError
from armllm.foregone import Foregone, foregone_options
from armllm.utils.options import human_readable_int, ranks

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"  # vLLM's
CONTEXTS = {"LLM_CLASS": "offline", "OPENAI_API_SERVER": "server"}  # UsageContext -> USAGES
_CONFIG = {field.name: field for field in dataclasses.fields(EngineConfig)}
_Options = dataclasses.make_dataclass(
    "_Options",
    [("model", str, dataclasses.field(default=DEFAULT_MODEL))]
    + [
        (name, Any, dataclasses.field(default=None if name in USAGES["server"] else field.default))
        for name, field in _CONFIG.items()
        if name != "model"
    ],
    init=False,
)


class EngineArgs(_Options):  # type: ignore[misc, valid-type]
    """The options of `LLM`, before a model is loaded. The fields are those of `EngineConfig`.

    vLLM's other fields can be set to the values that change nothing. RequestError says why another one is
    refused, TypeError names one that does not exist.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        for name, field in type(self).__dataclass_fields__.items():
            setattr(self, name, field.default)
        for name, value in {"model": model, **options}.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field of the engine; check one that only vLLM has."""
        option = foregone_options().get(name)
        if option is not None and not option.command is not None:
            if (refused := option.refusal(value)) is not None:
                raise RequestError(f"{name} {refused}")
        elif name in type(self).__dataclass_fields__:
            super().__setattr__(name, value)
        else:
            raise TypeError(f"{type(self).__name__} does not take {name!r}; it takes {', '.join(_CONFIG)}")

    def __getattr__(self, name: str) -> Any:
        """What a field that only vLLM has amounts to."""
        option = foregone_options().get(name)
        if option is None or option.command is not None:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")
        return _neutral(option)

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Give a parser a flag for each option; those that only vLLM has are not shown by --help."""
        for name, field in cls.__dataclass_fields__.items():
            flag = f"--{name.replace('_', '-')}"
            reader = _reader(str(_CONFIG[name].type), field.default)
            parser.add_argument(flag, default=field.default, **({"type": ranks} if name == NAME else reader))
        for option in foregone_options().values():
            flag = f"--{option.name.replace('_', '-')}"
            if option.command is not None or flag in parser._option_string_actions:  # noqa: SLF001 - a flag of the program's own stays
                continue
            reader = _reader("bool" if option.is_switch else "Any", None)
            parser.add_argument(flag, default=_neutral(option), help=argparse.SUPPRESS, **reader)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """The options of a parsed command line; what else is in it stays out."""
        values = vars(args)
        names = [
            *cls.__dataclass_fields__,
            *(one.name for one in foregone_options().values() if one.command is None),
        ]
        return cls(**{name: values[name] for name in names if name in values})

    def create_engine_config(self, usage_context: Any = None) -> EngineConfig:
        """The checked options; RequestError names one that is out of range.

        usage_context: who asks, as vLLM's UsageContext; it decides about defaults.
        """
        options = {name: getattr(self, name) for name in type(self).__dataclass_fields__}
        usage = CONTEXTS.get(getattr(usage_context, "value", usage_context), "engine")
        return config_of(options.pop("model"), options, usage)


class AsyncEngineArgs(EngineArgs):
    """The same for `AsyncLLM`."""


def _neutral(option: Foregone) -> Any:
    if not option.accepted:
        return None
    return False if False in option.accepted and option.is_switch else option.accepted[0]


def _reader(kind: str, default: Any) -> dict[str, Any]:
    """How argparse reads a field of this type."""
    if "bool" in kind or isinstance(default, bool):
        return {"action": argparse.BooleanOptionalAction}
    if "int" in kind:
        return {"type": human_readable_int}
    if "dict" in kind:
        return {"type": json.loads}
    return {"type": _value} if kind == "Any" else {}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
