"""Options of vLLM that have one meaning here: programs and guides written for vLLM bring them along."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armllm.utils.options import dashed, opposite

if TYPE_CHECKING:
    from collections.abc import Sequence

# what vllm's parser also calls them
SHORT_NAMES = {
    "-pcp": "prefill_context_parallel_size",
    "-dcp": "decode_context_parallel_size",
    "-dp": "data_parallel_size",
    "-dpn": "data_parallel_rank",
    "-dpr": "data_parallel_start_rank",
    "-dpl": "data_parallel_size_local",
    "-dpa": "data_parallel_address",
    "-dpp": "data_parallel_rpc_port",
    "-dpb": "data_parallel_backend",
    "-dph": "data_parallel_hybrid_lb",
    "-dpe": "data_parallel_external_lb",
    "-dpm": "data_parallel_multi_port_external_lb",
    "-ep": "enable_expert_parallel",
    "-asc": "api_server_count",
    "-O": "optimization_level",
    "-ac": "attention_config",
    "-cc": "compilation_config",
    "-dc": "diffusion_config",
    "-sc": "speculative_config",
}


@dataclasses.dataclass(frozen=True)
class Foregone:
    """One option. accepted: the values that ask for what is done anyway; reason: why there are no others.

    without_effect: others are accepted too, with a warning. command: the only one that has it.
    """

    name: str
    accepted: tuple[Any, ...]
    reason: str
    without_effect: bool
    command: str | None

    @property
    def is_switch(self) -> bool:
        """Whether it is ``--name`` and ``--no-name`` on a command line, without a value."""
        return bool(self.accepted) and all(isinstance(value, bool) for value in self.accepted)

    def refusal(self, value: Any) -> str | None:
        """The reason why a value is not supported; None for one that is. May log one warning."""
        if value is None or value == {} or any(_equal(value, one) for one in self.accepted):
            return None
        if self.without_effect:
            _warn_once(self.name, self.reason)
            return None
        if not self.accepted:
            return f"is not supported: {self.reason}"
        values = " or ".join(repr(one) for one in self.accepted)
        return f"can only be {values} here, not {value!r:.80}: {self.reason}"


def _equal(value: Any, accepted: Any) -> bool:
    """Whether they are the same: ``False`` is not 0, and a set is as good as a list."""
    if isinstance(value, (set, tuple)):
        value = list(value)
    return bool(value == accepted) and isinstance(value, bool) == isinstance(accepted, bool)


@functools.cache
def _warn_once(name: str, reason: str) -> None:
    import logging  # noqa: PLC0415 - every command would wait for it

    logging.getLogger(__name__).warning("%s has no effect here: %s", name, reason)


@functools.cache
def foregone_options() -> dict[str, Foregone]:
    """All such options by name."""
    if sys.version_info >= (3, 11):  # every command would wait for it
        import tomllib  # noqa: PLC0415
    else:
        import tomli as tomllib  # noqa: PLC0415

    groups = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["group"]
    return {
        name: Foregone(
            name,
            tuple(accepted),
            group["reason"],
            without_effect=group.get("without_effect", False),
            command=group.get("command"),
        )
        for group in groups
        for name, accepted in group["options"].items()
    }


def find_flag(argument: str) -> Foregone | None:
    """The option that an argument of a command line names, as ``--name``, ``--no-name`` or ``-sc.method``."""
    name = argument.partition("=")[0].partition(".")[0]
    if name not in SHORT_NAMES and name.startswith("-O") and name[2:].isdigit():
        name = "-O"
    if name in SHORT_NAMES:
        return foregone_options()[SHORT_NAMES[name]]
    if not name.startswith("--"):
        return None
    plain = name[2:].replace("-", "_")
    options = foregone_options()
    other = (opposite(dashed(name)) or "").removeprefix("--no-").replace("-", "_")
    switches = (options.get(one) for one in (plain.removeprefix("no_"), other))
    return options.get(plain) or next((one for one in switches if one is not None and one.is_switch), None)


def read_flag(option: Foregone, arguments: Sequence[str]) -> tuple[Any, int]:
    """The value that a command line gives the option at its start, and how many arguments that takes."""
    name, equals, text = arguments[0].partition("=")
    if option.is_switch:
        return not name.startswith("--") or name[2:].replace("-", "_") == option.name, 1
    if name.startswith("-O") and name != "-O":
        return _value(name[2:]), 1
    if equals:
        return _value(text), 1
    if len(arguments) == 1 or arguments[1].startswith("--"):
        return True, 1  # vllm's parser misses a value; it is refused, or warned about, all the same
    return _value(arguments[1]), 2


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return None if text == "None" else text
