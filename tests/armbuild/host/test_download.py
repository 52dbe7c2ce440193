"""Servers that send too much, too slowly, too little, something else, or elsewhere."""

import errno
import gzip
import io
import resource
import time

import pytest
from tests.armbuild import servers
from tests.armbuild.servers import drips, sends

from armbuild.errors import MissingError
from armbuild.host import download

# urllib leaves the socket of an answer that is none to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def serve():
    with servers.serving() as start:
        yield lambda answer: f"http://127.0.0.1:{start(answer)}/x-1.tar.gz"


def refused(address, target, reason):
    start = time.monotonic()
    with pytest.raises(MissingError, match=reason) as caught:
        download.fetch(address, target)
    assert time.monotonic() - start < 10
    assert str(caught.value).startswith("x-1.tar.gz cannot be downloaded from 127.0.0.1:")
    assert "\n" not in str(caught.value)


def test_a_file_comes_with_a_stated_length_without_one_and_in_chunks(serve, tmp_path):
    for number, answer in enumerate(
        (
            sends(OK + b"Content-Length: 3\r\n\r\nabc"),
            sends(OK + b"\r\nabc"),
            sends(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"),
        )
    ):
        target = tmp_path / str(number)
        download.fetch(serve(answer), target)
        assert target.read_bytes() == b"abc"
    (tmp_path / "there").write_text("abc")
    download.fetch((tmp_path / "there").as_uri(), target)
    assert target.read_text() == "abc"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (sends(OK + b"Content-Length: 9999999999\r\n\r\nabc"), "9999999999 bytes or more, the limit is"),
        (sends(OK + b"\r\n", *[bytes(1 << 16)] * 40), r"has \d+ bytes or more, the limit is 1048576"),
        (sends(OK + b"Content-Length: 10\r\n\r\nabc"), "only 3 of 10 bytes came"),
        (sends(OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nabc"), "IncompleteRead|more expected"),
        (sends(b"hello\r\n\r\n"), "hello"),
        (sends(b""), "closed connection|RemoteDisconnected|reset by peer"),
        (sends(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "Not Found"),
        (sends(OK + b"X: y\r\n" * 200 + b"\r\n"), "more than 100 headers"),
        (sends(OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n"), "header line"),
    ],
    ids=["stated", "unstated", "short", "chunk", "garbage", "nothing", "404", "headers", "header"],
)
def test_what_is_too_much_or_not_whole_is_refused(serve, tmp_path, monkeypatch, answer, reason):
    monkeypatch.setattr(download, "MAX_BYTES", 1 << 20)
    refused(serve(answer), tmp_path / "x-1.tar.gz", reason)


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200", OK + b"Content-Length: 1000000\r\n\r\n", OK + b"X: "],
    ids=["silence", "status", "body", "header"],
)  # fmt: skip
def test_a_byte_now_and_then_is_too_slow(serve, tmp_path, monkeypatch, head):
    monkeypatch.setattr(download, "WINDOW", 0.5)
    refused(serve(drips(head)), tmp_path / "x-1.tar.gz", "too slow|timed out|status|header line")


def test_a_download_that_goes_on_and_on_ends(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MAX_SECONDS", 0.5)
    refused(serve(drips(OK + b"\r\n", bytes(1000))), tmp_path / "x-1.tar.gz", "has not ended after")


@pytest.mark.parametrize("scheme", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x"])
def test_an_address_leads_on_to_web_servers_alone(serve, tmp_path, scheme):
    (tmp_path / "there").write_text("abc")
    answer = f"HTTP/1.1 302 Found\r\nLocation: {scheme}\r\nContent-Length: 0\r\n\r\n".encode()
    refused(serve(sends(answer)), tmp_path / "x-1.tar.gz", "not followed|not allowed")


def test_another_host_is_followed_and_a_circle_ends(serve, tmp_path):
    there = serve(sends(OK + b"Content-Length: 3\r\n\r\nabc")).replace("127.0.0.1", "localhost")
    found = f"HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n".encode()
    download.fetch(serve(sends(found)), tmp_path / "x")
    assert (tmp_path / "x").read_text() == "abc"
    circle = b"HTTP/1.1 302 Found\r\nLocation: /x-1.tar.gz\r\nContent-Length: 0\r\n\r\n"
    refused(serve(sends(circle)), tmp_path / "x-1.tar.gz", "infinite loop|redirect")


def test_a_safe_address_does_not_lead_to_an_unsafe_one():
    request = download.urllib.request.Request("https://a.example/x")
    with pytest.raises(OSError, match="not followed"):
        download._SameOrSafer().redirect_request(request, io.BytesIO(), 302, "", {}, "http://a.example/x")


def test_a_compressed_answer_is_taken_as_it_is(serve, tmp_path):
    """Nobody asked for one: unpacking it here would be a bomb."""
    packed = gzip.compress(bytes(50 << 20))
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    download.fetch(serve(sends(OK + head + packed)), tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == packed
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10


@pytest.mark.parametrize(
    "address", ["http://[::1/x", "http://a..b/x", "http://127.0.0.1:x/x", "http:///x", "http://\u2603/x",
                "http://127.0.0.1/a b", "http://127.0.0.1:1/x"],
)  # fmt: skip
def test_an_address_that_is_none_or_answers_nothing_is_named(tmp_path, address):
    with pytest.raises(MissingError, match="x-1 cannot be downloaded from"):
        download.fetch(address, tmp_path / "x-1")


def test_a_full_disk_is_not_the_servers_fault(serve, tmp_path, monkeypatch):
    target = tmp_path / "x-1.tar.gz"

    class Full:
        def __enter__(self):
            raise OSError(errno.ENOSPC, "No space left on device")

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(type(target), "open", lambda *_args: Full())
    with pytest.raises(OSError, match="No space left") as caught:
        download.fetch(serve(sends(OK + b"Content-Length: 3\r\n\r\nabc")), target)
    assert caught.value.filename == str(target)
