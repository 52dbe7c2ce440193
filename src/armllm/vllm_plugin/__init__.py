"""The kernels of armllm inside vLLM, by vLLM's own entry points for plugins.

vLLM calls `register` in each of its processes (https://docs.vllm.ai/en/latest/design/plugin_system.html). The
environment variable ``ARMLLM_VLLM`` says which parts are active: names from `PARTS` with commas between them,
``all`` (the default) or ``none``. With ``-`` before each name it says which are not. A part that is slower
than vLLM's own on this CPU is active only where its name is given, which may be beside ``all``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import logging
import os

VARIABLE = "ARMLLM_VLLM"
# name -> the module of this package that computes it
PARTS = {
    "int4": "mixed_precision",
    "int8": "scaled",
    "dense": "dense",
    "moe": "experts",
    "attention": "attention",
    "norm": "norms",
    "layer_norm": "layer_norms",
    "activation": "activations",
    "rotary": "rotary",
}
OPERATORS = ("norm", "layer_norm", "activation", "rotary")  # torch's compiler makes loops of these
# vLLM's variable for kernels that it must not choose, and which of these this package has added
DISABLED = "VLLM_DISABLED_KERNELS"
ADDED = "ARMLLM_VLLM_DISABLED"
_logger = logging.getLogger("vllm.armllm")


@dataclasses.dataclass(frozen=True)
class Status:
    """Whether a part is active in this process, and why not. is_problem: it should be."""

    part: str
    reason: str = ""
    is_problem: bool = False

    @property
    def is_active(self) -> bool:
        return not self.reason


def wanted_parts(text: str) -> frozenset[str]:
    """Read the value of ARMLLM_VLLM; ValueError names what is no part."""
    names = {name for name in text.lower().replace(" ", "").split(",") if name}
    if names <= {"none"}:
        return frozenset()
    listed = names - {"all"}
    if listed <= {f"-{part}" for part in PARTS}:
        return frozenset(part for part in PARTS if f"-{part}" not in listed)
    if unknown := listed - PARTS.keys():
        known = ", ".join(PARTS)
        shown = ", ".join(sorted(unknown))[:300]
        raise ValueError(f"{VARIABLE} has {shown!a}; it takes all, none, or of: {known}")
    return frozenset(PARTS if "all" in names else names)


@functools.cache
def activate() -> tuple[Status, ...]:
    """Register what ARMLLM_VLLM asks for with the vLLM that is installed, once in a process.

    ValueError says what is wrong with the variable. A vLLM with another interface keeps its own kernels.
    """
    _forget_parent()
    text = os.environ.get(VARIABLE, "all") or "none"
    wanted = wanted_parts(text)
    named = wanted.intersection(text.lower().replace(" ", "").split(","))
    return tuple(
        _activate(part, is_named=part in named)
        if part in wanted
        else Status(part, f"switched off by {VARIABLE}")
        for part in PARTS
    )


def _forget_parent() -> None:
    """Take out of `DISABLED` what the process that started this one added: its parts may be others."""
    added = os.environ.pop(ADDED, "").split(",")
    if names := os.environ.get(DISABLED):
        os.environ[DISABLED] = ",".join(name for name in names.split(",") if name not in added)


def _activate(part: str, *, is_named: bool) -> Status:
    try:
        if not importlib.import_module("vllm.platforms").current_platform.is_cpu():
            return Status(part, "this vLLM does not compute on the CPU")
        module = importlib.import_module(f"armllm.vllm_plugin.{PARTS[part]}")
        why_slower = getattr(module, "why_slower", str)  # a part without it is slower nowhere
        if (slower := why_slower()) and not is_named:
            return Status(part, f"{slower}; {VARIABLE}={part} takes ours nevertheless")
        _add_to_compile_key(part)
        switched_off = module.register()  # the reason, of a part that vLLM's own variable can switch off
    except Exception as error:  # noqa: BLE001 - whatever another version of vLLM has changed
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return Status(part, f"this vLLM has another interface: {line:.300}", is_problem=True)
    return Status(part, switched_off or "")


def _add_to_compile_key(part: str) -> None:
    """Tell vLLM that models which it compiled and stored without the part are others.

    Its key of a compiled model has the values of the variables that it knows (`vllm.envs.compile_factors`).
    A compiled model also has the layouts of weights in it, which follow from the targets of the kernels.
    """
    variables = importlib.import_module("vllm.envs").environment_variables
    key = variables.get(VARIABLE, _own_key)
    variables[VARIABLE] = lambda: f"{key()} {part}"


def _own_key() -> str:
    targets = {entry["target"] for entry in importlib.import_module("armllm.kernels").report().values()}
    return " ".join([importlib.metadata.version("armllm"), *sorted(targets)])


def loads_gguf() -> bool:
    """Whether the vLLM that is installed may have a loader for GGUF: it has none where its list lacks it."""
    try:
        module = importlib.import_module("vllm.model_executor.layers.quantization")
    except ImportError:  # another vLLM has its list elsewhere
        return True
    return "gguf" in getattr(module, "QUANTIZATION_METHODS", ["gguf"])


def register() -> None:
    """What vLLM calls. It logs a line for a part that cannot be used, and never raises."""
    try:
        found = activate()
    except ValueError as error:
        _logger.warning("armllm: %s: vLLM keeps its own kernels", error)
        return
    for status in found:
        if status.is_problem:
            _logger.warning("armllm: %s: %s: vLLM keeps its own kernels", status.part, status.reason)
