"""A router between hostile clients and hostile replicas: it stays well, and its memory stays bounded."""

from __future__ import annotations

import asyncio
import gzip
import resource
import socket
import struct
import time

import httpx2
import pytest
from tests.armllm.server.router.conftest import Replica, begin_events, chunk, respond, until
from tests.armllm.server.router.test_forward import in_loop

from armllm.server.router import prefixes
from armllm.server.router.replica import HealthChecks

MEMORY = 100  # MB that a hostile answer or request may add


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def without_end(start, piece, most=400 << 20):
    """An answer that begins so and goes on; more than ``most`` bytes of it nobody reads."""

    async def answer(_request, writer):
        writer.write(start)
        sent = 0
        while sent < most:
            writer.write(piece)
            sent += len(piece)
            await writer.drain()
        raise AssertionError("it was all read")

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
ENDLESS = {
    "a status line": (b"HTTP/1.1 200 ", b"O" * 60000),
    "headers": (OK, b"x-a: b\r\n" * 5000),
    "a header's name": (OK, b"x" * 60000),
    "a header's value": (OK + b"x: ", b"x" * 60000),
    "heads before the head": (b"", b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n" * 1000),
    "a chunk's extension": (CHUNKED + b"1;", b"x" * 60000),
    "trailers": (CHUNKED + b"1\r\na\r\n0\r\n", b"x-a: b\r\n" * 5000),
    "a trailer's value": (CHUNKED + b"1\r\na\r\n0\r\nx: ", b"x" * 60000),
}


@pytest.mark.parametrize("kind", ENDLESS)
@in_loop
async def test_what_never_ends_of_an_answer_is_cut(cluster, kind):
    async with cluster(Replica(without_end(*ENDLESS[kind]))) as one:
        before, began = peak(), time.process_time()
        try:
            answer = await asyncio.wait_for(one.complete(), 20)
            assert answer.status_code == 502, answer
            assert len(answer.text) < 1000
        except httpx2.RemoteProtocolError:  # it had begun
            assert "chunk" in kind or "trailer" in kind
        assert peak() - before < MEMORY
        assert time.process_time() - began < 5
        assert (await one.client.get("/load")).json() == {"server_load": 0}


@in_loop
async def test_an_event_without_an_end_in_small_pieces_costs_no_more_than_its_bytes(cluster):
    async def answer(_request, writer):
        begin_events(writer)
        for _ in range(3000):
            chunk(writer, b"data" * 250)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with cluster(Replica(answer)) as one:
        began = time.process_time()
        assert len((await one.complete()).content) == 3_000_000
        assert time.process_time() - began < 5


@pytest.mark.parametrize("status", [0, 99, 299, 599, 600, 999])
@in_loop
async def test_a_status_that_nobody_knows(cluster, status):
    async def answer(_request, writer):
        writer.write(b"HTTP/1.1 %03d X\r\ncontent-length: 2\r\n\r\n{}" % status)

    async with cluster(Replica(answer)) as one:
        answered = await one.complete()
        assert answered.status_code in (status, 502), answered.text


@in_loop
async def test_chunks_that_come_together_go_on_together(cluster):
    """Each was an event of two bytes to send: 200,000 of them took seconds."""

    async def answer(_request, writer):
        begin_events(writer)
        writer.write(b"1\r\n\n\r\n" * 50_000 + b"0\r\n\r\n")

    async with cluster(Replica(answer)) as one:
        replica = one.replicas.all[0]
        answered = await replica.pool.ask("GET", replica.head("GET", b"/", [], 0), b"")
        pieces = [piece async for piece in answered.pieces()]
        answered.close()
    assert b"".join(pieces) == b"\n" * 50_000
    assert len(pieces) < 1000


METRICS = [
    b"\xff\xfe",
    b"{",
    b"}",
    b"a{b=",
    b'a{b="',
    b"a 1 2 3 4",
    b"# TYPE",
    b"# TYPE a nonsense\na 1",
    b"# HELP \\",
    b'vllm:cache_config_info{block_size="16"} 1',
    b'vllm:cache_config_info{num_gpu_blocks="x",block_size="1"} 1',
    b'vllm:cache_config_info{num_gpu_blocks="-5",block_size="0"} 1',
    b"vllm:cache_config_info 1",
    b'vllm:cache_config_info{num_gpu_blocks="' + b"9" * 5000 + b'",block_size="1"} 1',
    b"a nan",
    b"a{} 1e999",
    b"\x00 1",
    b'a{"b" 1',
    b'{"a.b"} 1',
    b"# TYPE a histogram\na_bucket 1",
    b"a{b='c'} 1",
    b"a{,} 1",
    b" \n \n",
    b'a{b="' + b"\\" * 999 + b'"} 1',
    b"# EOF\na 1",
    b"a{a" * 1000,
    b"a 1 inf",
    b"a 1 nan",
    b"a 1 1e300",
    b"a{" + b'a="b",' * 300_000 + b'c="d"} 1',
    b"a 1\n" * 500_000,
    b"a 1\n" * (1 << 20),
]


@pytest.mark.parametrize("page", METRICS, ids=lambda page: repr(page)[2:30])
@in_loop
async def test_metrics_that_are_none(cluster, page):
    class Odd(Replica):
        async def _serve(self, reader, writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                respond(writer, 200, page if b" /metrics " in head else b"{}")

    before, began = peak(), time.process_time()
    async with cluster(Odd(), Replica()) as one:
        assert len(list(one.replicas.well)) == 2
        for _ in range(2):
            text = (await one.client.get("/metrics")).raise_for_status().text
            assert 'armllm:router_replica_up{engine="1"' in text
        assert not any(task.done() for task in one.replicas._watchers.values())
    assert peak() - before < MEMORY
    assert time.process_time() - began < 5


class Metrics(Replica):
    """Answers /metrics as it is told, and everything else at once."""

    async def _serve(self, reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            if b" /metrics " in head:
                await self.answer(head, writer)
            else:
                respond(writer, 200, b"{}")


@in_loop
async def test_a_gigabyte_of_metrics_is_not_read(cluster):
    """Nor is it waited for: the replica answers requests, and the others' metrics are there."""
    page = without_end(CHUNKED, b"10000\r\n%s\r\n" % (b"#" * 0x10000), most=1 << 30)
    unread = 0

    async def answer(head, writer):
        nonlocal unread
        with pytest.raises(ConnectionError):
            await page(head, writer)
        unread += 1

    before = peak()
    async with cluster(Metrics(answer), Replica()) as one:
        assert [replica.well for replica in one.replicas.all] == [True, True]
        text = (await one.client.get("/metrics")).raise_for_status().text
        assert 'vllm:prompt_tokens_total{engine="1"' in text
        await until(lambda: unread == 2)
        assert [(await one.complete()).status_code for _ in range(2)] == [200, 200]
    assert peak() - before < MEMORY


@in_loop
async def test_metrics_in_small_pieces_cost_no_more_than_their_bytes(cluster):
    async def answer(_head, writer):
        writer.write(CHUNKED)
        for _ in range(50):
            writer.write(b"1\r\n#\r\n" * 10_000)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with cluster(Metrics(answer)) as one:
        began = time.process_time()
        _, body = await one.replicas.all[0].get("/metrics", 60, 1 << 20)
        assert len(body) == 500_000
        assert time.process_time() - began < 5


@in_loop
async def test_a_stream_that_is_reset_ends_with_an_error_event(cluster):
    """It would catch a reset that is no end for the router, and one that looks like the answer's."""

    async def reset(_request, writer):
        begin_events(writer)
        chunk(writer, b"data: 1\n\ndata: half")
        await writer.drain()
        await asyncio.sleep(0.1)  # what has come is sent on
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with cluster(Replica(reset)) as one:
        events = (await asyncio.wait_for(one.complete(stream=True), 20)).content.split(b"\n\n")
        assert events[0] == b"data: 1"
        assert b'"replica_lost"' in events[1]
        assert events[2:] == [b"data: [DONE]", b""]
        assert (await one.client.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@in_loop
async def test_a_replica_leads_no_client_elsewhere(cluster, status):
    async def answer(_request, writer):
        respond(writer, status, b"", (("location", "http://192.0.2.1/v1/completions"),))

    async with cluster(Replica(answer)) as one:
        answered = await one.complete()
        assert (answered.status_code, "location" in answered.headers) == (502, False)
        assert f"leads to another address (status {status})" in answered.text


@in_loop
async def test_what_comes_without_a_question_answers_nobody(cluster):
    """It would catch a replica whose Content-Length is too small: the rest went to the next client."""

    async def answer(_request, writer):
        respond(writer, 200, b"{}")
        await writer.drain()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")

    async with cluster(Replica(answer)) as one:
        for _ in range(3):
            assert (await one.complete()).text == "{}"
            await asyncio.sleep(0.1)


@in_loop
async def test_who_answers_nonsense_again_and_again_is_out_for_a_while(cluster):
    """The quickest answers are wrong ones: the replica that has the least to do would get all requests."""

    async def nonsense(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")

    checks = HealthChecks(interval=0.1, pause=1.0)
    async with cluster(Replica(nonsense), Replica(), checks=checks, policy="round_robin") as one:
        bad, good = one.replicas.all
        for _ in range(10):
            assert (await one.complete()).status_code == 200
        assert (bad.well, bad.num_requests) == (False, checks.malformed)
        assert (good.well, good.num_requests) == (True, 10)
        one.fakes[0].answer = one.fakes[0].echo
        await until(lambda: bad.well)
        for _ in range(4):
            await one.complete()
        assert bad.num_requests > checks.malformed


BEGINNINGS = {
    "a head": (b"HTTP/1.1 200 OK\r\nx: ", b"x"),
    "half a head": (b"HTTP/1.1 200 OK\r\nx: y", b""),
    "half a body": (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", b""),
    "half a chunk": (CHUNKED + b"9\r\nhalf", b""),
}


@pytest.mark.parametrize("kind", BEGINNINGS)
@in_loop
async def test_an_answer_that_begins_goes_on(cluster, kind):
    start, drop = BEGINNINGS[kind]

    async def answer(_request, writer):
        writer.write(start)
        while True:
            writer.write(drop)
            await asyncio.sleep(0.05)

    async with cluster(Replica(answer), checks=HealthChecks(interval=0.1, silent=0.3)) as one:
        began = time.monotonic()
        try:
            answered = await one.complete()
            assert answered.status_code == 502
            assert "did not go on" in answered.text
        except httpx2.RemoteProtocolError:  # it had begun
            assert "head" not in kind
        assert time.monotonic() - began < 10
        assert (await one.client.get("/load")).json() == {"server_load": 0}


@in_loop
async def test_a_stream_may_be_silent_while_its_replica_is_well(cluster):
    async def answer(_request, writer):
        begin_events(writer)
        chunk(writer, b"data: 1\n\n")
        await asyncio.sleep(1)
        chunk(writer, b"data: 2\n\n")
        writer.write(b"0\r\n\r\n")

    async with cluster(Replica(answer), checks=HealthChecks(interval=0.1, silent=0.3)) as one:
        assert (await one.complete()).text == "data: 1\n\ndata: 2\n\n"


@in_loop
async def test_an_event_of_100_mb_passes_in_pieces(cluster):
    async def answer(_request, writer):
        begin_events(writer)
        for _ in range(100):
            chunk(writer, b"x" * (1 << 20))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with cluster(Replica(answer)) as one:
        before, size = peak(), 0
        async with one.client.stream("POST", "/v1/completions", json={"prompt": "A"}) as answered:
            async for piece in answered.aiter_bytes():
                size += len(piece)
        assert size == 100 << 20
        assert peak() - before < MEMORY


@in_loop
async def test_nothing_is_unpacked(cluster):
    bomb = gzip.compress(bytes(10 << 20))

    class Packed(Replica):
        async def _serve(self, reader, writer):
            while await reader.readuntil(b"\r\n\r\n"):
                respond(writer, 200, bomb, (("content-encoding", "gzip"),))

    async with cluster(Packed()) as one:
        assert [replica.well for replica in one.replicas.all] == [True]
        async with one.client.stream("GET", "/v1/models") as answered:
            assert b"".join([piece async for piece in answered.aiter_raw()]) == bomb
        assert (await one.client.get("/metrics")).status_code == 200


def test_a_heading_before_many_texts_costs_no_more_than_the_request():
    """20 MB of tools before 100,000 empty prompts are 2 TB of text for the model, and nothing here."""
    before, began = peak(), time.process_time()
    prompt = prefixes.read_prompt(
        "/v1/completions", b'{"tools":"%s","prompt":[%s""]}' % (b"a" * (20 << 20), b'"",' * 100_000)
    )
    assert prompt.tokens > 100_000 * (20 << 20) / 4
    assert 0 < sum(map(len, prompt.chains)) <= prefixes.MOST_CHUNKS
    assert peak() - before < 300
    assert time.process_time() - began < 5


ODD_BODIES = [
    b"[" * 100_000,
    b'{"prompt":' * 100_000,
    b'{"n":' + b"9" * 5000 + b"}",
    b'{"prompt":[' + b"9" * 4000 + b"]}",
    b'{"prompt":[1e999]}',
    b'{"prompt":NaN}',
    b'{"prompt":"\\ud800"}',
    b'{"prompt":[["\\udc00"]]}',
    b"\xff\xfe{}",
    b'{"tools":' + b"9" * 4299 + b',"prompt":["a"]}',
    b'{"max_tokens":-1,"n":1e400,"prompt":[true,null,{}]}',
    b"{" + b'"prompt":"a",' * 100_000 + b'"prompt":[]}',
    b'{"messages":[{"a":' + b"[" * 190 + b"]" * 190 + b"}]}",
]


@pytest.mark.parametrize("body", ODD_BODIES, ids=lambda body: repr(body[:30])[2:])
@in_loop
async def test_any_body_reaches_a_replica(cluster, body):
    """To refuse it is for the replica, which says why."""
    async with cluster(Replica()) as one:
        answer = await one.client.post("/v1/completions", content=body)
        assert (answer.status_code, len(answer.json()["body"])) == (200, len(body))
