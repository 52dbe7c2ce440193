"""How options are written: dashes, numbers with suffixes, files of options."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def human_readable_int(text: str | int) -> int:
    """A number that may end in k, m, g (thousands) or K, M, G (1024s); "auto" is -1.

    Raises ValueError for another text.
    """
    if text in ("-1", -1, "auto"):  # no limit, where an option has one
        return -1
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", str(text))
    if match is None or ("." in match.group(1) and match.group(2) not in ("k", "m", "g")):
        raise ValueError(f"{text!r} is not a number such as 4096, 4k or 4K")
    return int(float(match.group(1)) * _SUFFIXES.get(match.group(2), 1))


def ranks(text: str | int) -> int | str:
    """A number of ranks, or "auto". Raises ValueError for another text."""
    return "auto" if text == "auto" else int(text)


def dashed(argument: str) -> str:
    """``--max_model_len`` as ``--max-model-len``: guides write both."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def opposite(flag: str) -> str | None:
    """``--no-enable-x`` of ``--disable-x``, ``--no-disable-x`` of ``--enable-x``: vLLM has all since 0.33."""
    for prefix, other in (("--disable-", "enable"), ("--enable-", "disable")):
        if flag.startswith(prefix):
            return f"--no-{other}-{flag.removeprefix(prefix)}"
    return None


def flag_name(argument: str) -> str:
    """``--max-model-len`` of ``--max_model_len=4k``."""
    return dashed(argument).partition("=")[0]


def read_options(path: str) -> dict[str, Any]:
    """The options of a YAML file, by their names with dashes.

    Raises RequestError for what is not a file of ``name: value``.
    """
    import yaml  # noqa: PLC0415 - few commands have such a file

    try:
        options = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--config {path}: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise RequestError(f"--config {path} is not YAML: {line:.200}") from None
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise RequestError(f"--config {path}: expected lines such as `port: 8000`")
    return {name.replace("_", "-"): value for name, value in options.items()}


def several(flag: str, values: list[Any]) -> list[str]:
    """A flag with several values, as argparse takes them."""
    return [flag, *map(str, values)]


def with_config(
    arguments: list[str], write_list: Callable[[str, list[Any]], list[str]] = several
) -> list[str]:
    """The options of ``--config FILE.yaml`` as arguments, before the others; flags among the others win.

    ``write_list`` is how a flag with a list of values is written. Raises RequestError as `read_options` does.
    """
    for position, argument in enumerate(arguments):
        name, equals, path = argument.partition("=")
        if name == "--config":
            end = position + (1 if equals else 2)
            if end > len(arguments):
                raise RequestError("--config needs a file")
            remaining = arguments[:position] + arguments[end:]
            used = set(map(flag_name, remaining))
            options = read_options(path if equals else arguments[end - 1])
            written = [
                one
                for name, value in options.items()
                if not {f"--{name}", f"--no-{name}"} & used
                for one in _written(f"--{name}", value, write_list)
            ]
            return [*written, *remaining]
    return arguments


def _written(flag: str, value: Any, write_list: Callable[[str, list[Any]], list[str]]) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, list):
        return write_list(flag, value)
    return [f"{flag}={json.dumps(value) if isinstance(value, dict) else value}"]
