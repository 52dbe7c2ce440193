"""Work of many requests that is done one piece at a time, in turns."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from armllm.engine.caller import Caller

T = TypeVar("T")


@dataclasses.dataclass(eq=False)
class Account:
    """The seconds that a client has had, and how many of its requests are here."""

    seconds: float
    requests: int = 0


@dataclasses.dataclass(eq=False)
class Piece:
    """What a request wants done next. ``had``: the seconds of its pieces before."""

    account: Account
    had: list[float]
    work: Callable[[], Any]
    future: concurrent.futures.Future[Any]


class Turns:
    """A thread that does the work of whose client has had least time, then of whose request has.

    Who comes is put on a level with the client that had least: nobody saves up turns. Any thread may call.
    """

    def __init__(self, name: str) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(1, name)
        self._lock = threading.Lock()
        self._accounts: dict[str, Account] = {}
        self._waiting: list[Piece] = []

    @contextlib.contextmanager
    def of(self, caller: Caller) -> Iterator[Callable[[Callable[[], T]], concurrent.futures.Future[T]]]:
        """A function that queues a piece of one request."""
        with self._lock:
            account = self._accounts.get(caller.client)
            if account is None:
                least = min((one.seconds for one in self._accounts.values()), default=0.0)
                account = self._accounts[caller.client] = Account(least)
            account.requests += 1
        try:
            yield functools.partial(self._queue, account, [0.0])
        finally:
            with self._lock:
                account.requests -= 1
                if not account.requests:
                    del self._accounts[caller.client]

    def shutdown(self) -> None:
        """Do nothing more. Who waits is cancelled."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for piece in waiting:
            piece.future.cancel()
        self._executor.shutdown(wait=False)

    def _queue(
        self, account: Account, had: list[float], work: Callable[[], T]
    ) -> concurrent.futures.Future[T]:
        piece = Piece(account, had, work, concurrent.futures.Future())
        with self._lock:
            self._waiting.append(piece)
        self._executor.submit(self._do_next)
        return piece.future

    def _do_next(self) -> None:
        with self._lock:
            if not self._waiting:  # they were cancelled
                return
            piece = min(self._waiting, key=lambda one: (one.account.seconds, one.had[0]))
            self._waiting.remove(piece)
        if not piece.future.set_running_or_notify_cancel():
            return
        started = time.monotonic()
        result, error = None, None
        try:
            result = piece.work()
        except BaseException as caught:  # noqa: BLE001 - raised where it is waited for
            error = caught
        seconds = time.monotonic() - started
        with self._lock:  # before anybody can queue the next piece
            piece.account.seconds += seconds
            piece.had[0] += seconds
        if error is not None:
            piece.future.set_exception(error)
        else:
            piece.future.set_result(result)
