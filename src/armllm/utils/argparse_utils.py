"""The argument parser of programs for vLLM."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from armllm.utils.options import dashed, opposite, with_config

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

    @staticmethod
    def check_port(value: str) -> int:
        """A type of options: a port from 1024 to 65535."""
        try:
            number = int(value)
        except ValueError:
            raise argparse.ArgumentTypeError("Port must be an integer") from None
        if not 1024 <= number <= 65535:
            raise argparse.ArgumentTypeError("Port must be between 1024 and 65535")
        return number

    def _known(self, argument: str) -> str:
        """With dashes, unless the parser has the flag as it is; ``--disable-x`` may be ``--no-enable-x``."""
        flags = self._option_string_actions
        if argument.partition("=")[0] in flags:
            return argument
        argument = dashed(argument)
        other = opposite(argument)
        return other if other is not None and other in flags and argument not in flags else argument


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
