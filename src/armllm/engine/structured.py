"""Structured output: from a schema, regex, choice or grammar to the tokens that may come next.

llguidance (Apache-2.0/MIT, Rust, no dependencies) compiles all four to one kind of grammar and walks the
vocabulary as a trie; here is what it is asked and how its answers reach the logits.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, cast

import numpy as np

from armllm.engine.grammar import GrammarCheck, compile_grammar, first_line, library
from armllm.errors import BusyError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import llguidance
    import numpy.typing as npt

    from armllm.sampling_params import StructuredOutputsParams
    from armllm.tokenizer import Tokenizer

SOURCE_BYTES = 256 << 10  # of one schema, regex, list of choices or grammar
CACHED_BYTES = 256 << 20  # of compiled grammars
LEAST_BYTES = 128 << 10  # what a small one takes, about
REFUSED_SECONDS = 60.0  # in which a refused one is not tried again
MOST_REFUSED = 256
SECONDS_AT_ONCE = 1.0  # of the engine's thread
SECONDS_PER_USE = 0.005


class Clock:
    """The CPU time that the grammar of one request takes of all others' steps.

    Where a text can be read in many ways, each token takes longer than the one before.
    """

    def __init__(self) -> None:
        self._left = SECONDS_AT_ONCE

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what is done within; RequestError once it is too much."""
        if self._left < 0:
            raise RequestError(
                "structured_outputs is too complex: finding what may come next takes too much time"
            )
        started = time.thread_time()
        yield
        self._left = min(SECONDS_AT_ONCE, self._left + SECONDS_PER_USE) - (time.thread_time() - started)


class Matcher:
    """Where one sequence is in its grammar; ``clock`` is of all sequences of its request."""

    def __init__(
        self, matcher: llguidance.LLMatcher, end_token_ids: Sequence[int], eos: int | None, clock: Clock
    ) -> None:
        self._matcher = matcher
        self._end_token_ids = end_token_ids
        self._eos = eos
        self._clock = clock

    def copy(self) -> Matcher:
        """Another one at the same place."""
        return Matcher(self._matcher.deep_copy(), self._end_token_ids, self._eos, self._clock)

    def banned(self, vocab_size: int) -> npt.NDArray[np.bool_]:
        """Which tokens must not come next, a flag per token of the vocabulary."""
        with self._clock.running():
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=vocab_size, bitorder="little").astype(bool)
        if self._eos is not None and allowed[self._eos]:
            allowed[self._end_token_ids] = True
        return ~allowed

    def advance(self, token_id: int) -> bool:
        """Take the token that came; return whether nothing may follow. RequestError if it is lost."""
        with self._clock.running():
            self._matcher.consume_token(token_id)
        if self._matcher.is_error():
            raise RequestError(f"structured_outputs: {first_line(self._matcher.get_error())}")
        stopped: bool = self._matcher.is_stopped()
        return stopped


class GrammarCompiler:
    """Compiles the grammars of requests; those used last are cached, ``cached_bytes`` up to ``CACHED_BYTES``.

    ``vocab_size`` is the model's, which may be more than the tokenizer's. May be used by several threads.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_token_ids = sorted(end_token_ids)
        eos = tokenizer.eos_token_id
        self._eos = eos if eos is not None else min(end_token_ids, default=None)
        self._lock, self._compiling = threading.Lock(), threading.Lock()
        self._cached: OrderedDict[tuple[str, str], tuple[llguidance.LLMatcher, int]] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self.cached_bytes = 0

    def matcher(self, wanted: StructuredOutputsParams) -> Matcher:
        """At the beginning of the grammar; RequestError if it can't be compiled."""
        if wanted.regex is not None:
            return self._compile("regex", wanted.regex)
        if wanted.choice is not None:
            return self._compile("choice", json.dumps(wanted.choice))
        if wanted.grammar is not None:
            return self._compile("grammar", wanted.grammar)
        schema = {"type": "object"} if wanted.json_object else wanted.json
        try:
            if isinstance(schema, str):
                _check_size("json", schema)
                schema = json.loads(schema)
            source = json.dumps({} if schema is True else schema)
        except (TypeError, ValueError, RecursionError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"structured_outputs.json is not JSON: {error}") from None
        if not source.startswith("{"):
            raise RequestError(
                f"structured_outputs.json must be a schema that something fits, not {schema!r:.80}"
            )
        return self._compile("json", source)

    @functools.cached_property
    def _vocabulary(self) -> llguidance.LLTokenizer:
        """The vocabulary as a trie, made when it is first needed: it takes up to a second."""
        text = self._tokenizer.to_json()
        trie = library().LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos)
        return cast("llguidance.LLTokenizer", trie)

    @functools.cached_property
    def _check(self) -> GrammarCheck:
        return GrammarCheck(self._tokenizer.to_json(), self._vocab_size, self._eos)

    def _compile(self, kind: str, source: str) -> Matcher:
        _check_size(kind, source)
        library()
        key = kind, source
        compiled = self._find(key)
        if compiled is None:
            digest = _digest(key)
            self._refuse_again(digest)
            with self._compiling:
                compiled = self._find(key)  # the same grammar often comes from several at once
                if compiled is None:
                    self._refuse_again(digest)
                    compiled = self._try(key, digest)
        return Matcher(compiled.deep_copy(), self._end_token_ids, self._eos, Clock())

    def _try(self, key: tuple[str, str], digest: bytes) -> llguidance.LLMatcher:
        kind, source = key
        try:
            size = max(self._check.check(kind, source), LEAST_BYTES) + 2 * len(source)
            compiled = compile_grammar(self._vocabulary, kind, source)
        except BusyError:
            raise
        except RequestError as error:
            with self._lock:
                self._refused[digest] = time.monotonic() + REFUSED_SECONDS, str(error)
                if len(self._refused) > MOST_REFUSED:
                    self._refused.popitem(last=False)
            raise
        self._keep(key, compiled, size)
        return compiled

    def _refuse_again(self, digest: bytes) -> None:
        """Refuse what was refused lately: to find that out may have taken seconds of CPU time."""
        with self._lock:
            until, reason = self._refused.get(digest, (0.0, ""))
        if time.monotonic() < until:
            raise RequestError(reason)

    def _find(self, key: tuple[str, str]) -> llguidance.LLMatcher | None:
        with self._lock:
            if key not in self._cached:
                return None
            self._cached.move_to_end(key)
            return self._cached[key][0]

    def _keep(self, key: tuple[str, str], compiled: llguidance.LLMatcher, size: int) -> None:
        with self._lock:
            self._cached[key] = compiled, size
            self.cached_bytes += size
            while len(self._cached) > 1 and self.cached_bytes > CACHED_BYTES:
                self.cached_bytes -= self._cached.popitem(last=False)[1][1]


def _digest(key: tuple[str, str]) -> bytes:
    return hashlib.sha256(":".join(key).encode("utf-8", "surrogatepass")).digest()


def _check_size(kind: str, source: str) -> None:
    if len(source) > SOURCE_BYTES:
        raise RequestError(
            f"structured_outputs.{kind} has {len(source)} characters, more than {SOURCE_BYTES}"
        )
