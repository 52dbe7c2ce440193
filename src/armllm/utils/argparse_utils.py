"""The argument parser of programs for vLLM."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from armllm.utils.options import dashed, with_config

if TYPE_CHECKING:
    from collections.abc import Sequence


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse's parser, also for ``--max_model_len``, ``--config FILE.yaml`` and ``--name.key value``.

    The options of the file come first, so the command line wins. ``--name.key`` sets a key of an option whose
    value is JSON. RequestError says what is wrong with the file.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse the command line; see `argparse.ArgumentParser.parse_known_args`."""
        arguments = [self._known(one) for one in (sys.argv[1:] if args is None else args)]
        if "--config" not in self._option_string_actions:
            arguments = with_config(arguments)
        return super().parse_known_args(_merge_keys(arguments), namespace)

    def _known(self, argument: str) -> str:
        """With dashes, unless the parser has the flag as it is."""
        known = argument.partition("=")[0] in self._option_string_actions
        return argument if known else dashed(argument)


def _merge_keys(arguments: list[str]) -> list[str]:
    """``--name.key value`` of all keys as one ``--name={"key": value}``."""
    remaining: list[str] = []
    merged: dict[str, dict[str, Any]] = {}
    pending = iter(arguments)
    for argument in pending:
        name, equals, text = argument.partition("=")
        if not re.fullmatch(r"--?[A-Za-z][\w-]*(\.[\w-]+)+", name):
            remaining.append(argument)
            continue
        flag, *keys = name.split(".")
        value = text if equals else next(pending, "")
        target = merged.setdefault(flag, {})
        for key in keys[:-1]:
            target = target.setdefault(key, {})
        try:
            target[keys[-1]] = json.loads(value)
        except ValueError:
            target[keys[-1]] = value
    return [*remaining, *(f"{flag}={json.dumps(value)}" for flag, value in merged.items())]
