"""Grammars of strangers, compiled in a process of their own first.

A schema of a few bytes can make the compiler work for hours, take all memory, or overflow its stack, which
ends the process that it is in. That process is `python -m armllm.engine.grammar`: what it has compiled in
little time is safe to compile here.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from armllm.errors import RequestError

if TYPE_CHECKING:
    import llguidance

CPU_SECONDS = 4
WALL_SECONDS = 60.0  # of a process that others leave little time
MOST_BYTES = 1 << 30  # of address space, beside what the vocabulary takes
STACK_BYTES = 1 << 20  # less than any thread has that compiles here
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
    """The process that compiles first; started when it is needed, and again after a grammar was too much."""

    def __init__(self, tokenizer: str, vocab_size: int, eos: int | None) -> None:
        self._vocabulary = {"tokenizer": tokenizer, "n_vocab": vocab_size, "eos_token": eos}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, kind: str, source: str) -> int:
        """How many bytes the compiled grammar takes; RequestError if it can't be compiled in bounded time."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            answer = self._ask({"kind": kind, "source": source})
        if answer is None:
            raise RequestError(
                f"structured_outputs.{kind} is too complex: compiling it takes too much time, memory or depth"
            )
        if answer["error"] is not None:
            raise RequestError(answer["error"])
        num_bytes: int = answer["bytes"]
        return num_bytes

    def _start(self) -> None:
        command = [sys.executable, "-m", "armllm.engine.grammar"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        weakref.finalize(self, _end, process)
        self._process = process
        if self._ask(self._vocabulary) is None:
            raise RequestError("structured_outputs can't be had: the process that compiles does not start")

    def _ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """The answer in one line, or None from a process that died or had to be ended."""
        process = self._process
        assert process is not None  # noqa: S101 - started before
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        with suppress(OSError):
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], WALL_SECONDS)[0] and (
                line := process.stdout.readline()
            ):
                answer: dict[str, Any] = json.loads(line)
                return answer
        _end(process)
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _serve() -> None:
    """Answer a line of JSON with another one, until there are no more."""
    vocabulary = None
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, Any] = {"error": None, "bytes": 0}
        if vocabulary is None:
            vocabulary = library().LLTokenizer(
                question["tokenizer"], n_vocab=question["n_vocab"], eos_token=question["eos_token"]
            )
            limit = _memory()[0] + MOST_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        else:
            # beyond this the kernel ends the process
            limit = int(time.process_time()) + CPU_SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            before = _memory()[1]
            try:
                matcher = compile_grammar(vocabulary, question["kind"], question["source"])
                matcher.deep_copy().compute_bitmask()
                answer["bytes"] = max(0, _memory()[1] - before)
                del matcher
            except RequestError as error:
                answer["error"] = str(error)
            with suppress(AttributeError):
                ctypes.CDLL(None).malloc_trim(0)  # so that what the next one takes is seen
        print(json.dumps(answer), flush=True)


def _memory() -> tuple[int, int]:
    """Bytes of address space and of memory in use."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - as short as it gets
        sizes = [int(pages) * resource.getpagesize() for pages in file.read().split()[:2]]
    return sizes[0], sizes[1]


def main() -> None:
    """Leave other processes the time they want, and compile in a thread with little stack."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
