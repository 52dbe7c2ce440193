"""Log-probabilities in the shapes of the two APIs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from armllm.server.service import token_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm.outputs import Logprob
    from armllm.server.protocol.chat import ChatLogprobs, TokenLogprob, TopLogprob
    from armllm.server.protocol.completions import CompletionLogprobs
    from armllm.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def chat_logprobs(
    token_ids: Sequence[int], steps: Sequence[dict[int, Logprob]], count: int, tokenizer: Tokenizer
) -> ChatLogprobs:
    """The chosen tokens with the ``count`` likeliest at each place."""

    def entry(token_id: int, found: Logprob) -> TopLogprob:
        text = found.decoded_token or ""
        return {
            "token": text,
            "logprob": _finite(found.logprob),
            "bytes": token_bytes(token_id, text, tokenizer),
        }

    content: list[TokenLogprob] = []
    for token_id, step in zip(token_ids, steps, strict=True):
        likeliest = sorted(step.items(), key=lambda item: item[1].rank)[:count]
        top = [entry(other, found) for other, found in likeliest]
        content.append({**entry(token_id, step[token_id]), "top_logprobs": top})
    return {"content": content}


def completion_logprobs(
    token_ids: Sequence[int],
    steps: Sequence[dict[int, Logprob] | None],
    count: int,
    offset: int,
    tokenizer: Tokenizer,
) -> CompletionLogprobs:
    """The same for /v1/completions; a step is None for a prompt's first token, which nothing predicts."""
    result: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token_id, step in zip(token_ids, steps, strict=True):
        sampled = step[token_id] if step else None
        # a begin token is no part of the echoed text
        text = (sampled.decoded_token or "") if sampled else tokenizer.decode([token_id])
        result["tokens"].append(text)
        result["token_logprobs"].append(_finite(sampled.logprob) if sampled else None)
        result["text_offset"].append(offset)
        offset += len(text)
        if step is None:
            result["top_logprobs"].append(None)
            continue
        # as in OpenAI's answers, the chosen token is listed even if it is none of the likeliest
        listed = [found for other, found in step.items() if found.rank <= count or other == token_id]
        listed.sort(key=lambda found: found.rank)
        result["top_logprobs"].append({found.decoded_token or "": _finite(found.logprob) for found in listed})
    return result


def prompt_logprobs(steps: Sequence[dict[int, Logprob] | None]) -> list[dict[str, Any] | None]:
    """As vLLM has it: per prompt token, its own and the likeliest tokens by id."""
    return [
        None
        if step is None
        else {
            str(token_id): {
                "logprob": _finite(found.logprob),
                "rank": found.rank,
                "decoded_token": found.decoded_token,
            }
            for token_id, found in step.items()
        }
        for step in steps
    ]


def token_bytes(token_id: int, text: str, tokenizer: Tokenizer) -> list[int]:
    """The bytes of a token, also of one that is only a part of a character."""
    if REPLACEMENT in text:
        stored = token_text(tokenizer, token_id)
        single = _BYTE_TOKEN.fullmatch(stored)
        if single:
            return [int(single.group(1), 16)]
        if all(char in _BYTES for char in stored):
            return [_BYTES[char] for char in stored]
    return list(text.encode())


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for what can't happen."""
    return max(logprob, -9999.0)
