"""Structured output: from a schema, regex, choice or grammar to the tokens that may come next.

llguidance (Apache-2.0/MIT, Rust, no dependencies) compiles all four to one kind of grammar and walks the
vocabulary as a trie; here is what it is asked and how its answers reach the logits.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from armllm.errors import RequestError

if TYPE_CHECKING:
    import llguidance
    import numpy.typing as npt

    from armllm.sampling_params import StructuredOutputsParams
    from armllm.tokenizer import Tokenizer

# JSON on one line, as json.dumps writes it. White space without limit is legal too, and a weak model then
# writes nothing else until it runs out of tokens.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
CACHED_GRAMMARS = 64


class Matcher:
    """Where one sequence is in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, end_token_ids: frozenset[int], eos: int | None) -> None:
        self._matcher = matcher
        self._end_token_ids = sorted(end_token_ids)
        self._eos = eos

    def copy(self) -> Matcher:
        """Another one at the same place."""
        return Matcher(self._matcher.deep_copy(), frozenset(self._end_token_ids), self._eos)

    def banned(self, vocab_size: int) -> npt.NDArray[np.bool_]:
        """Which tokens must not come next, a flag per token of the vocabulary."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=vocab_size, bitorder="little").astype(bool)
        if self._eos is not None and allowed[self._eos]:
            allowed[self._end_token_ids] = True
        return ~allowed

    def advance(self, token_id: int) -> bool:
        """Take the token that came; return whether nothing may follow. RequestError if it is lost."""
        self._matcher.consume_token(token_id)
        if self._matcher.is_error():
            raise RequestError(f"structured_outputs: {_first_line(self._matcher.get_error())}")
        stopped: bool = self._matcher.is_stopped()
        return stopped


class GrammarCompiler:
    """Compiles what requests ask for; the last few grammars are kept.

    ``vocab_size`` is the model's, which may be more than the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_token_ids = end_token_ids
        eos = tokenizer.eos_token_id
        self._eos = eos if eos is not None else min(end_token_ids, default=None)
        self._compile = functools.lru_cache(CACHED_GRAMMARS)(self._compile_uncached)

    def matcher(self, wanted: StructuredOutputsParams) -> Matcher:
        """At the beginning of the grammar; RequestError if it can't be compiled."""
        if wanted.regex is not None:
            return self._compile("regex", wanted.regex).copy()
        if wanted.choice is not None:
            return self._compile("choice", json.dumps(wanted.choice)).copy()
        if wanted.grammar is not None:
            return self._compile("grammar", wanted.grammar).copy()
        schema = {"type": "object"} if wanted.json_object else wanted.json
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise RequestError(f"structured_outputs.json is not JSON: {error}") from None
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise RequestError(
                f"structured_outputs.json must be a schema that something fits, not {schema!r:.80}"
            )
        try:
            return self._compile("json", json.dumps(schema)).copy()
        except (TypeError, ValueError, RecursionError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"structured_outputs.json is not JSON: {error}") from None

    @functools.cached_property
    def _vocabulary(self) -> llguidance.LLTokenizer:
        """The vocabulary as a trie, made when it is first needed: it takes up to a second."""
        text = self._tokenizer.to_json()
        made = _library().LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos)
        return cast("llguidance.LLTokenizer", made)

    def _compile_uncached(self, kind: str, source: str) -> Matcher:
        library = _library()
        make = library.LLMatcher
        try:
            if kind == "json":
                grammar = make.grammar_from_json_schema(source, overrides=JSON_STYLE)
            elif kind == "regex":
                # digits are ASCII's: a subset that readers of every dialect expect
                grammar = make.grammar_from_lark(f"start: /{library.regex_to_lark(source, 'd')}/")
            elif kind == "choice":
                texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(source))
                grammar = make.grammar_from_lark(f"start: {texts}")
            else:
                lark = library.gbnf_to_lark.gbnf_to_lark(source) if "::=" in source else source
                grammar = make.grammar_from_lark(lark)
            failed, messages = make.validate_grammar_with_warnings(grammar, self._vocabulary)
        except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
            failed, messages = True, [str(error)]
        if failed:
            raise RequestError(
                f"structured_outputs.{kind} can't be compiled: {_first_line(' '.join(messages))}"
            )
        matcher = make(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():
            raise RequestError(
                f"structured_outputs.{kind} can't be compiled: {_first_line(matcher.get_error())}"
            )
        return Matcher(matcher, self._end_token_ids, self._eos)


def _library() -> Any:
    """llguidance, which only requests for structured output need."""
    try:
        import llguidance  # noqa: PLC0415
        import llguidance.gbnf_to_lark  # noqa: PLC0415
    except ModuleNotFoundError:
        raise RequestError("structured_outputs needs llguidance: pip install 'armllm[engine]'") from None
    return llguidance


def _first_line(text: str) -> str:
    """What went wrong without the picture of where."""
    lines = [line.strip() for line in text.split("<state>", 1)[0].strip().splitlines()]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return " ".join([lines[0][:200], *reasons[:1]]) if lines else "no reason given"
