"""What connects and does not ask, or asks without end, is let go; everybody else is served meanwhile."""

from __future__ import annotations

import contextlib
import socket
import time

import httpx2
import pytest
from tests.armllm.server.conftest import wait_until

from armllm.server import connection, limits

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
SHORT = 0.2  # seconds


@contextlib.contextmanager
def connected(server, sent=b""):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as one:
        one.sendall(sent)
        yield one


def rest(one):
    """What comes until the server ends the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := one.recv(1 << 16):
            found += piece
    return found


def send_all(one, data):
    with contextlib.suppress(ConnectionError):
        one.sendall(data)


def num_connections(server):
    return len(server.server.server_state.connections)


@pytest.mark.parametrize(
    ("sent", "constant"),
    [
        (b"", "HEADER_SECONDS"),
        (b"\r\n\r\n", "HEADER_SECONDS"),
        (GET, "HEADER_SECONDS"),
        (GET + b"\r\n" + GET, "HEADER_SECONDS"),
        (POST + b"Content-Length: 50\r\n\r\n{", "BODY_SECONDS"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", "BODY_SECONDS"),
    ],
    ids=["nothing", "lines", "half a header", "half a second header", "half a body", "half a chunk"],
)
def test_who_sends_half_a_request_is_let_go(served, monkeypatch, sent, constant):
    monkeypatch.setattr(connection, constant, SHORT)
    monkeypatch.setattr(served.server.config, "timeout_keep_alive", SHORT)
    with connected(served, sent) as one:
        rest(one)
    wait_until(lambda: num_connections(served) == 0)
    served.assert_idle()


@pytest.mark.parametrize(
    "piece",
    [b"X-Long: " + b"a" * 200_000, b"a" * 200_000, b"X: y\r\n" * 20_000],
    ids=["value", "name", "many"],
)
def test_headers_are_refused_before_they_are_long(served, piece):
    with connected(served, GET) as one:
        for _ in range(50):
            send_all(one, piece)
        assert rest(one)[:12] in (b"", b"HTTP/1.1 431")
    wait_until(lambda: num_connections(served) == 0)


@pytest.mark.parametrize("sizes", [(60 << 10, 60 << 10), (100 << 10, 1), (100 << 10, 100 << 10)])
def test_a_long_header_in_two_pieces_is_refused_at_once(served, sizes):
    """It would catch a piece that is not counted, so that only the deadline ends the connection."""
    begin = time.monotonic()
    with connected(served, GET + b"X-Long: " + b"a" * sizes[0]) as one:
        time.sleep(0.1)
        send_all(one, b"a" * sizes[1])
        assert rest(one)[:12] in (b"", b"HTTP/1.1 431")
    assert time.monotonic() - begin < connection.HEADER_SECONDS / 2


def test_a_long_header_in_one_read_with_the_request_before_it_is_refused_at_once(served):
    begin = time.monotonic()
    with connected(served, GET + b"\r\n" + GET + b"X-Long: " + b"a" * (120 << 10)) as one:
        rest(one)
    assert time.monotonic() - begin < connection.HEADER_SECONDS / 2


@pytest.mark.parametrize("host", [b"", b"Host: x\r\nHost: x\r\n"], ids=["none", "two"])
def test_a_request_names_its_host_once(served, host):
    """RFC 9112, 3.2: else two programs on its way may take it for two servers'."""
    for version, status in (b"1.1", b"400"), (b"1.0", b"200" if not host else b"403"):
        with connected(served, b"GET /health HTTP/" + version + b"\r\n" + host + b"\r\n") as one:
            answer = rest(one)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert (b"one Host header" in answer) == (version == b"1.1")


def test_a_header_of_60_kib_is_fine(served):
    assert httpx2.get(f"{served.url}/health", headers={"X-Long": "a" * (60 << 10)}).status_code == 200


CLOSE = b"Connection: close\r\n"


@pytest.mark.parametrize(
    ("head", "size", "status"),
    [
        (POST + CLOSE + b"Content-Length: %d\r\n\r\n" % (20 << 20), 20 << 20, b"413"),
        (POST.replace(b"json", b"x") + CLOSE + b"Content-Length: %d\r\n\r\n" % (4 << 20), 4 << 20, b"415"),
        (POST + CLOSE + b"Transfer-Encoding: gzip\r\n\r\n", 1 << 19, b"501"),
        (GET + b"X-Long: ", 1 << 19, b"431"),
        (b"nothing\r\n\r\n", 1 << 19, b"400"),
    ],
    ids=["body", "type", "coding", "header", "no HTTP"],
)
def test_who_sends_all_before_it_reads_gets_its_refusal(served, head, size, status):
    """It would catch a connection that is closed, and so reset, with bytes unread: urllib saw no answer."""
    with connected(served, head) as one:
        one.sendall(b"a" * size)
        answer = b"".join(iter(lambda: one.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 " + status), answer
    fields, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(body) in fields.lower() + b"\r\n"
    wait_until(lambda: num_connections(served) == 0)
    served.assert_idle()


@pytest.mark.parametrize("constant", ["LINGER_SECONDS", "LINGER_BYTES"])
def test_who_sends_on_after_its_refusal_is_let_go(served, monkeypatch, constant):
    monkeypatch.setattr(connection, constant, SHORT if constant == "LINGER_SECONDS" else 1 << 16)
    with connected(served, b"nothing\r\n\r\n") as one:
        if constant == "LINGER_BYTES":
            with contextlib.suppress(ConnectionError):
                while True:
                    one.sendall(b"a" * (1 << 16))
        wait_until(lambda: num_connections(served) == 0)


@pytest.mark.parametrize(
    "tail", [b"1;" + b"x" * (1 << 20), b"0\r\nTrailer: " + b"y" * (1 << 20)], ids=["extension", "trailer"]
)
def test_what_surrounds_a_body_has_a_limit(served, monkeypatch, tail):
    monkeypatch.setattr(connection, "CHUNKED_BYTES", 1)
    most = connection.HEADER_BYTES + connection.CHUNKED_BYTES * served.service.limits.body_bytes
    with connected(served, POST + b"Transfer-Encoding: chunked\r\n\r\n") as one:
        send_all(one, tail)
        for _ in range(most // (1 << 20) + 2):
            send_all(one, b"z" * (1 << 20))
        rest(one)
    wait_until(lambda: num_connections(served) == 0)


@pytest.mark.parametrize("chunk", [b"zz\r\n{", b"5\r\n{}\r\n0\r\n\r\n", b"\xff" * 100, b"f" * 40 + b"\r\n"])
def test_a_chunk_that_is_none_is_answered_with_a_sentence(served, chunk):
    with connected(served, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk) as one:
        answer = rest(one)
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert answer.endswith(connection.BAD_BODY.encode())
    served.assert_idle()


CODINGS = [b"gzip, chunked", b"gzip\r\nTransfer-Encoding: chunked", b",chunked", b"gzip", b"identity"]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("before", [b"", GET + b"\r\n"], ids=["first", "second"])
def test_a_coding_that_is_not_known_is_refused(served, before, coding):
    """It would catch a packed body that is read as it is, and one that others read to another end."""
    sent = POST + b"Transfer-Encoding: " + coding + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + GET + b"\r\n"
    with connected(served, before) as one:
        if before:
            assert one.recv(1 << 16).startswith(b"HTTP/1.1 200")
        send_all(one, sent)
        answer = rest(one)
    assert answer.startswith(b"HTTP/1.1 501"), answer
    assert answer.endswith(connection.BAD_CODING.encode())
    assert answer.count(b"HTTP/1.1") == 1
    served.assert_idle()


UPGRADES = [
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
]


@pytest.mark.parametrize("offer", UPGRADES, ids=["h2c", "websocket"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "byte by byte"])
def test_an_offer_of_another_protocol_is_ignored(served, offer, whole):
    """Java's client makes one by default. Its body was left out, and no other request was answered."""
    body = b'{"prompt":"Hello","max_tokens":1}'
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nUpgrade: h2c\r\n\r\n" % (len(body), body)
    sent = POST + offer + b"Content-Length: %d\r\n\r\n" % len(body) + body + POST + offer + chunked
    sent += GET + offer + b"\r\n" + GET + b"Connection: close\r\n\r\n"
    with connected(served, sent if whole else b"") as one:
        if not whole:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for start in range(len(sent)):
                one.sendall(sent[start : start + 1])
        answers = rest(one)
    assert answers.count(b"HTTP/1.1 200 OK") == 4, answers
    served.assert_idle()


def test_offers_and_a_tunnel_end_in_a_refusal(served):
    """It would catch a request that is parsed again without end."""
    offer = UPGRADES[0]
    with connected(served, b"CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n") as one:
        assert rest(one).startswith(b"HTTP/1.1 400")
    with connected(served, (GET + offer + b"\r\n") * 3000) as one:
        rest(one)
    wait_until(lambda: num_connections(served) == 0)
    served.assert_idle()


@pytest.mark.parametrize("before", [b"", GET + b"\r\n"], ids=["first", "second"])
def test_a_url_that_is_none_is_answered(served, before):
    """It would catch a connection that stays without an answer: there is no request to refuse."""
    with connected(served, before + b"CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\n\r\n") as one:
        answer = rest(one)
    assert answer.count(b"HTTP/1.1 400") == 1, answer
    assert answer.count(b"HTTP/1.1 200") == bool(before)
    served.assert_idle()


def test_blanks_after_the_length_are_no_part_of_it(served):
    body = b'{"prompt":"Hello","max_tokens":1}'
    with connected(
        served, POST + b"Connection: close\r\nContent-Length: %d \t\r\n\r\n" % len(body) + body
    ) as one:
        assert rest(one).startswith(b"HTTP/1.1 200")


def test_pipelined_requests_have_a_limit(served):
    total = served.server.server_state.total_requests
    with connected(served, (GET + b"\r\n") * (1 + connection.MAX_PIPELINED)) as one:
        found = b""
        while found.count(b"HTTP/1.1 200") < 1 + connection.MAX_PIPELINED:
            found += one.recv(1 << 16)
    with connected(served) as one:
        for _ in range(20):
            send_all(one, (GET + b"\r\n") * 5000)
        rest(one)
    wait_until(lambda: num_connections(served) == 0)
    assert served.server.server_state.total_requests - total < 1000


def test_answers_before_a_refusal_do_not_let_its_connection_go_on(served, monkeypatch):
    """It would catch a megabyte that is read for each answer, of a client that is refused already."""
    monkeypatch.setattr(served.service.limits.refusals, "delay", lambda *_: 0.3)
    sizes = []
    data_received = connection.LimitedProtocol.data_received

    def received(self, data):
        if not self._lingers:
            sizes.append(len(data))
        data_received(self, data)

    monkeypatch.setattr(connection.LimitedProtocol, "data_received", received)
    with connected(served, (GET + b"\r\n") * 30) as one:
        one.settimeout(0.1)
        with contextlib.suppress(OSError):
            while True:
                one.sendall((GET + b"\r\n") * 5000)
    wait_until(lambda: num_connections(served) == 0)
    assert len(sizes) <= 2, sizes


def test_a_new_connection_takes_the_place_of_the_one_that_waited_longest(served, monkeypatch):
    wait_until(lambda: num_connections(served) == 0)
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 3)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(served, GET[: index + 1])) for index in range(8)]
        assert httpx2.get(f"{served.url}/health").status_code == 200
        for one in idle[:5]:
            assert rest(one) == b""
        idle[-1].sendall(GET[8:] + b"\r\n")
        assert idle[-1].recv(12) == b"HTTP/1.1 200"


def test_where_requests_run_on_all_connections_a_new_one_ends(served, monkeypatch, caplog):
    """It would catch a KeyError in the log for each of them."""
    wait_until(lambda: num_connections(served) == 0)
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 1)
    body = b'{"prompt":"Hello","max_tokens":400,"ignore_eos":true,"stream":true}'
    with connected(served, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body) as one:
        assert one.recv(12) == b"HTTP/1.1 200"
        with connected(served, GET + b"\r\n") as other:
            assert rest(other) == b""
    wait_until(lambda: num_connections(served) == 0)
    served.assert_idle()
    assert not caplog.records


def test_half_a_body_keeps_no_place_from_others(served, monkeypatch):
    """It would catch 4096 half bodies, which nobody else could connect beside for a minute."""
    wait_until(lambda: num_connections(served) == 0)
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 3)
    half = POST + b"Content-Length: 50\r\n\r\n{"
    with contextlib.ExitStack() as stack:
        halves = [stack.enter_context(connected(served, half)) for _ in range(8)]
        assert httpx2.get(f"{served.url}/health").status_code == 200
        for one in halves[:5]:
            assert rest(one) == b""
    wait_until(lambda: num_connections(served) == 0)


def test_who_does_not_read_the_answer_is_let_go(served, monkeypatch):
    monkeypatch.setattr(connection, "WRITE_SECONDS", SHORT)
    with connected(served) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end = time.monotonic() + 30
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                one.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
                time.sleep(0.005)
    wait_until(lambda: num_connections(served) == 0)


def test_what_is_no_http_does_not_land_within_an_answer(served):
    body = b'{"prompt":"Hello","max_tokens":60,"ignore_eos":true}'
    with connected(
        served, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"NONSENSE\r\n\r\n"
    ) as one:
        assert b"400" not in rest(one)
    served.assert_idle()
