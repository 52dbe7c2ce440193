"""One file from an address: whole or not at all, with limits of bytes and time, whatever the server does."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from armbuild.artifact.archives import OF_THIS_MACHINE
from armbuild.errors import MissingError, one_line

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 4 << 30
MAX_SECONDS = 3600.0
WINDOW, LEAST = 60.0, 60 << 10
"""Within so many seconds at least so many bytes must come."""
_BLOCK = 1 << 16
_AGENT = "armbuild"


def fetch(address: str, target: Path) -> None:
    """Write what is at ``address`` (http, https, file) to ``target``.

    Raises MissingError with the reason when it does not come, is cut short, is too large or comes too slowly;
    OSError when it cannot be written. What was written of it is for the caller to remove.
    """
    try:
        host = urllib.parse.urlsplit(address).netloc.rpartition("@")[2] or address
        download = _Download(address, target)
        download.start()
        reason = download.watch()
    except ValueError as error:  # an address that is none
        host, reason = address, str(error)
    if reason:
        raise MissingError(f"{target.name} cannot be downloaded from {host}: {one_line(reason).strip()}")


class _SameOrSafer(urllib.request.HTTPRedirectHandler):
    """Follows to another host, since indexes keep files so, but to no file and from https to https alone."""

    def redirect_request(  # noqa: PLR0917 - the library's own
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme != "https" and (scheme != "http" or req.type != "http"):
            fp.close()
            raise urllib.error.URLError(f"it leads on to {newurl[:200]}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Download(threading.Thread):
    """Reads beside its caller, who can see what comes: a read of one byte a second would never end."""

    def __init__(self, address: str, target: Path) -> None:
        super().__init__(daemon=True)
        self._request = urllib.request.Request(address, headers={"User-Agent": _AGENT})  # noqa: S310 - as checked
        self._target = target
        self._received = 0
        self._stopped = False
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._read()
        except BaseException as error:  # noqa: BLE001 - raised again in ``watch``
            self._error = error
            if isinstance(error, urllib.error.HTTPError):
                error.close()

    def _read(self) -> None:
        opener = urllib.request.build_opener(_SameOrSafer)
        with opener.open(self._request, timeout=WINDOW) as answer:
            stated = answer.headers.get("Content-Length", "")
            expected = int(stated) if stated.isdecimal() and len(stated) < 20 else None
            if expected is not None and expected > MAX_BYTES:
                raise urllib.error.URLError(_too_large(expected))
            with self._target.open("wb") as sink:
                while not self._stopped and (block := answer.read1(_BLOCK)):
                    self._received += len(block)
                    if self._received > MAX_BYTES:
                        raise urllib.error.URLError(_too_large(self._received))
                    sink.write(block)
        if expected is not None and self._received < expected:
            raise urllib.error.URLError(f"only {self._received} of {expected} bytes came")

    def watch(self) -> str:
        """Wait for the end and return why it failed, empty for not; an error of this machine is raised."""
        try:
            if reason := self._wait():
                return reason
        finally:
            self._stopped = True
        error = self._error
        if isinstance(error, OSError) and error.errno in OF_THIS_MACHINE:
            raise OSError(error.errno, error.strerror, str(self._target)) from error
        if error is None or isinstance(error, (OSError, http.client.HTTPException, ValueError)):
            return str(getattr(error, "reason", None) or error or type(error).__name__) if error else ""
        raise error

    def _wait(self) -> str:
        start = mark = time.monotonic()
        seen = 0
        while self.is_alive():
            self.join(0.1)
            now = time.monotonic()
            if now - start > MAX_SECONDS:
                return f"it has not ended after {MAX_SECONDS:.0f} s"
            if now - mark > WINDOW:
                if self._received - seen < LEAST:
                    return f"{self._received - seen} bytes came within {WINDOW:.0f} s, which is too slow"
                mark, seen = now, self._received
        return ""


def _too_large(size: int) -> str:
    return f"it has {size} bytes or more, the limit is {MAX_BYTES}"
