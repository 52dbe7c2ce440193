"""Grammars of clients, compiled in a separate process first.

A schema of a few bytes can make the compiler work for hours, take all memory, or overflow its stack, which
ends the process that it is in. That process is `python -m armllm.engine.grammar`: what it has compiled in
little time is safe to compile here.
"""

from __future__ import annotations

import functools
import json
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from armllm.errors import BusyError, RequestError
from armllm.helper_process import HelperProcess, answer_questions, memory
from armllm.utils import malloc

if TYPE_CHECKING:
    from collections.abc import Callable

    import llguidance

CPU_SECONDS = 3  # and up to one more
VOCABULARY_BYTES = 4 << 30  # of address space, while it is read
MOST_BYTES = 1 << 30  # of address space, beside what the vocabulary takes
TRIED_TOKENS = 192  # of a text of the grammar, drawn by lot
TRIAL_SECONDS = 0.5
# JSON on one line, as json.dumps writes it. White space without limit is legal too, and a weak model then
# writes nothing else until it runs out of tokens.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


def library() -> Any:
    """llguidance, which only requests for structured output need."""
    try:
        import llguidance  # noqa: PLC0415
        import llguidance.gbnf_to_lark  # noqa: PLC0415
    except ModuleNotFoundError:
        raise RequestError("structured_outputs needs llguidance: pip install 'armllm[engine]'") from None
    return llguidance


def compile_grammar(vocabulary: llguidance.LLTokenizer, kind: str, source: str) -> llguidance.LLMatcher:
    """A matcher at the beginning of a grammar of any kind; RequestError says what is wrong."""
    make = library().LLMatcher
    try:
        if kind == "json":
            grammar = make.grammar_from_json_schema(source, overrides=JSON_STYLE)
        elif kind == "regex":
            # digits are ASCII's: a subset that readers of every dialect expect
            grammar = make.grammar_from_lark(f"start: /{library().regex_to_lark(source, 'd')}/")
        elif kind == "choice":
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(source))
            grammar = make.grammar_from_lark(f"start: {texts}")
        else:
            lark = library().gbnf_to_lark.gbnf_to_lark(source) if "::=" in source else source
            grammar = make.grammar_from_lark(lark)
        failed, messages = make.validate_grammar_with_warnings(grammar, vocabulary)
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        failed, messages = True, [str(error)]
    if not failed:
        matcher: llguidance.LLMatcher = make(vocabulary, grammar, log_level=0)
        if not matcher.is_error():
            return matcher
        messages = [matcher.get_error()]
    raise RequestError(f"structured_outputs.{kind} can't be compiled: {first_line(' '.join(messages))}")


def first_line(text: str) -> str:
    """What went wrong without the picture of where."""
    lines = [line.strip() for line in text.split("<state>", 1)[0].strip().splitlines()]
    reasons = [line.removeprefix("error: ")[:200] for line in lines if line.startswith("error: ")]
    return " ".join([lines[0][:200], *reasons[:1]]) if lines else "no reason given"


class GrammarCheck:
    """The process that compiles first."""

    def __init__(self, tokenizer: str, vocab_size: int, eos: int | None) -> None:
        vocabulary = {"tokenizer": tokenizer, "n_vocab": vocab_size, "eos_token": eos}
        self._process = HelperProcess("armllm.engine.grammar", vocabulary)

    def check(self, kind: str, source: str) -> int:
        """How many bytes the compiled grammar takes; RequestError if it can't be compiled in bounded time."""
        answer = self._process.ask({"kind": kind, "source": source})
        if answer is None and self._process.setup_answer is None:
            raise BusyError("structured_outputs is not available now: the compiling process does not start")
        if answer is None:
            raise RequestError(
                f"structured_outputs.{kind} is too complex: compiling it takes too much time, memory or depth"
            )
        if answer["error"] is not None:
            raise RequestError(answer["error"])
        num_bytes: int = answer["bytes"]
        return num_bytes


def _prepare(setup: dict[str, Any]) -> tuple[bool, Callable[[dict[str, str]], dict[str, Any]]]:
    vocabulary = library().LLTokenizer(
        setup["tokenizer"], n_vocab=setup["n_vocab"], eos_token=setup["eos_token"]
    )
    return True, functools.partial(_measure, vocabulary)


def _try(matcher: llguidance.LLMatcher, kind: str) -> None:
    """Write something by the grammar; RequestError if the tokens take too long.

    A grammar of a line that can read a text in many ways is compiled at once, and its tokens take seconds.
    """
    draw = random.Random(0)  # noqa: S311 - no secret
    started = time.process_time()
    for _ in range(TRIED_TOKENS):
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        token_ids = np.flatnonzero(allowed)
        if len(token_ids) and not matcher.is_error():
            matcher.consume_token(int(draw.choice(token_ids)))
        if matcher.is_error():
            raise RequestError(f"structured_outputs.{kind} can't be used: {_unusable(matcher.get_error())}")
        if time.process_time() - started > TRIAL_SECONDS:
            raise RequestError(
                f"structured_outputs.{kind} is too complex: finding what may come next takes too much time"
            )
        if matcher.is_stopped() or not len(token_ids):
            return


def _unusable(error: str) -> str:
    """Why nothing can be written, for those who don't know the library."""
    if "NoExtensionBias" in error:  # not even a first token
        return "no text fits it; a part of it, such as a $ref, may lead only to itself"
    if "Too many items" in error:
        return "it is too complex, or a part of it must contain itself without end"
    return first_line(error)


def _memory() -> int:
    """Bytes that malloc has given out, or the memory in use where it does not say.

    Memory in use says little of a grammar that fits where others were.
    """
    found = malloc.allocated()
    return memory()[1] if found is None else found


def _measure(vocabulary: llguidance.LLTokenizer, question: dict[str, str]) -> dict[str, Any]:
    """What a grammar takes, or why it can't be compiled."""
    before = _memory()
    answer: dict[str, Any] = {"error": None, "bytes": 0}
    try:
        matcher = compile_grammar(vocabulary, question["kind"], question["source"])
        _try(matcher.deep_copy(), question["kind"])
        answer["bytes"] = max(0, _memory() - before)
        del matcher
    except RequestError as error:
        answer["error"] = str(error)
    malloc.trim()  # so that what the next one takes is seen
    return answer


if __name__ == "__main__":
    answer_questions(_prepare, cpu_seconds=CPU_SECONDS, most_bytes=MOST_BYTES, prepare_bytes=VOCABULARY_BYTES)
