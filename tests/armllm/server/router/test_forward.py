"""Bytes pass through the router as they are; failures that nobody has seen are mended."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os

import httpx2
import pytest
from tests.armllm.server.router.conftest import Replica, begin_events, chunk, respond, until

from armllm.server import limits
from armllm.server.router import upstream

EVENTS = [b'data: {"n": %d}\n\n' % number for number in range(5)]


def in_loop(test):
    """Run a test in an event loop."""

    @functools.wraps(test)
    def run(*arguments, **options):
        asyncio.run(test(*arguments, **options))

    return run


async def stream(_request, writer):
    begin_events(writer)
    for event in EVENTS:
        chunk(writer, event)
        await asyncio.sleep(0.01)
    writer.write(b"0\r\n\r\n")


async def hang(_request, _writer):
    await asyncio.sleep(60)


async def die(_request, writer):
    writer.transport.abort()


async def cut_stream(_request, writer):
    begin_events(writer)
    chunk(writer, EVENTS[0] + b'data: {"n": half of an eve')
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()


@in_loop
async def test_a_request_and_its_answer_pass_unchanged(cluster):
    async with cluster(Replica()) as one:
        body = b'{"prompt" :  "\\u00e4\xc3\xa4", "prompt": 1.50}'
        sent = {"content-type": "application/json", "authorization": "Bearer K", "x-request-id": "mine"}
        answer = await one.client.post("/a%2Fb/c?x=%20y&x=2", content=body, headers=sent)
        method, path, headers, arrived = one.fakes[0].requests[0]
        assert (method, path, arrived) == ("POST", "/a%2Fb/c?x=%20y&x=2", body)
        assert answer.json()["body"].encode("latin-1") == body
        fields = dict(headers)
        assert fields["authorization"] == "Bearer K"
        assert fields["host"] == one.fakes[0].url.removeprefix("http://")
        assert fields["x-forwarded-for"] == "127.0.0.1"
        assert fields["x-request-id"] == answer.headers["x-request-id"] == "mine"
        assert (await one.client.head("/v1/models")).status_code == 200
        assert (await one.client.get("/v1/models")).json()["path"] == "/v1/models"


@in_loop
async def test_fields_of_one_connection_stay_on_it(cluster):
    async def answer(_request, writer):
        fields = (("Connection", "X-Secret"), ("X-Secret", "1"), ("Keep-Alive", "x"), ("X-Kept", "2"))
        respond(writer, 200, b"{}", fields)

    async with cluster(Replica(answer)) as one:
        sent = {
            "connection": "keep-alive, x-mine",
            "x-mine": "1",
            "te": "trailers",
            "x-forwarded-for": "1.2.3.4",
        }
        got = await one.client.get("/v1/models", headers=sent)
        arrived = {name for name, _ in one.fakes[0].requests[0][2]}
        assert not arrived & {"x-mine", "te", "connection"}
        assert dict(one.fakes[0].requests[0][2])["x-forwarded-for"] == "1.2.3.4"  # a proxy's word
        assert "x-secret" not in got.headers
        assert got.headers["x-kept"] == "2"
        assert got.headers["x-request-id"]


@pytest.mark.parametrize("said", ["192.0.2.7", "127.0.0.2, 192.0.2.7"])
@in_loop
async def test_who_is_no_proxy_is_not_believed_who_it_is(cluster, said):
    """It would catch a stranger with an address of choice, whom no limit of an address would stop."""
    async with cluster(Replica()) as one:
        transport = httpx2.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx2.AsyncClient(transport=transport, base_url=one.url) as stranger:
            await stranger.get("/v1/models", headers={"x-forwarded-for": said})
        (request,) = one.fakes[0].requests
        assert [value for name, value in request[2] if name == "x-forwarded-for"] == ["127.0.0.2"]


@in_loop
async def test_connections_to_a_replica_are_used_again(cluster):
    async with cluster(Replica()) as one:
        for _ in range(5):
            assert (await one.complete()).status_code == 200
        assert len(one.fakes[0]._writers) <= 2  # one for requests, one for the questions to /health


@in_loop
async def test_a_stream_passes_event_by_event(cluster):
    async with cluster(Replica(stream)) as one:
        async with one.client.stream(
            "POST", "/v1/completions", json={"prompt": "A", "stream": True}
        ) as answer:
            pieces = [piece async for piece in answer.aiter_raw()]
        assert b"".join(pieces) == b"".join(EVENTS)
        assert len(pieces) > 1


@in_loop
async def test_an_answer_that_has_not_begun_comes_from_another_replica(cluster):
    async with cluster(Replica(die), Replica()) as one:
        for _ in range(4):
            answer = await one.complete()
            assert answer.json()["port"] == one.fakes[1].port
        assert one.fakes[0].requests
        await one.fakes[0].kill()
        assert (await one.complete()).status_code == 200
        page = (await one.client.get("/metrics")).text
        assert 'armllm:router_replica_up{engine="0"' in page
        assert "armllm:router_retries_total 0.0" not in page


@in_loop
async def test_a_router_that_can_open_no_connection_blames_no_replica(cluster, monkeypatch):
    """With as many connections to replicas as files, all replicas were out, and every client got an error."""

    async def refuse(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with cluster() as one:
        with monkeypatch.context() as patch:
            patch.setattr(upstream.asyncio, "open_connection", refuse)
            for replica in one.replicas.all:
                replica.pool.close()
            answers = [await one.complete() for _ in range(2)]
            assert [answer.status_code for answer in answers] == [503, 503]
            assert answers[0].json()["error"]["code"] == "busy"
            assert [await replica.check() for replica in one.replicas.all] == [True, True]
        assert (await one.complete()).status_code == 200
        monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (limits.RESERVED_FILES + 9, 0))
        assert one.router.limits._most_connections() == 4, "a client needs two files"


@pytest.mark.parametrize("status", [502, 503])
@in_loop
async def test_a_replica_that_is_busy_is_not_the_last_one_asked(cluster, status):
    async def refuse(_request, writer):
        respond(writer, status, b'{"error": "busy"}')

    async with cluster(Replica(refuse), Replica()) as one:
        assert {(await one.complete()).status_code for _ in range(4)} == {200}
    async with cluster(Replica(refuse), Replica(refuse)) as one:
        answer = await one.complete()
        assert (answer.status_code, answer.json()) == (status, {"error": "busy"})
        assert sum(len(fake.requests) for fake in one.fakes) == 2


@in_loop
async def test_status_500_is_passed_on_unless_the_replica_has_failed(cluster):
    async def fail(_request, writer):
        respond(writer, 500, b'{"error": "mine"}')

    async with cluster(Replica(fail), Replica(fail)) as one:
        answer = await one.complete()
        assert (answer.status_code, answer.json()) == (500, {"error": "mine"})
        assert sum(len(fake.requests) for fake in one.fakes) == 1
        one.fakes[0].health = one.fakes[1].health = 503
        one.fakes[1].answer = one.fakes[1].echo
        one.fakes[1].health = 200
        for _ in range(3):
            assert (await one.complete()).status_code == 200


@in_loop
async def test_a_stream_that_is_cut_ends_with_an_error_event(cluster):
    async with cluster(Replica(cut_stream), Replica(cut_stream)) as one:
        answer = await one.complete(stream=True)
        events = answer.content.split(b"\n\n")
        assert events[0] + b"\n\n" == EVENTS[0]
        assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "replica_lost"
        assert events[2:] == [b"data: [DONE]", b""]
        assert sum(len(fake.requests) for fake in one.fakes) == 1, "what has begun is not asked again"
        answer = await one.client.post("/v1/responses", json={"input": "A", "stream": True})
        assert b"event: error\ndata: " in answer.content
        assert "armllm:router_cut_answers_total 2.0" in (await one.client.get("/metrics")).text


@in_loop
async def test_a_document_that_is_cut_is_seen_to_be(cluster):
    async def cut(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async with cluster(Replica(cut)) as one:
        with pytest.raises(httpx2.RemoteProtocolError):
            await one.complete()


@in_loop
async def test_a_client_that_goes_away_ends_its_request(cluster):
    async with cluster(Replica(hang)) as one:
        with pytest.raises(httpx2.ReadTimeout):
            await one.client.post("/v1/completions", json={"prompt": "A"}, timeout=0.2)
        await until(lambda: one.fakes[0].gone == 1)

        async def endless(_request, writer):
            begin_events(writer)
            chunk(writer, EVENTS[0])
            await asyncio.sleep(60)

        one.fakes[0].answer = endless
        async with one.client.stream("POST", "/v1/completions", json={"prompt": "A"}) as answer:
            await anext(answer.aiter_raw())
        await until(lambda: one.fakes[0].gone == 2)


@in_loop
async def test_a_slow_client_holds_its_replica_back_and_no_memory(cluster):
    written = 0

    async def flood(_request, writer):
        nonlocal written
        begin_events(writer)
        for _ in range(300):
            chunk(writer, b"data: " + b"x" * (1 << 16) + b"\n\n")
            written += 1 << 16
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with cluster(Replica(flood)) as one:
        async with one.client.stream("POST", "/v1/completions", json={"prompt": "A"}) as answer:
            pieces = answer.aiter_raw()
            await anext(pieces)
            await asyncio.sleep(0.5)
            assert written < 15 << 20, "19 MiB were taken from the replica for a client that reads nothing"
            size = sum([len(piece) async for piece in pieces])
        assert size > 18 << 20


@in_loop
async def test_hostile_answers_are_errors_of_the_replica(cluster):
    bad = [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * (1 << 17) + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\na",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, gzip\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\na",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1,1\r\n\r\na",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n",
        b"",
    ]

    async def answer(_request, writer):
        writer.write(bad[0])
        await asyncio.sleep(0.01)
        writer.close()

    async with cluster(Replica(answer)) as one:
        while bad:
            assert (await one.complete()).status_code == 502, bad[0]
            bad.pop(0)
            await until(lambda: one.replicas.well)


@in_loop
async def test_answers_that_end_with_the_connection_and_interim_ones(cluster):
    async def old(_request, writer):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nx-old: 1\r\n\r\nwhole")
        await writer.drain()
        writer.close()

    async with cluster(Replica(old)) as one:
        for _ in range(2):
            answer = await one.complete()
            assert (answer.status_code, answer.content, answer.headers["x-old"]) == (200, b"whole", "1")


@in_loop
async def test_hostile_requests_never_reach_a_replica(cluster):
    hostile = [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (1 << 17) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example.org\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: https://evil.example.org\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: b\nc: d\r\n e\r\n\x00\r\n\r\n",
    ]
    async with cluster(Replica()) as one:
        for request in hostile:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(request)
            status = int((await asyncio.wait_for(reader.readline(), 20)).split()[1])
            assert status in (400, 403, 431, 501), request[:60]
            writer.close()
        assert one.fakes[0].requests == []


@in_loop
async def test_a_key_is_asked_for_and_passed_on(cluster):
    async with cluster(Replica(), api_keys=("secret",)) as one:
        assert (await one.complete()).status_code == 401
        assert one.fakes[0].requests == []
        one.client.headers["authorization"] = "Bearer secret"
        assert (await one.complete()).status_code == 200
        assert dict(one.fakes[0].requests[0][2])["authorization"] == "Bearer secret"
        assert (await one.client.get("/health", headers={"authorization": ""})).status_code == 200


@in_loop
async def test_draining_finishes_streams_and_accepts_nothing_more(cluster):
    async with cluster(Replica(stream)) as one:
        async with one.client.stream("POST", "/v1/completions", json={"prompt": "A"}) as answer:
            pieces = answer.aiter_raw()
            got = await anext(pieces)
            one.server.should_exit = True
            got += b"".join([piece async for piece in pieces])
        assert got == b"".join(EVENTS)
        await one.task
        with pytest.raises(httpx2.ConnectError):
            await one.client.get("/health")


@in_loop
async def test_a_proxys_prefix_ends_at_the_router(cluster):
    """It would catch metrics of one replica under the prefix, and replicas that must know it."""
    replica = Replica()
    async with cluster(replica, root_path="/llm") as one:
        assert "armllm:router_retries_total" in (await one.client.get("/llm/metrics")).text
        assert (await one.client.get("/llm/health")).status_code == 200
        assert (await one.client.get("/llm")).headers["location"] == "/llm/"
        for path in ("/llm/v1/models?a=b", "/v1/models?a=b", "/llm/llm/x", "/llmx", "/llm/"):
            assert (await one.client.get(path)).status_code == 200
    assert [path for _, path, _, _ in replica.requests] == [
        "/v1/models?a=b",
        "/v1/models?a=b",
        "/llm/x",
        "/llmx",
        "/",
    ]
