"""The cost of a prompt at a replica, by the prompts that it has computed before.

A prompt is cut into chunks of bytes. The hash of each covers everything before it, so that a known hash means
a known beginning, as blocks of a prefix cache are found. Tokens are estimated: the router has no tokenizer.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

if TYPE_CHECKING:
    from collections.abc import Iterable

CHUNK_BYTES = 256
BYTES_PER_TOKEN = 4
HASH_BYTES = 8
MOST_CHUNKS = 1 << 16  # of one replica, some 10 MiB here; and of one request
MOST_OUTPUT = 512  # tokens: limits in requests are often far above what is written
MOST_SEQUENCES = 128
MOST_VALUES = 1 << 21  # of JSON, each of which becomes an object
GENERATES = ("/completions", "/completions/batch", "/responses")
# Chat templates write tools and documents first. The rest are texts or token ids.
HEADING = ("tools", "documents", "instructions")
TEXTS = ("messages", "prompt", "input", "query", "text_1", "text_2", "texts", "conversation")
OUTPUT_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclasses.dataclass(frozen=True)
class Prompt:
    """The prompts of one request. chains: the hashes of each one's chunks; output: tokens that may follow."""

    chains: tuple[tuple[bytes, ...], ...] = ()
    tokens_per_chunk: float = CHUNK_BYTES / BYTES_PER_TOKEN
    tokens: float = 0.0
    output: float = 0.0


def read_prompt(path: str, document: bytes) -> Prompt:
    """What a request asks a model to read and write; a body that is no JSON object counts by its size."""
    body = None
    if sum(map(document.count, (b",", b"[", b"{"))) <= MOST_VALUES:
        with contextlib.suppress(ValueError):
            body = from_json(document)
    if not isinstance(body, dict):
        return Prompt(tokens=len(document) / BYTES_PER_TOKEN)
    heading = b"".join(_bytes(body[name]) for name in HEADING if body.get(name))
    chains, tokens, size, left = [], 0.0, 0, MOST_CHUNKS
    for name in TEXTS:
        for text, count in _texts(body.get(name)):
            tokens += count + len(heading) / BYTES_PER_TOKEN
            size += len(heading) + len(text)
            room = left * CHUNK_BYTES  # a long heading of many texts would become terabytes
            chains.append(_hashes(heading[:room] + text[: max(0, room - len(heading))]))
            left -= len(chains[-1])
    return Prompt(
        tuple(chains),
        CHUNK_BYTES * tokens / max(1, size),
        tokens,
        _output(body) if path.endswith(GENERATES) else 0.0,
    )


def _texts(value: Any) -> Iterable[tuple[bytes, float]]:
    """The prompts in a field, and how many tokens each may have."""
    if isinstance(value, str):
        text = _utf8(value)
        yield text, len(text) / BYTES_PER_TOKEN
    elif isinstance(value, list) and value:
        if isinstance(value[0], int):  # token ids
            yield _bytes(value)[1:-1], len(value)
        elif isinstance(value[0], dict):  # a conversation
            text = b"".join(map(_bytes, value))
            yield text, len(text) / BYTES_PER_TOKEN
        else:
            for one in value:
                if isinstance(one, (str, list)):
                    yield from _texts(one)


def _output(body: dict[str, Any]) -> float:
    limits = [body[name] for name in OUTPUT_LIMITS if type(body.get(name)) is int and body[name] > 0]
    n = body.get("n")
    sequences = min(n, MOST_SEQUENCES) if type(n) is int and n > 0 else 1
    return float(sequences * min([*limits, MOST_OUTPUT]))


def _hashes(text: bytes) -> tuple[bytes, ...]:
    hashes = []
    last = b""
    for start in range(0, len(text) - CHUNK_BYTES + 1, CHUNK_BYTES):
        last = hashlib.blake2b(last + text[start : start + CHUNK_BYTES], digest_size=HASH_BYTES).digest()
        hashes.append(last)
    return tuple(hashes)


def _bytes(value: Any) -> bytes:
    return _utf8(_encode(value))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class PrefixTable:
    """The beginnings of prompts that a replica has in its cache, as far as one can tell."""

    def __init__(self) -> None:
        self.capacity = MOST_CHUNKS
        self._chunks: collections.OrderedDict[bytes, None] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def set_capacity(self, tokens: int) -> None:
        """Remember no more than a cache of so many tokens holds."""
        self.capacity = max(1, min(MOST_CHUNKS, tokens * BYTES_PER_TOKEN // CHUNK_BYTES))

    def uncached(self, prompt: Prompt) -> float:
        """Tokens of the prompt that the replica has yet to compute."""
        known = 0
        for chain in prompt.chains:
            for chunk in chain:
                if chunk not in self._chunks:
                    break
                known += 1
        return max(0.0, prompt.tokens - known * prompt.tokens_per_chunk)

    def add(self, prompt: Prompt) -> None:
        """Remember it. The end of a chain is forgotten before its beginning."""
        for chain in prompt.chains:
            for chunk in reversed(chain):
                self._chunks[chunk] = None
                self._chunks.move_to_end(chunk)
        while len(self._chunks) > self.capacity:
            self._chunks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything, as a replica that ended has."""
        self._chunks.clear()
