"""The texts of the smoke models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

MODEL = Path(__file__).resolve().parent / "model"
MIXTURE = Path(__file__).resolve().parent / "mixture"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
    """A text that a smoke model knows by heart.

    ``prompt + text`` is the whole of it; greedy decoding after ``prompt_token_ids`` gives ``token_ids``, the
    last of which ends the sequence and stands for no text.
    """

    name: str
    prompt: str
    text: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


def load_passages(folder: Path = MODEL) -> tuple[Passage, ...]:
    """Read the passages of a model folder, the longest first."""
    texts = json.loads((folder / "passages.json").read_text(encoding="utf-8"))
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return tuple(
        Passage(
            name=text["name"],
            prompt=text["prompt"],
            text=text["text"],
            prompt_token_ids=tuple(expected[text["name"]]["prompt_token_ids"]),
            token_ids=tuple(expected[text["name"]]["token_ids"]),
        )
        for text in texts
    )
