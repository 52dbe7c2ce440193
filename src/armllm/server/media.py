"""Pictures at addresses that a request names, fetched from the hosts of --allowed-media-domains only.

A request must not reach what only this machine can reach. The host must be on the list, and all of its
addresses must be public. The connection goes to the very address that was checked. Redirects are checked
in the same way.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

from armllm.errors import RequestError, first_line
from armllm.pictures import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection

SECONDS = 10.0  # of one picture, redirects included
MOST_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
CHUNK = 64 << 10
THREADS = 8  # pictures that are fetched at once
LONGEST_ADDRESS = 2048
# IANA gives out addresses of IPv6 that everybody may reach from one network ("IPv6 Address Space"). In two
# parts of it they have addresses of IPv4 in them, behind which anything may be.
GLOBAL = ipaddress.IPv6Network("2000::/3")
TRANSLATED = tuple(map(ipaddress.IPv6Network, ("2002::/16", "2001::/32")))


class Fetcher:
    """Fetches files from ``hosts``; none: nothing is fetched."""

    def __init__(self, hosts: Collection[str]) -> None:
        self.hosts = frozenset(host.lower() for host in hosts)
        self.executor = concurrent.futures.ThreadPoolExecutor(THREADS, "armllm-media")

    def fetch(self, url: str) -> bytes:
        """The file at an address; RequestError says why there is none."""
        deadline = time.monotonic() + SECONDS
        try:
            for _ in range(MOST_REDIRECTS + 1):
                data, next_url = self._get(url, deadline)
                if next_url is None:
                    return data
                url = urljoin(url, next_url)
        except RequestError:
            raise
        except TimeoutError:
            raise RequestError(f"image_url: {_shown(url)} takes more than {SECONDS:.0f} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RequestError(f"image_url: {_shown(url)} can't be fetched: {first_line(error)}") from None
        raise RequestError(f"image_url: {_shown(url)} redirects more than {MOST_REDIRECTS} times")

    def _get(self, url: str, deadline: float) -> tuple[bytes, str | None]:
        """The file, or where it is instead."""
        parts = self._checked(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
        connection = http.client.HTTPConnection(host, port, timeout=_left(deadline))
        with contextlib.ExitStack() as closing:
            closing.callback(connection.close)
            line = connection.sock = _connect(host, port, deadline, tls=parts.scheme == "https")
            ending = threading.Timer(_left(deadline), _end, (line,))  # of one that trickles
            ending.daemon = True
            ending.start()
            closing.callback(ending.cancel)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Accept": "image/*", "User-Agent": "armllm"})
            answer = connection.getresponse()
            if answer.status in REDIRECTS and (location := answer.getheader("Location")):
                return b"", location
            if answer.status != http.client.OK:
                raise RequestError(f"image_url: {_shown(url)} answers with status {answer.status}")
            data = bytearray()
            while True:
                line.settimeout(_left(deadline))
                chunk = answer.read1(CHUNK)
                if not chunk:
                    _left(deadline)  # it may have been ended at the deadline
                    return bytes(data), None
                data += chunk
                if len(data) > MOST_BYTES:
                    raise RequestError(f"image_url: {_shown(url)} has more than {MOST_BYTES} bytes")

    def _checked(self, url: str) -> SplitResult:
        """The parts of an address that may be fetched."""
        if len(url) > LONGEST_ADDRESS or any(character <= " " or character > "~" for character in url):
            raise RequestError("image_url: an address must be of at most 2048 printable characters of ASCII")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.username is not None or not parts.hostname:
            raise RequestError(f"image_url: {_shown(url)} is not an address of http or https")
        if parts.hostname.lower() not in self.hosts:
            raise RequestError(
                f"image_url: {parts.hostname!r:.80} is not among the --allowed-media-domains of this server;"
                " send the picture as a data URL"
            )
        return parts


def _connect(host: str, port: int, deadline: float, *, tls: bool) -> socket.socket:
    """A connection to the first address of a host, all of which must be public."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, address in found:
        if not is_public(str(address[0])):
            raise RequestError(f"image_url: {host!r:.80} is in a private network")
    family, kind, protocol, _, address = found[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.settimeout(_left(deadline))
        connection.connect(address)
        return (
            ssl.create_default_context().wrap_socket(connection, server_hostname=host) if tls else connection
        )
    except BaseException:
        connection.close()
        raise


def is_public(address: str) -> bool:
    """Whether an address can be reached by everybody, and so tells nothing of this machine's networks."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found not in GLOBAL or any(found in network for network in TRANSLATED):
            return False
    return found.is_global and not found.is_multicast


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _shown(url: str) -> str:
    return repr(url[:80])
