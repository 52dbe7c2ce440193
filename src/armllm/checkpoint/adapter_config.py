"""adapter_config.json: which modules a LoRA adapter changes, with which rank and factor, as PEFT reads it.

Its patterns are regular expressions of a stranger: they are counted, and matched in bounded time.
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any

from armllm.checkpoint.json_file import read_object
from armllm.checkpoint.patterns import Matcher
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

CONFIG = "adapter_config.json"
LONGEST_PATTERN = 1000  # characters of a regular expression
MOST_PATTERNS = 1024  # of one key; a model of 126 layers has 882 matrices
WEIGHT = ".weight"  # ends a parameter that is the matrix of a module
# Initializations that leave the base's weights as they are; PiSSA, OLoRA, CorDA and LoftQ change them.
PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
# Training, bookkeeping, and how the base stores its matrices: the factors of GPT-2's transposed ones are as
# those of others.
IGNORED = frozenset(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "fan_in_fan_out"}
    | {"inference_mode"}
    | {"init_lora_weights", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_type"}
    | {"peft_version", "qalora_group_size", "revision", "runtime_config", "task_type"}
)
READ = frozenset(
    {"alpha_pattern", "bias", "exclude_modules", "layers_pattern", "layers_to_transform", "lora_alpha", "r"}
    | {"rank_pattern", "target_modules", "target_parameters", "use_dora", "use_rslora"}
)


class AdapterConfig:
    """adapter_config.json; what is not supported is refused when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._matcher = Matcher(f"adapter {folder}")
        try:
            self.values = read_object(folder / CONFIG)
        except FileNotFoundError:
            raise CheckpointError(f"adapter {folder} has no {CONFIG}: not a PEFT adapter") from None
        self._refuse_unknown()
        self.use_dora, self._use_rslora = self._switch("use_dora"), self._switch("use_rslora")
        self._ranks, self._alphas = self._pattern("rank_pattern"), self._pattern("alpha_pattern")
        self.targets = self._names("target_modules")
        self._parameters = self._modules_of_parameters()
        self._excluded = self._names("exclude_modules")
        self._layers = self._numbers_of_layers()
        patterns = self.values.get("layers_pattern") or []
        self._stacks = self._texts("layers_pattern", [patterns] if isinstance(patterns, str) else patterns)
        for name in self._stacks:
            if not re.fullmatch(r"\w+(\.\w+)*", name):
                raise self.error(f"layers_pattern {name!r:.100} is no name of a list of layers")

    def error(self, message: str) -> CheckpointError:
        """A CheckpointError that names the adapter."""
        return CheckpointError(f"adapter {self.folder}: {message:.400}")

    def _refuse_unknown(self) -> None:
        values = self.values
        if values.get("peft_type", "LORA") != "LORA":
            raise self.error(f"peft_type {values['peft_type']!r} is not supported, only LORA")
        if values.get("bias", "none") != "none":
            raise self.error(f"bias {values['bias']!r} is not supported, only 'none'")
        if values.get("modules_to_save"):
            raise self.error(
                f"modules_to_save {values['modules_to_save']!r} is not supported: merge the adapter"
            )
        if values.get("init_lora_weights") not in PLAIN_STARTS:
            raise self.error(
                f"init_lora_weights {values['init_lora_weights']!r} is not supported: it changes the base's"
                " weights; convert the adapter with PEFT's path_initial_model_for_weight_conversion"
            )
        for key, value in values.items():
            if value and key not in IGNORED and key not in READ:
                raise self.error(f"{key} {value!r} is not supported")

    def _switch(self, key: str) -> bool:
        value = self.values.get(key) or False
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    def _number(self, name: str, value: Any, *, whole: bool) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int if whole else int | float)
            or not abs(value) < 1e9
        ):
            raise self.error(f"{name} must be a {'whole ' if whole else ''}number below 1e9, not {value!r}")
        if whole and value < 1:
            raise self.error(f"{name} must be at least 1, not {value!r}")
        return value

    def _pattern(self, key: str) -> dict[str, float]:
        values = self.values.get(key) or {}
        if not isinstance(values, dict):
            raise self.error(f"{key} must be an object, not {values!r}")
        if len(values) > MOST_PATTERNS:
            raise self.error(f"{key} has {len(values)} patterns; no more than {MOST_PATTERNS} are taken")
        for name in values:
            self._check(key, name)
        return {
            name: self._number(f"{key}.{name}", value, whole=key == "rank_pattern")
            for name, value in values.items()
        }

    def _texts(self, key: str, values: Any) -> list[str]:
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            raise self.error(f"{key} must be a text or a list of texts, not {values!r}")
        if len(values) > MOST_PATTERNS:
            raise self.error(f"{key} has {len(values)} names; no more than {MOST_PATTERNS} are taken")
        return values

    def _names(self, key: str) -> str | frozenset[str]:
        values = self.values.get(key)
        if isinstance(values, str):
            self._check(key, values)
            return values
        return frozenset(self._texts(key, values or []))

    def _modules_of_parameters(self) -> frozenset[str]:
        """The modules in target_parameters, as PEFT names routers; experts have other names."""
        names = self._texts("target_parameters", self.values.get("target_parameters") or [])
        for name in names:
            if not name.endswith(WEIGHT):
                raise self.error(f"target_parameters {name!r:.100} is not supported (MoE experts)")
        return frozenset(name.removesuffix(WEIGHT) for name in names)

    def _numbers_of_layers(self) -> set[int] | None:
        values = self.values.get("layers_to_transform")
        if values is None:
            return None
        values = values if isinstance(values, list) else [values]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in values):
            raise self.error(f"layers_to_transform must be numbers of layers, not {values!r}")
        return set(values)

    def _check(self, key: str, pattern: str) -> None:
        """Compile it; CheckpointError names the pattern."""
        if len(pattern) > LONGEST_PATTERN:
            raise self.error(f"{key} has a pattern of more than {LONGEST_PATTERN} characters")
        self._matcher.matches(pattern, "")

    def ranks(self, modules: Collection[str], max_rank: int) -> dict[str, int]:
        """The ranks of the modules that the file has changes of: what rank_pattern, or else r, says."""
        for module in modules:
            if not self.is_target(module):
                raise self.error(f"the file changes {module}, which target_modules in {CONFIG} does not name")
        default = self._number("r", self.values.get("r", 8), whole=True)
        ranks = {
            module: int(rank) for module, rank in self._by_pattern(self._ranks, modules, default).items()
        }
        for module, rank in ranks.items():
            if rank > max_rank:
                raise self.error(
                    f"rank {rank} of {module} is above max_lora_rank {max_rank}: raise max_lora_rank"
                )
        return ranks

    def scalings(self, ranks: dict[str, int]) -> dict[str, float]:
        """By module, of its rank: LoRA's alpha / rank, or alpha / sqrt(rank) (Kalajdzievski 2023)."""
        default = self._number("lora_alpha", self.values.get("lora_alpha", 8), whole=False)
        alphas = self._by_pattern(self._alphas, ranks, default)
        return {
            module: alphas[module] / (math.sqrt(rank) if self._use_rslora else rank)
            for module, rank in ranks.items()
        }

    def _by_pattern(
        self, values: dict[str, float], modules: Collection[str], default: float
    ) -> dict[str, float]:
        """By module: the value of the first pattern that matches the end of its name, or of its parameter's.

        Pattern by pattern, since `re` remembers only a few that it has compiled.
        """
        found: dict[str, float] = {}
        keys = {name: f"{name}{WEIGHT}" if self.is_parameter(name) else name for name in modules}
        for pattern, value in values.items():
            for module, key in keys.items():
                if module not in found and self._matcher.matches(rf"(.*\.)?({pattern})$", key):
                    found[module] = value
        return {module: found.get(module, default) for module in modules}

    def is_target(self, module: str) -> bool:
        """Whether target_modules, exclude_modules and layers_to_transform let the adapter change a module.

        The last two say nothing of those in target_parameters.
        """
        if self.is_parameter(module):
            return True
        if self._excluded and self._matches(self._excluded, module):
            return False
        if isinstance(self.targets, str):
            return self.targets.lower() == "all-linear" or self._matches(self.targets, module)
        if not self._matches(self.targets, module):
            return False
        if self._layers is None or module in self.targets:
            return True
        found = re.match(self._layer_pattern, f".{module}")
        return found is not None and int(found.group(1)) in self._layers

    def is_parameter(self, module: str) -> bool:
        """Whether target_parameters names its matrix."""
        return self._matches(self._parameters, module)

    @functools.cached_property
    def _layer_pattern(self) -> re.Pattern[str]:
        stacks = "|".join(map(re.escape, self._stacks)) or r"[^.]*"
        return re.compile(rf".*\.(?:{stacks})\.([0-9]{{1,9}})\.")

    def _matches(self, names: str | frozenset[str], module: str) -> bool:
        if isinstance(names, str):
            return self._matcher.matches(names, module, whole=True)
        parts = module.split(".")
        return any(".".join(parts[first:]) in names for first in range(len(parts)))
