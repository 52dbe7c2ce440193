"""The cases of the smoke test: which prompts, in which engine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm.smoke.passages import Passage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recitation:
    """One request: ``num_given`` tokens of the passage's continuation are in the prompt, the rest follows.

    With none given, the prompt goes to the engine as text, so that the tokenizer is tested too.
    """

    passage: Passage
    num_given: int = 0

    @property
    def prompt(self) -> str | dict[str, list[int]]:
        """What the engine is asked."""
        if self.num_given == 0:
            return self.passage.prompt
        ids = self.passage.prompt_token_ids + self.passage.token_ids[: self.num_given]
        return {"prompt_token_ids": list(ids)}

    @property
    def expected(self) -> tuple[int, ...]:
        """What it must answer, the end token included."""
        return self.passage.token_ids[self.num_given :]

    @property
    def num_tokens(self) -> int:
        """Prompt and answer together."""
        return len(self.passage.prompt_token_ids) + len(self.passage.token_ids)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Requests that run together, and the engine's options for them (see `armllm.LLM`).

    ``threads`` is None for as many as torch uses.
    """

    name: str
    recitations: tuple[Recitation, ...]
    options: dict[str, Any]
    threads: int | None = None


def fraction(index: int) -> float:
    """Van der Corput's sequence 0, 1/2, 1/4, 3/4, 1/8, ...: as different from one another as can be."""
    value, digit = 0.0, 0.5
    while index:
        value += digit * (index & 1)
        index, digit = index >> 1, digit / 2
    return value


def recitations(passages: Sequence[Passage], count: int) -> tuple[Recitation, ...]:
    """``count`` different requests: every passage from its beginning, then each from points further on."""
    recitations = []
    for index in range(count):
        passage = passages[index % len(passages)]
        num_given = int(len(passage.token_ids) * fraction(index // len(passages)))
        recitations.append(Recitation(passage=passage, num_given=num_given))
    return tuple(recitations)


def blocks_for(recitation: Recitation, block_size: int) -> int:
    return -(-recitation.num_tokens // block_size)


def alone(passage: Passage, options: dict[str, Any]) -> Case:
    """All of one passage alone, in an engine as a user would make it.

    On one thread: the model is so small that threads would only wait for each other, for long when emulated.
    """
    return Case(name="alone", recitations=(Recitation(passage=passage),), options=options, threads=1)


def batch(name: str, recitations: tuple[Recitation, ...], options: dict[str, Any]) -> Case:
    """Several at once, under pressure: a step takes few tokens, and the KV cache is too small for all.

    So prompts are cut into chunks that share steps with decoding, and requests are preempted and computed
    again. What ``options`` says stands.
    """
    block_size = options.get("block_size", 16)
    sizes = [blocks_for(recitation, block_size) for recitation in recitations]
    few = max(sizes) + (sum(sizes) - max(sizes)) // 4
    pressure = {
        "max_num_batched_tokens": 24,
        "num_gpu_blocks_override": few,
        "max_model_len": max(sizes) * block_size,
    }
    return Case(name=name, recitations=recitations, options={**pressure, **options})


def mixture(passages: Sequence[Passage]) -> tuple[Recitation, ...]:
    """Every passage: the first two, which are long, from further on, twice; the others from their beginning.

    So some have long prompts, all go on for similarly many steps, and some prompts share beginnings.
    """

    def late(index: int, share: float) -> Recitation:
        passage = passages[index % len(passages)]
        return Recitation(passage=passage, num_given=int(len(passage.token_ids) * share))

    begun = tuple(Recitation(passage=passage) for passage in passages[2:])
    return late(0, 0.8), late(1, 0.5), *begun, late(0, 0.9), late(1, 0.75)


def default_cases(passages: Sequence[Passage], options: dict[str, Any]) -> list[Case]:
    """Alone, and in a batch on all threads: the usual test of a machine."""
    return [alone(passages[0], options), batch("batch", mixture(passages), options)]


def batches(passages: Sequence[Passage], sizes: Sequence[int], options: dict[str, Any]) -> list[Case]:
    """One case per batch size."""
    return [batch(f"batch of {size}", recitations(passages, size), options) for size in sizes]
