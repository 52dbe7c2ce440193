"""The engine's options, checked."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm.checkpoint.hub import resolve_model
from armllm.checkpoint.scheme import SCHEMES, check_scheme
from armllm.errors import RequestError
from armllm.foregone import FOREGONE, refusal
from armllm.layers.linear import cpu_computes_bfloat16
from armllm.quant.formats import METHODS

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}
ALLOWED = {"scheduling_policy": ("fcfs", "priority"), "kv_cache_dtype": ("auto", "int8")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The options of `LLM`, `AsyncLLM` and `armllm serve`. Names and meanings are vLLM's.

    - model: a folder with a Hugging Face checkpoint, a GGUF file, or a name on the hub.
    - tokenizer: another folder with a tokenizer.json.
    - skip_tokenizer_init: prompts and outputs are token ids only, without text.
    - dtype: "float32", "bfloat16", "float16", or "auto": bfloat16 where the CPU computes in it, else float32.
    - quantization: rounds weights while loading: "int8", "int8-g32", "int8-g64", "int8-g128", "int4",
      "int4-g32", "int4-g64", "int4-g128" or "int4-channelwise". For a quantized checkpoint it may be the
      name of its method.
    - calibration: a text of the kind that the model will see; it reduces the error of ``quantization``.
    - seed: the seed from which requests without a seed get theirs.
    - max_model_len: prompt and output tokens of a request; default: what the checkpoint allows, and what
      num_gpu_blocks_override can hold if it is set.
    - kv_cache_dtype: "auto" stores keys and values in ``dtype``, "int8" in half of the memory or a quarter.
    - block_size: tokens per block of the KV cache.
    - num_gpu_blocks_override: the number of blocks.
    - max_num_seqs, max_num_batched_tokens: the most sequences and tokens in a step.
    - enable_prefix_caching: shares blocks between prompts that begin with the same tokens.
    - scheduling_policy: "fcfs" serves the first request first, "priority" the one with the lowest number.
    """

    model: str
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    dtype: str | torch.dtype = "auto"
    quantization: str | None = None
    calibration: str | None = None
    seed: int = 0
    max_model_len: int | None = None
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"

    @classmethod
    def of(cls, model: str | Path, options: dict[str, Any]) -> EngineConfig:
        """The options for a model.

        TypeError names one that does not exist, also where vLLM has it; RequestError one of vLLM's that is
        taken here with other values only.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name, value in options.items():
            if name in FOREGONE:
                if (refused := refusal(name, value)) is not None:
                    raise RequestError(f"{name} {refused}")
            elif name not in known:
                raise TypeError(f"the engine does not take {name!r}; it takes {', '.join(known)}")
        engine_options = {name: value for name, value in options.items() if name not in FOREGONE}
        return cls(model=str(model), **engine_options)

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            self._check_positive(name, getattr(self, name))
        for name in ("max_model_len", "num_gpu_blocks_override"):
            if getattr(self, name) is not None:
                self._check_positive(name, getattr(self, name))
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise RequestError(f"seed must be an integer, not {self.seed!r}")
        for name in ("skip_tokenizer_init", "enable_prefix_caching"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, not {getattr(self, name)!r}")
        for name, allowed in ALLOWED.items():
            self._check_choice(name, getattr(self, name), allowed)
        if self.quantization is not None and self.quantization not in METHODS:
            check_scheme("quantization", self.quantization)
        if self.calibration is not None and self.quantization not in SCHEMES:
            raise RequestError(
                "calibration needs a quantization to calibrate: int8, int4, int4-g128 and so on"
            )
        self.torch_dtype  # noqa: B018 - refuse an unknown one now

    @staticmethod
    def _check_positive(name: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RequestError(f"{name} must be a positive integer, not {value!r}")

    @staticmethod
    def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
        if value not in allowed:
            raise RequestError(f"{name} must be {' or '.join(map(repr, allowed))}, not {value!r}")

    @property
    def model_folder(self) -> Path:
        """The checkpoint folder."""
        return resolve_model(self.model)

    @property
    def tokenizer_folder(self) -> Path:
        """The folder with tokenizer.json."""
        return self.model_folder if self.tokenizer is None else resolve_model(self.tokenizer, "tokenizer")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        if self.dtype == "auto":
            return torch.bfloat16 if cpu_computes_bfloat16() else torch.float32
        found = DTYPES.get(str(self.dtype).removeprefix("torch."))
        if found is None:
            raise RequestError(
                f"dtype {str(self.dtype)!r} is not supported, only auto, float32, bfloat16 and float16"
            )
        return found

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of the KV cache."""
        return torch.int8 if self.kv_cache_dtype == "int8" else self.torch_dtype
