"""What config.json says about a model, read strictly: a value that is not supported is refused by its name.

Neither torch_dtype nor dtype is asked: tensors say what they are, and the user what to compute in.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import TYPE_CHECKING, Any

from armllm.checkpoint.gguf_config import read_gguf_config
from armllm.checkpoint.json_file import read_object
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from armllm.checkpoint.weights import WeightFormat

_REQUIRED = object()
LARGEST_INTEGER = 2**31 - 1
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-29, 1e29  # what kernels compute with in float32
MAX_LAYERS = 10_000
MAX_WIDTH = 1 << 20  # of hidden states, and of what is made per head before any tensor is seen
LONGEST_MESSAGE = 500  # a wrong value may be as long as the file

# Keys of other families and of experiments: one of these that nobody here has read, and that is set, may well
# change what the model computes. Biases and norms need no such guess: their tensors would be left over.
SUSPICIOUS = re.compile(
    r"attn|attention|rope|rotary|window|softcap|clip|scal|multiplier|alibi|causal|bidirectional|residual"
    r"|layer_types|qk_|mup_|topk_method|scoring_func"
)
# Training, bookkeeping, choice of kernels; max_window_layers means nothing without a window.
HARMLESS = re.compile(
    r"dropout|pdrop|implementation|flash|memory_efficient|_bias$|output_|aux_loss|^max_window_layers$|^_name_or_path$"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classes:
    """A classification head: its labels, which state it reads, what makes probabilities of its scores.

    pooling: "cls", "mean" or "last". activation: "softmax", "sigmoid" or "none".
    token_ids: the scores are those of these tokens; of two for one label the second's less the first's.
    padding: the token that "last" leaves out at the end of a text; None: there is none.
    """

    labels: tuple[str, ...]
    pooling: str
    activation: str
    token_ids: tuple[int, ...] = ()
    padding: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureConfig:
    """Of a model that takes pictures, which are cut into square patches of ``patch_size`` pixels a side.

    token_id: stands for a picture in a prompt; each square of ``merge_size`` patches a side is one token.
    """

    token_id: int
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    channels: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What the engine needs to know of every model; families add their own.

    max_model_len: tokens up to which the engine supports the checkpoint. windows: per layer, how many tokens
    it sees, itself included; None is all. rope_switch_length: a sequence that grows beyond this many tokens
    has other rotary frequencies from its first token on, so that its cached keys are no longer right; None
    for most models. quantization: how the checkpoint stores its matrices; None: in floating point.
    is_encoder: each token sees those after it, too: sequences are computed whole and nothing is cached.
    generates: whether it says which token comes next.
    default_model_len: a shorter length that the checkpoint asks for. classes: of a classification head.
    is_recurrent: some layers keep a state per sequence. pictures: of a model that takes them.
    equal_heads: all layers have as many.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    max_model_len: int
    tie_word_embeddings: bool
    eos_token_ids: frozenset[int]
    windows: tuple[int | None, ...]
    rope_switch_length: int | None = None
    quantization: WeightFormat | None = None
    is_encoder: bool = False
    generates: bool = True
    default_model_len: int | None = None
    classes: Classes | None = None
    is_recurrent: bool = False
    pictures: PictureConfig | None = None
    equal_heads: bool = True

    @property
    def final_size(self) -> int:
        """Numbers of a token's final state, which the head and poolings take."""
        return self.hidden_size


class ConfigReader:
    """Typed access to one config.json; every error names the file and the key."""

    def __init__(self, values: dict[str, Any], path: Path, prefix: str = "") -> None:
        self.values = values
        self.path = path
        self.prefix = prefix
        self.asked = {"architectures", "model_type"}

    @classmethod
    def open(cls, folder: Path, overrides: dict[str, Any] | None = None) -> ConfigReader:
        """Read the config.json of a folder or the header of a GGUF file; refuse what no family supports.

        ``overrides`` stand above its values, as vLLM's hf_overrides do.
        """
        reader = cls._open(folder)
        reader.values = _overridden(reader.values, overrides or {})
        return reader

    @classmethod
    def _open(cls, folder: Path) -> ConfigReader:
        if folder.suffix == ".gguf" and folder.is_file():
            return cls(read_gguf_config(folder), folder)
        path = folder / "config.json"
        try:
            return cls(read_object(path), path)
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder} has no config.json: not a Hugging Face checkpoint folder"
            ) from None

    def error(self, message: str) -> CheckpointError:
        """A CheckpointError that names this file."""
        return CheckpointError(
            f"{self.path}: {self.prefix}{message}"[: LONGEST_MESSAGE + len(str(self.path))]
        )

    def section(self, name: str) -> ConfigReader:
        """A reader of the object ``name`` in this one."""
        values = self.get(name)
        if not isinstance(values, dict):
            raise self.error(f"{name} must be an object, not {values!r}")
        return ConfigReader(values, self.path, f"{self.prefix}{name}.")

    def changed(self, **values: Any) -> ConfigReader:
        """The same with other values for keys that the caller has read."""
        found = copy.copy(self)  # what is asked there is asked here
        found.values = self.values | values
        return found

    def has(self, name: str) -> bool:
        """Whether the key is there, even as null."""
        self.asked.add(name)
        return name in self.values

    def renamed(self, names: dict[str, str]) -> ConfigReader:
        """The same with integers by further names, which the class in transformers maps to these."""
        values = {}
        for name, other in names.items():
            if self.get(other, None) is not None:
                values[name] = self.integer(other)
                self.only(name, values[name])
        return self.changed(**values)

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """A raw value; null counts as absent."""
        self.asked.add(name)
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(f"{name} is missing")
        return default

    def integer(self, name: str, default: Any = None) -> int:
        """A positive integer; no default, as None, is an error that says what is missing."""
        value = self.get(name, _REQUIRED if default is None else default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.error(f"{name} must be a positive integer, not {value!r}")
        if value > LARGEST_INTEGER:
            raise self.error(f"{name} is larger than any model's")
        return value

    def count(self, name: str, default: Any) -> int:
        """An integer that may be 0."""
        value = self.get(name, default)
        return 0 if value == 0 and not isinstance(value, bool) else self.integer(name, default)

    def number(self, name: str, default: Any = None) -> float:
        """A positive number that kernels take; no default, as None, is an error that says what is missing."""
        value = self.get(name, _REQUIRED if default is None else default)
        fits = isinstance(value, (int, float)) and SMALLEST_NUMBER <= value <= LARGEST_NUMBER
        if not fits or isinstance(value, bool):
            raise self.error(f"{name} must be a positive number from 1e-29 to 1e29, not {value!r}")
        return float(value)

    def optional_number(self, name: str, default: float | None) -> float | None:
        """A positive number; an explicit null is None, an absent key is the default."""
        return self.number(name, default) if self.get(name, self._unset(name, default)) is not None else None

    def optional_integer(self, name: str, default: int | None) -> int | None:
        """A positive integer; an explicit null is None, an absent key is the default."""
        return self.integer(name, default) if self.get(name, self._unset(name, default)) is not None else None

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} must be true or false, not {value!r}")
        return value

    def choice(self, name: str, default: str, allowed: Collection[str]) -> str:
        """One of several words."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.error(f"{name} {value!r} is not supported, only {', '.join(sorted(allowed))}")
        return value

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """A list of this many positive numbers."""
        values = self.get(name)
        if not isinstance(values, list) or len(values) != length:
            found = len(values) if isinstance(values, list) else repr(values)
            raise self.error(f"{name} must be a list of {length} numbers, not {found}")
        return tuple(ConfigReader({name: value}, self.path, self.prefix).number(name) for value in values)

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse any other value than these; the first is the default."""
        value = self.get(name, allowed[0])
        if value not in allowed:
            values_allowed = " or ".join(repr(choice) for choice in allowed)
            raise self.error(f"{name} {value!r} is not supported, only {values_allowed}")

    def token_ids(self, name: str, default: int | None, vocab_size: int) -> frozenset[int]:
        """One token id below ``vocab_size`` or a list of them; an explicit null is none."""
        self.asked.add(name)
        value = self.values.get(name, default)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in ids):
            raise self.error(f"{name} must be a token id or a list of them, not {value!r}")
        outside = [token_id for token_id in ids if not 0 <= token_id < vocab_size]
        if outside:
            raise self.error(f"{name} {outside[0]} is no token: the vocabulary has {vocab_size}")
        return frozenset(ids)

    def refuse_unknown(self) -> None:
        """Refuse a set key that no family has read, if its name says that it may change the result."""
        for name in sorted(self.values.keys() - self.asked):
            if self.values[name] and SUSPICIOUS.search(name) and not HARMLESS.search(name):
                raise self.error(
                    f"{name} {self.values[name]!r} is not known for this architecture and may change its"
                    " result; remove it if it does not"
                )

    def common(
        self,
        architecture: str,
        *,
        default_eos: int | None = None,
        default_positions: int,
        default_heads: int | None = None,
        default_kv_heads: int | None = None,
        default_head_dim: int | None = None,
        default_tied: bool = False,
        default_sizes: dict[str, int] | None = None,
    ) -> dict[str, Any]:
        """The fields of `ModelConfig` but ``windows``; defaults are those of the class in transformers."""
        sizes = default_sizes or {}
        self.only("is_causal", True)
        hidden_size = self.integer("hidden_size", sizes.get("hidden_size"))
        num_heads = self.integer("num_attention_heads", default_heads)
        num_kv_heads = self.integer("num_key_value_heads", num_heads)
        if default_kv_heads is not None and not self.has("num_key_value_heads"):
            num_kv_heads = default_kv_heads
        if num_heads % num_kv_heads:
            raise self.error(
                f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
            )
        head_dim = self.integer("head_dim", default_head_dim or hidden_size // num_heads or None)
        positions = self.integer("max_position_embeddings", default_positions)
        num_layers = self.num_layers(sizes.get("num_hidden_layers"))
        for name, width in (("hidden_size", hidden_size), ("head_dim", head_dim)):
            if width > MAX_WIDTH:
                raise self.error(f"{name} is {width}: no model has more than {MAX_WIDTH}")
        vocab_size = self.integer("vocab_size", sizes.get("vocab_size"))
        return {
            "architecture": architecture,
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "max_position_embeddings": positions,
            "max_model_len": positions,
            "tie_word_embeddings": self.boolean("tie_word_embeddings", default=default_tied),
            "eos_token_ids": self._end_token_ids(default_eos, vocab_size),
        }

    def whole_heads(self, architecture: str, **defaults: Any) -> dict[str, Any]:
        """`common` of a family whose heads fill the hidden states."""
        found = self.common(architecture, **defaults)
        if found["num_heads"] * found["head_dim"] != found["hidden_size"]:
            raise self.error("hidden_size is not num_attention_heads times head_dim")
        return found

    def num_layers(self, default: int | None = None) -> int:
        """num_hidden_layers, checked before anything is made per layer."""
        num_layers = self.integer("num_hidden_layers", default)
        if num_layers > MAX_LAYERS:
            raise self.error(f"num_hidden_layers is {num_layers}: no model has more than {MAX_LAYERS}")
        return num_layers

    def _end_token_ids(self, default: int | None, vocab_size: int) -> frozenset[int]:
        """The default is the class's, which a small vocabulary need not have."""
        in_vocabulary = default is not None and default < vocab_size
        return self.token_ids("eos_token_id", default if in_vocabulary else None, vocab_size)

    def _unset(self, name: str, default: Any) -> Any:
        return None if name in self.values else default


def _overridden(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The values with changes; those of another model's configuration in this one are joined, too."""
    return values | {
        name: _overridden(values[name], change)
        if name.endswith("_config") and isinstance(change, dict) and isinstance(values.get(name), dict)
        else change
        for name, change in changes.items()
    }
