"""LoRA adapters (Hu et al. 2021) as PEFT stores them: adapter_config.json and adapter_model.safetensors.

The whole adapter is checked against the model before any of its data is read.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import TYPE_CHECKING, Any

from armllm.checkpoint.json_file import read_object
from armllm.checkpoint.safetensors_file import SafetensorsFile
from armllm.checkpoint.weights import FLOATING
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

CONFIG, TENSORS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
# What families put before ".layers", in any order.
OUTER = ("model.", "language_model.", "decoder.")
TENSOR = re.compile(r"(.+)\.(lora_A\.weight|lora_B\.weight|lora_magnitude_vector(?:\.weight)?)")
LONGEST_PATTERN = 1000  # characters of a regular expression
# Initialisations that leave the base's weights as they are; PiSSA, OLoRA, CorDA and LoftQ change them.
PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
# Training and bookkeeping.
IGNORED = frozenset(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "inference_mode"}
    | {"init_lora_weights", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_type"}
    | {"peft_version", "qalora_group_size", "revision", "runtime_config", "task_type"}
)
READ = frozenset(
    {"alpha_pattern", "bias", "exclude_modules", "layers_pattern", "layers_to_transform", "lora_alpha", "r"}
    | {"rank_pattern", "target_modules", "use_dora", "use_rslora"}
)
_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True, eq=False)
class LowRank:
    """The change of one matrix ``W[out, in]``: ``scaling * b @ a``, of ``a[rank, in]`` and ``b[out, rank]``.

    magnitude ``[out]``: the norms that the changed rows get (DoRA, Liu et al. 2024); None: their own.
    """

    a: Tensor
    b: Tensor
    scaling: float
    magnitude: Tensor | None


@dataclasses.dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter in memory. matrices: by `plain_name`. number: no other adapter of this process has it."""

    name: str
    rank: int
    matrices: dict[str, LowRank]
    number: int = dataclasses.field(default_factory=lambda: next(_numbers))


def plain_name(name: str) -> str:
    """A module's name without what classes of models put around their layers: ``layers.0.mlp.up_proj``."""
    while (outer := next((one for one in OUTER if name.startswith(one)), None)) is not None:
        name = name.removeprefix(outer)
    return name


def read_adapter(name: str, folder: Path, shapes: Mapping[str, tuple[int, int]], *, max_rank: int) -> Adapter:
    """Read the adapter ``name`` for a model whose matrices have these ``shapes``, (out, in) by `plain_name`.

    CheckpointError says in one line what is wrong or is not supported.
    """
    config = _AdapterConfig(folder)
    if (folder / PICKLE).is_file() and not (folder / TENSORS).is_file():
        raise config.error(
            f"{PICKLE} is a pickle, which may run code; save the adapter with PEFT's save_pretrained and"
            f" safe_serialization=True as {TENSORS}"
        )
    try:
        file = SafetensorsFile(folder / TENSORS)
    except FileNotFoundError:
        raise config.error(f"there is no {TENSORS} beside {CONFIG}") from None
    found = _modules(config, file, shapes)
    ranks = [config.check_module(module, max_rank) for module in found]
    for module, rank in zip(found, ranks, strict=True):
        _check_shapes(config, file, module, found[module], (rank, shapes[plain_name(module)]))
    _check_complete(config, found, shapes)
    matrices = {
        plain_name(module): LowRank(
            a=file.read(parts["lora_A"]).clone(),
            b=file.read(parts["lora_B"]).clone(),
            scaling=config.scaling(module),
            magnitude=file.read(parts["lora_magnitude_vector"]).clone() if config.use_dora else None,
        )
        for module, parts in found.items()
    }
    return Adapter(name, max(ranks), matrices)


class _AdapterConfig:
    """adapter_config.json; what is not supported is refused when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.values = read_object(folder / CONFIG)
        except FileNotFoundError:
            raise CheckpointError(f"adapter {folder} has no {CONFIG}: not a PEFT adapter") from None
        self._refuse_unknown()
        self.use_dora, self.use_rslora = self._switch("use_dora"), self._switch("use_rslora")
        self.ranks, self.alphas = self._pattern("rank_pattern"), self._pattern("alpha_pattern")
        self.targets = self._names("target_modules")
        self.excluded = self._names("exclude_modules")
        self.layers = self._layers()
        patterns = self.values.get("layers_pattern") or []
        self.layers_patterns = self._texts(
            "layers_pattern", [patterns] if isinstance(patterns, str) else patterns
        )

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
        if values.get("target_parameters"):
            raise self.error(
                f"target_parameters {values['target_parameters']!r} is not supported (MoE experts)"
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
            raise self.error(f"{name} must be a number, not {value!r}")
        if whole and value < 1:
            raise self.error(f"{name} must be at least 1, not {value!r}")
        return value

    def _pattern(self, key: str) -> dict[str, float]:
        values = self.values.get(key) or {}
        if not isinstance(values, dict):
            raise self.error(f"{key} must be an object, not {values!r}")
        for name in values:
            self._compile(key, name)
        return {
            name: self._number(f"{key}.{name}", value, whole=key == "rank_pattern")
            for name, value in values.items()
        }

    def _texts(self, key: str, values: Any) -> list[str]:
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            raise self.error(f"{key} must be a text or a list of texts, not {values!r}")
        return values

    def _names(self, key: str) -> str | list[str]:
        values = self.values.get(key)
        if isinstance(values, str):
            self._compile(key, values)
            return values
        return self._texts(key, values or [])

    def _layers(self) -> set[int] | None:
        values = self.values.get("layers_to_transform")
        if values is None:
            return None
        values = values if isinstance(values, list) else [values]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in values):
            raise self.error(f"layers_to_transform must be numbers of layers, not {values!r}")
        return set(values)

    def _compile(self, key: str, pattern: str) -> re.Pattern[str]:
        if len(pattern) > LONGEST_PATTERN:
            raise self.error(f"{key} has a pattern of more than {LONGEST_PATTERN} characters")
        try:
            return re.compile(pattern)
        except re.error as error:
            raise self.error(f"{key} {pattern!r:.100} is no regular expression: {error}") from None

    def check_module(self, module: str, max_rank: int) -> int:
        """The rank of a module that the file has a change of."""
        if not self.is_target(module):
            raise self.error(f"the file changes {module}, which target_modules in {CONFIG} does not name")
        rank = self.rank(module)
        if rank > max_rank:
            raise self.error(
                f"rank {rank} of {module} is above max_lora_rank {max_rank}: raise max_lora_rank"
            )
        return rank

    def is_target(self, module: str) -> bool:
        """Whether target_modules, exclude_modules and layers_to_transform let the adapter change a module."""
        if self.excluded and self._matches(self.excluded, module):
            return False
        if isinstance(self.targets, str):
            return self.targets.lower() == "all-linear" or self._matches(self.targets, module)
        if not self._matches(self.targets, module):
            return False
        if self.layers is None or module in self.targets:
            return True
        patterns = self.layers_patterns or [r"[^.]*"]
        found = (re.match(rf".*\.{pattern}\.(\d+)\.", f".{module}") for pattern in patterns)
        index = next((int(one.group(1)) for one in found if one is not None), None)
        return index is not None and index in self.layers

    @staticmethod
    def _matches(names: str | list[str], module: str) -> bool:
        if isinstance(names, str):
            return re.fullmatch(names, module) is not None
        return any(module == name or module.endswith(f".{name}") for name in names)

    def rank(self, module: str) -> int:
        """What rank_pattern, or else r, says."""
        return int(
            self._by_pattern(self.ranks, module, self._number("r", self.values.get("r", 8), whole=True))
        )

    def scaling(self, module: str) -> float:
        """LoRA's alpha / rank, or alpha / sqrt(rank) (Kalajdzievski 2023)."""
        default = self._number("lora_alpha", self.values.get("lora_alpha", 8), whole=False)
        alpha, rank = self._by_pattern(self.alphas, module, default), self.rank(module)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    @staticmethod
    def _by_pattern(values: dict[str, float], module: str, default: float) -> float:
        found = (value for pattern, value in values.items() if re.match(rf"(.*\.)?({pattern})$", module))
        return next(found, default)


def _modules(
    config: _AdapterConfig, file: SafetensorsFile, shapes: Mapping[str, tuple[int, int]]
) -> dict[str, dict[str, str]]:
    """By module as PEFT names it: its tensors by what they are."""
    found: dict[str, dict[str, str]] = {}
    for tensor in sorted(file.names()):
        match = TENSOR.fullmatch(tensor.removeprefix(PREFIX))
        module, kind = match.groups() if match is not None else ("", "")
        if plain_name(module) not in shapes:
            raise config.error(f"tensor {tensor} {_why_not(tensor)}")
        kind = kind.removesuffix(".weight")
        if kind == "lora_magnitude_vector" and not config.use_dora:
            raise config.error(f"tensor {tensor} is DoRA's, and use_dora in {CONFIG} is false")
        if kind in found.setdefault(module, {}):
            raise config.error(f"{module} has {kind} twice")
        found[module][kind] = tensor
    if not found:
        raise config.error(f"{TENSORS} holds no tensors")
    if len({plain_name(module) for module in found}) < len(found):
        raise config.error("a module occurs under two names")
    return found


def _why_not(tensor: str) -> str:
    """What to say of a tensor that is not a change of one of the model's matrices."""
    name = plain_name(tensor.removeprefix(PREFIX))
    if "lora_embedding" in name or name.startswith("embed_"):
        return "changes the embedding, which is not supported"
    if name.startswith("lm_head."):
        return "changes the head (lm_head), which is not supported"
    if ".experts." in name:
        return "changes experts of a mixture, which is not supported"
    if TENSOR.fullmatch(name) is None:
        return "is not supported, only lora_A, lora_B and DoRA's magnitudes"
    return "is of a module that this model does not have, or not as a matrix"


def _check_shapes(
    config: _AdapterConfig,
    file: SafetensorsFile,
    module: str,
    tensors: dict[str, str],
    sizes: tuple[int, tuple[int, int]],
) -> None:
    rank, (rows, columns) = sizes
    wanted: dict[str, tuple[int, ...]] = {"lora_A": (rank, columns), "lora_B": (rows, rank)}
    if config.use_dora:
        wanted["lora_magnitude_vector"] = (rows,)
    for kind, shape in wanted.items():
        if kind not in tensors:
            raise config.error(f"{module} has no {kind}")
        dtype, stored = file.describe(tensors[kind])
        if stored != shape:
            raise config.error(f"tensor {tensors[kind]} has shape {list(stored)}, not {list(shape)}")
        if dtype not in FLOATING:
            raise config.error(f"tensor {tensors[kind]} has dtype {dtype}, not one of {', '.join(FLOATING)}")


def _check_complete(
    config: _AdapterConfig, found: dict[str, dict[str, str]], shapes: Mapping[str, tuple[int, int]]
) -> None:
    """Refuse a file that lacks a matrix which the configuration names."""
    if isinstance(config.targets, str) and config.targets.lower() == "all-linear":
        return  # what PEFT takes for a linear layer depends on its version
    first = next(iter(found))
    outer = first.removesuffix(plain_name(first))
    known = {plain_name(module) for module in found}
    for name in shapes:
        if name not in known and config.is_target(outer + name):
            raise config.error(f"target_modules names {outer + name}, and {TENSORS} has no change of it")
