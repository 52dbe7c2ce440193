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
# general.architecture -> ours
ARCHITECTURES = {
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
}
# whose queries and keys the converter permutes
PERMUTED = ("granite", "llama")


class GGUFFile:
    """Header and mapped tensors of one file, or of all parts that gguf-split made, by the first's path."""

    def __init__(self, path: Path) -> None:
        header = GGUFHeader(path)
        self.path = path
        self._values = header.values
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
        return self.get(f"{self.architecture}.{key}", default)

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
