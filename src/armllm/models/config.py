"""What config.json says about a model, read strictly: a value that can't be honoured is refused by name.

Both spellings are understood: rope_theta and rope_scaling, and transformers 5's rope_parameters. Neither
torch_dtype nor dtype is asked: tensors say what they are, and the user what to compute in.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from armllm.errors import CheckpointError
from armllm.layers.rotary import RopeParameters

if TYPE_CHECKING:
    from pathlib import Path

_REQUIRED = object()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What the engine needs to know of every decoder; families add their own.

    max_model_len: tokens up to which the engine honours the checkpoint.
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


class ConfigReader:
    """Typed access to one config.json; every error names the file and the key."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        self.values = values
        self.path = path

    @classmethod
    def open(cls, folder: Path) -> ConfigReader:
        """Read the folder's config.json; refuse what no family here honours."""
        path = folder / "config.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder} has no config.json: not a Hugging Face checkpoint folder"
            ) from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} must hold a JSON object")
        reader = cls(values, path)
        quantization = values.get("quantization_config")
        if quantization:
            method = quantization.get("quant_method", "?") if isinstance(quantization, dict) else quantization
            raise reader.error(
                f"quantization_config ({method}) is not supported; use the unquantised checkpoint"
            )
        return reader

    def error(self, message: str) -> CheckpointError:
        """A CheckpointError that names this file."""
        return CheckpointError(f"{self.path}: {message}")

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """A raw value; null counts as absent."""
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(f"{name} is missing")
        return default

    def integer(self, name: str, default: Any = _REQUIRED) -> int:
        """A positive integer."""
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.error(f"{name} must be a positive integer, not {value!r}")
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        """A positive finite number."""
        return self._positive(name, self.get(name, default))

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} must be true or false, not {value!r}")
        return value

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse any other value than these; the first is the default."""
        value = self.get(name, allowed[0])
        if value not in allowed:
            choices = " or ".join(repr(choice) for choice in allowed)
            raise self.error(f"{name} {value!r} is not supported, only {choices}")

    def token_ids(self, name: str, default: int | None) -> frozenset[int]:
        """One token id or a list of them; an explicit null is none."""
        value = self.values.get(name, default)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in ids):
            raise self.error(f"{name} must be a token id or a list of them, not {value!r}")
        return frozenset(ids)

    def common(
        self,
        architecture: str,
        *,
        default_eos: int | None = None,
        default_positions: int,
        default_kv_heads: int | None = None,
        default_head_dim: int | None = None,
        sliding_window: int | None = None,
    ) -> dict[str, Any]:
        """The fields of `ModelConfig`; defaults are those of the family's class in transformers.

        Up to the length of its ``sliding_window``, a layer sees all tokens: longer ones are not offered.
        """
        hidden_size = self.integer("hidden_size")
        num_heads = self.integer("num_attention_heads")
        num_kv_heads = self.integer("num_key_value_heads", num_heads)
        if default_kv_heads is not None and "num_key_value_heads" not in self.values:
            num_kv_heads = default_kv_heads
        if num_heads % num_kv_heads:
            raise self.error(
                f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
            )
        head_dim = self.integer("head_dim", default_head_dim or hidden_size // num_heads)
        if head_dim % 2:
            raise self.error(f"head_dim {head_dim} is odd; rotary embedding needs pairs")
        positions = self.integer("max_position_embeddings", default_positions)
        return {
            "architecture": architecture,
            "vocab_size": self.integer("vocab_size"),
            "hidden_size": hidden_size,
            "num_layers": self.integer("num_hidden_layers"),
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "max_position_embeddings": positions,
            "max_model_len": min(positions, sliding_window or positions),
            "tie_word_embeddings": self.boolean("tie_word_embeddings", default=False),
            "eos_token_ids": self.token_ids("eos_token_id", default_eos),
        }

    def rope(self, max_position_embeddings: int) -> RopeParameters:
        """Rotary parameters in either spelling; transformers too lets rope_scaling win where both stand."""
        source = "rope_scaling" if self.values.get("rope_scaling") else "rope_parameters"
        given = self.get(source, {})
        if not isinstance(given, dict):
            raise self.error(f"{source} must be an object, not {given!r}")
        given = {key: value for key, value in given.items() if value is not None}
        rope_type = given.pop("rope_type", given.get("type", "default"))
        given.pop("type", None)
        theta = self._positive(
            f"{source}.rope_theta", given.pop("rope_theta", self.get("rope_theta", 10000.0))
        )
        if self.get("partial_rotary_factor", given.pop("partial_rotary_factor", 1.0)) != 1.0:
            raise self.error("partial_rotary_factor other than 1.0 is not supported for this architecture")
        fields = ("factor", "low_freq_factor", "high_freq_factor") if rope_type == "llama3" else ()
        if rope_type not in ("default", "llama3"):
            raise self.error(f"rope_type {rope_type!r} is not supported, only 'default' or 'llama3'")
        numbers = {}
        for name in fields:
            if name not in given:
                raise self.error(f"{source}.{name} is missing; rope_type 'llama3' needs it")
            numbers[name] = self._positive(f"{source}.{name}", given.pop(name))
        original = given.pop("original_max_position_embeddings", max_position_embeddings)
        original = int(self._positive(f"{source}.original_max_position_embeddings", original))
        if given:
            raise self.error(f"{source}.{next(iter(given))} is not supported for rope_type {rope_type!r}")
        if fields and numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
            raise self.error(f"{source}.high_freq_factor must be above low_freq_factor")
        return RopeParameters(
            rope_type=rope_type, theta=theta, original_max_position_embeddings=original, **numbers
        )

    def _positive(self, name: str, value: Any) -> float:
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not math.isfinite(value)
            or value <= 0
        ):
            raise self.error(f"{name} must be a positive number, not {value!r}")
        return float(value)
