"""What generation_config.json adds to a checkpoint: its end tokens and how its authors sample from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.checkpoint.config import ConfigReader
from armllm.checkpoint.json_file import read_object
from armllm.errors import CheckpointError, RequestError
from armllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from armllm.checkpoint.config import ModelConfig
    from armllm.engine.config import EngineConfig
    from armllm.tokenizer import Tokenizer

# key in generation_config.json -> parameter; the same ones that vLLM takes over
SAMPLING_KEYS = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


def read_end_token_ids(folder: Path, config: ModelConfig, tokenizer: Tokenizer | None) -> frozenset[int]:
    """Tokens that end a text: generation_config.json's, else config.json's, and the tokenizer's own."""
    values = _read(folder)
    reader = ConfigReader(values, _path(folder))
    ids = reader.token_ids("eos_token_id", None, config.vocab_size) or config.eos_token_ids
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids |= {tokenizer.eos_token_id}
    return ids


def read_default_sampling(config: EngineConfig) -> SamplingParams:
    """`SamplingParams` as generation_config.json has them; what it does not say keeps our default.

    The config says whether the file counts, and what stands above it. RequestError for an unknown key there.
    """
    folder = config.model_folder
    changes = config.override_generation_config or {}
    for name in changes:
        if name not in SAMPLING_KEYS:
            known = ", ".join(SAMPLING_KEYS)
            raise RequestError(f"override_generation_config has {name!r}; it can have {known}")
    values = {} if config.generation_config == "vllm" else _read(folder)
    try:
        return SamplingParams(**(_sampling(values) | _sampling(changes)))
    except RequestError as error:
        where = "override_generation_config or " if changes else ""
        raise CheckpointError(f"{where}{_path(folder)}: {error}") from None


def _sampling(values: dict[str, Any]) -> dict[str, Any]:
    named = ((theirs, ours) for theirs, ours in SAMPLING_KEYS.items() if values.get(theirs) is not None)
    return {ours: values[theirs] for theirs, ours in named}


def _path(folder: Path) -> Path:
    return folder / "generation_config.json"


def _read(folder: Path) -> dict[str, Any]:
    path = _path(folder)
    if not path.is_file():
        return {}
    return read_object(path)
