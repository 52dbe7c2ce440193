"""All that is read of a checkpoint before a model computes, as one call."""

from __future__ import annotations

from armllm.engine.config import EngineConfig
from armllm.engine.generation import read_default_sampling, read_end_token_ids
from armllm.engine.inspection import inspect_checkpoint
from armllm.engine.sentence_modules import read_modules
from armllm.models import read_model_config
from armllm.tokenizer import Tokenizer

TEXT = "The quick brown fox, 12345 Grüße 東京 <s>\n"


def open_checkpoint(path):
    """Configuration, headers, tokenizer and settings; CheckpointError or RequestError for what is refused."""
    _, config = read_model_config(path)
    tokenizer = Tokenizer(path)
    read_end_token_ids(path, config, tokenizer)
    if path.is_dir():
        read_default_sampling(EngineConfig(model=str(path)))
        read_modules(path, config.hidden_size)
    inspect_checkpoint(str(path))
    tokenizer.decode([index for index in tokenizer.encode(TEXT) if index < tokenizer.vocab_size])
