"""What is asked in a benchmark: random tokens, or conversations from a file."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import TYPE_CHECKING

from armllm.checkpoint import json_file
from armllm.errors import RequestError

if TYPE_CHECKING:
    from armllm.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class BenchRequest:
    """A prompt and how many tokens are to follow it."""

    prompt_token_ids: list[int]
    output_len: int


def random_requests(
    count: int, *, input_len: int, output_len: int, range_ratio: float, vocab_size: int, seed: int
) -> list[BenchRequest]:
    """Random token ids; lengths are uniform within ``range_ratio`` (0 to 1) around the ones given.

    The lowest ids are left out, since special tokens are often there.
    """
    for name, value in (("--num-prompts", count), ("--input-len", input_len), ("--output-len", output_len)):
        if value < 1:
            raise RequestError(f"{name} must be at least 1, not {value}")
    if not 0 <= range_ratio < 1:
        raise RequestError(f"--random-range-ratio must be at least 0 and below 1, not {range_ratio}")
    rng = random.Random(seed)  # noqa: S311 - test data
    first = min(1000, vocab_size // 10)

    def length(mean: int) -> int:
        return rng.randint(max(1, int(mean * (1 - range_ratio))), int(mean * (1 + range_ratio)))

    return [
        BenchRequest([rng.randrange(first, vocab_size) for _ in range(length(input_len))], length(output_len))
        for _ in range(count)
    ]


def sharegpt_requests(
    path: str, count: int, *, tokenizer: Tokenizer, output_len: int | None, max_model_len: int, seed: int
) -> list[BenchRequest]:
    """The first question of each conversation of a ShareGPT file, with its answer's length.

    As in vLLM, conversations of less than two turns or four tokens are left out, and so are those that
    would not fit; the rest is shuffled.
    """
    try:
        conversations = json_file.parse(Path(path).read_bytes())
        pairs = [
            (turns[0]["value"], turns[1]["value"])
            for entry in conversations
            if len(turns := entry.get("conversations", [])) >= 2
        ]
    except OSError as error:
        raise RequestError(f"--dataset-path {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RequestError(
            f"--dataset-path {path} must be a JSON list of objects with conversations of from and value"
        ) from None
    random.Random(seed).shuffle(pairs)  # noqa: S311 - test data
    found: list[BenchRequest] = []
    for question, answer in pairs:
        if len(found) == count:
            break
        prompt = tokenizer.encode(question)
        length = output_len or len(tokenizer.encode(answer, add_special_tokens=False))
        if len(prompt) >= 4 and length >= 4 and len(prompt) + length <= max_model_len:
            found.append(BenchRequest(prompt, length))
    if not found:
        raise RequestError(f"--dataset-path {path} has no conversation that fits")
    return found
