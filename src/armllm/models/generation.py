"""What generation_config.json adds to a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from armllm.errors import CheckpointError
from armllm.models.config import ConfigReader, ModelConfig

if TYPE_CHECKING:
    from pathlib import Path

    from armllm.tokenizer import Tokenizer


def read_end_token_ids(folder: Path, config: ModelConfig, tokenizer: Tokenizer | None) -> frozenset[int]:
    """Tokens that end a text: generation_config.json's, else config.json's, and the tokenizer's own."""
    path = folder / "generation_config.json"
    ids = config.eos_token_ids
    if path.is_file():
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} must hold a JSON object")
        ids = ConfigReader(values, path).token_ids("eos_token_id", None) or ids
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids |= {tokenizer.eos_token_id}
    return ids
