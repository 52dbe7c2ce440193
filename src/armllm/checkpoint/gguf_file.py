"""A GGUF file, or the parts of one, as llama.cpp writes them: header and mapped tensors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from armllm.checkpoint.gguf_blocks import BLOCKS
from armllm.checkpoint.gguf_header import DTYPES, GGUFHeader
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

MAX_PARTS = 1000
# Files of these may have layers that predict further tokens.
PREDICTING = ("nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next")
# general.architecture -> ours
ARCHITECTURES = {
    "falcon-h1": "FalconH1ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gptneox": "GPTNeoXForCausalLM",
    "granite": "GraniteForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2moe": "Lfm2MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "nemotron_h_moe": "NemotronHForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "phi2": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen35": "Qwen3_5ForCausalLM",
    "qwen35moe": "Qwen3_5MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "qwen3next": "Qwen3_5MoeForCausalLM",  # the converter takes products apart as Qwen3.5 has them
    "seed_oss": "SeedOssForCausalLM",
}
# Keys that say what the tensors' shapes say, too, or what makes no difference for text. A family has one of
# the epsilons.
IDLE = (
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "rope.dimension_sections",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "tensor_data_layout",
    "vocab_size",
)
PICTURES = ("mm.", "vision.")  # begin the keys of files that have an encoder of pictures, too


class GGUFFile:
    """Header and mapped tensors of one file, or of all parts that gguf-split made, by the first's path."""

    def __init__(self, path: Path) -> None:
        header = GGUFHeader(path)
        self.path = path
        self._values = header.values
        self._asked: set[str] = set()
        self.parts = {path: header} | {part: GGUFHeader(part) for part in self._other_parts()}
        self._homes = {name: part for part, found in self.parts.items() for name in found.tensors}
        self.tensors = {name: found.tensors[name] for found in self.parts.values() for name in found.tensors}
        wanted = positive(self.get("split.tensors.count"))
        if len(self.parts) > 1 and len(self.tensors) != wanted:
            raise CheckpointError(f"{path}: its parts hold {len(self.tensors)} tensors, and it says {wanted}")
        self.architecture = str(self.get("general.architecture", ""))
        if self.architecture not in ARCHITECTURES:
            raise CheckpointError(
                f"{path}: GGUF architecture {self.architecture!r} is not supported, only"
                f" {', '.join(ARCHITECTURES)}"
            )
        unknown = sorted({stored.type for stored in self.tensors.values()} - {*DTYPES, *BLOCKS})
        if unknown:
            raise CheckpointError(
                f"{path}: tensors of type {', '.join(unknown)} are not supported, only"
                f" {', '.join((*DTYPES, *BLOCKS))}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the header."""
        return self._values.get(key, default)

    def own(self, key: str, default: Any = None) -> Any:
        """A value that the header has under the architecture's name."""
        self._asked.add(key)
        return self.get(f"{self.architecture}.{key}", default)

    def required_value(self, key: str) -> Any:
        """A value that the header must have under the architecture's name."""
        value = self.own(key)
        if value is None:
            raise CheckpointError(f"{self.path}: {self.architecture}.{key} is missing")
        return value

    def required(self, key: str) -> int:
        """A positive integer that the header must have under the architecture's name."""
        value = positive(self.own(key))
        if not value:
            raise CheckpointError(f"{self.path}: {self.architecture}.{key} must be a positive integer")
        return value

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse another value than these; the first stands for none."""
        value = self.own(key, allowed[0])
        if value not in allowed:
            raise CheckpointError(
                f"{self.path}: {self.architecture}.{key} {value!r:.100} is not supported, only"
                f" {' or '.join(map(repr, allowed))}"
            )

    def refuse_unread(self) -> None:
        """Refuse a value under the architecture's name that is set, and that nobody has asked for."""
        prefix = f"{self.architecture}."
        for name in sorted(self._values):
            key, value = name.removeprefix(prefix), self._values[name]
            if not name.startswith(prefix) or key in self._asked or key in IDLE or key.startswith(PICTURES):
                continue
            if any(value) if isinstance(value, list) else value:
                raise CheckpointError(f"{self.path}: {name} {value!r:.100} is not supported")

    def num_layers(self) -> int:
        """Layers of the decoder; behind them are those that predict further tokens."""
        further = self.own("nextn_predict_layers", 0) if self.architecture in PREDICTING else 0
        return max(0, positive(self.own("block_count")) - positive(further))

    def tensor(self, name: str) -> Tensor:
        """A tensor as it is stored."""
        return self.parts[self._homes[name]].map(name)

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._homes[name]

    def _other_parts(self) -> list[Path]:
        """The files after the first, by gguf-split's names."""
        count, number = positive(self.get("split.count")), positive(self.get("split.no"))
        if count <= 1:
            return []
        if count > MAX_PARTS:
            raise CheckpointError(f"{self.path} has {count:,} parts; no more than {MAX_PARTS:,} are taken")
        ending = f"-of-{count:05d}.gguf"
        stem = self.path.name.removesuffix(ending)[: -len("00001")]
        if number or self.path.name != f"{stem}00001{ending}":
            raise CheckpointError(
                f"{self.path} is part {number + 1} of {count}: name the first, which ends in -00001{ending}"
            )
        return [self.path.with_name(f"{stem}{part:05d}{ending}") for part in range(2, count + 1)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Outermost dimension first, as torch has it."""
        return self.tensors[name].shape


@functools.lru_cache(maxsize=1)
def _opened(path: Path, _modified: int) -> GGUFFile:
    return GGUFFile(path)


def open_gguf(path: Path) -> GGUFFile:
    """The file, parsed once for configuration, tokenizer and weights."""
    return _opened(path, path.stat().st_mtime_ns)


def forget_gguf() -> None:
    """Let go of the parsed header, whose vocabulary takes tens of megabytes."""
    _opened.cache_clear()


def positive(value: Any) -> int:
    """The value where it is a positive integer, else 0."""
    return value if isinstance(value, int) and value > 0 else 0
