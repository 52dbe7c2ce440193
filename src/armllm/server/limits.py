"""How large a request may be, by what the model's context can hold."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import resource
import time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from armllm.server.errors import ApiError
from armllm.server.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

# A token takes up to 64 bytes, as an id or as escaped text; the rest is for lists of short prompts.
BASE_BODY_BYTES, BODY_BYTES_PER_TOKEN, MOST_BODY_BYTES = 4 << 20, 64, 64 << 20
PICTURE_BYTES = 28 << 20  # the largest picture in base64
# Every value becomes a Python object, which may take 30 times the bytes that it has in JSON.
BASE_VALUES, VALUES_PER_TOKEN = 1 << 18, 8
# Of large bodies; small ones are bounded by the number of connections.
BODIES_AT_ONCE, MOST_BYTES_AT_ONCE = 16, 256 << 20
MAX_CONNECTIONS = 4096
RESERVED_FILES = 128  # for everything that is not a connection
# Smaller bodies and texts take less time than a step of a small model.
HEAVY_BYTES = 64 << 10
HEAVY_TEXT = 16 << 10  # characters to tokenize
# Shorter texts are tokenized in less time than it takes to hand them to another thread.
LONG_TEXT, MANY_TEXTS = 2000, 4  # characters
# Each is an object here, and some 70 bytes of the answer's JSON: more would hold up the event loop.
PROMPT_LOGPROBS = 1 << 16
RESTS = 3  # as long as the work that they follow


class Limits:
    """The limits of one server, and the memory that bodies take until they are read.

    ``files_each``: open files that a connection may need.
    """

    def __init__(self, max_model_len: int, takes_pictures: bool = False, files_each: int = 1) -> None:
        self._files_each = files_each
        base = BASE_BODY_BYTES + (PICTURE_BYTES if takes_pictures else 0)
        self.body_bytes = min(base + BODY_BYTES_PER_TOKEN * max_model_len, MOST_BODY_BYTES)
        self.values = BASE_VALUES + VALUES_PER_TOKEN * max_model_len
        self.offload = Offload()
        self.refusals = Refusals()
        self.open: dict[Any, Any] = {}  # protocols and what carries their bytes
        self.idle: dict[Any, None] = {}  # those without a whole request, the oldest first
        self._reserved = 0
        self._bytes_at_once = min(BODIES_AT_ONCE * self.body_bytes, MOST_BYTES_AT_ONCE)

    def admit(self, protocol: Any, transport: Any) -> None:
        """Count a connection. Beyond the limit, the one ends that has waited longest for a request.

        If none waits, that is the new one.
        """
        self.open[protocol] = transport
        self.idle[protocol] = None
        if len(self.open) > self._most_connections():
            next(iter(self.idle)).leave().abort()

    def _most_connections(self) -> int:
        """As many as there may be open files, up to a limit."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES
        return max(1, min(MAX_CONNECTIONS, files // self._files_each))

    @contextlib.contextmanager
    def reservation(self) -> Iterator[Callable[[int], None]]:
        """A function that takes so many more bytes for one body; ApiError if it, or all, get too large."""
        size = 0

        def take(count: int) -> None:
            nonlocal size
            size += count
            self._reserved += count
            if size > self.body_bytes:
                raise self.too_large()
            if size > HEAVY_BYTES and self._reserved > self._bytes_at_once:
                raise ApiError("too many large requests at once: try again later", status=503, code="busy")

        try:
            yield take
        finally:
            self._reserved -= size

    def too_large(self) -> ApiError:
        """What a body that exceeds the limit is answered."""
        return ApiError(
            f"the body has more than {self.body_bytes} bytes, the limit of this server: send its"
            " parts as separate requests",
            status=413,
            code="body_too_large",
        )

    def check_values(self, document: bytes) -> None:
        """Refuse JSON of more values than any request needs, before they become objects."""
        if sum(map(document.count, (b",", b"[", b"{"))) > self.values and num_values(document) > self.values:
            raise ApiError(
                f"the body has more than {self.values} JSON values, the limit of all its lists and objects"
                " together: send its parts as separate requests",
                status=413,
                code="body_too_large",
            )


def check_prompt_logprobs(tokens: int, each: int) -> None:
    """Refuse more log-probabilities of prompts than an answer may hold: each token has its own, too."""
    if tokens * (each + 1) > PROMPT_LOGPROBS:
        raise ApiError(
            f"{each!s:.20} prompt_logprobs and the own one of {tokens} tokens are more than"
            f" {PROMPT_LOGPROBS} values: ask for fewer, or send parts of the prompt",
            param="prompt_logprobs",
        )


class Offload:
    """A thread for work that would hold up the event loop: one piece at a time, a quarter of the time.

    Most of such work holds the interpreter's lock; the rests leave it to the engine and to everybody else.
    """

    def __init__(self) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="armllm-offload")
        self._rest_until = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``; who is cancelled while waiting for a turn costs nothing."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._paced, work)

    async def if_slow(self, slow: bool, work: Callable[[], T]) -> T:
        """The result of ``work``, done here unless that is ``slow``."""
        return await self.run(work) if slow else work()

    def _paced(self, work: Callable[[], T]) -> T:
        time.sleep(max(0.0, self._rest_until - time.monotonic()))
        started = time.monotonic()
        try:
            return work()
        finally:
            ended = time.monotonic()
            self._rest_until = ended + RESTS * (ended - started)


async def away_if(slow: bool, work: Callable[[], T]) -> T:
    """The result of ``work``, done in another thread if it would hold up everybody else in this one."""
    return await asyncio.to_thread(work) if slow else work()


def num_values(document: bytes) -> int:
    """Commas and opening brackets outside of strings: as many as there are values in JSON, or nearly."""
    plain = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = np.frombuffer(plain, dtype=np.uint8)
    outside = ~np.bitwise_xor.accumulate(characters == ord('"'))
    marks: Any = (characters == ord(",")) | (characters == ord("[")) | (characters == ord("{"))
    return int(np.count_nonzero(outside & marks))


def weight(value: Any, enough: int) -> int:
    """Characters of texts in a JSON value and some for everything else, counted until it is ``enough``."""
    total, pending = 0, [value]
    while pending and total <= enough:
        one = pending.pop()
        total += len(one) if isinstance(one, str) else 8
        if isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, list):
            pending += one
    return total
