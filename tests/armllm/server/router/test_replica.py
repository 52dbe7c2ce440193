"""Who is asked: balance, conversations that stay where their prefix is, replicas that die and come back."""

from __future__ import annotations

import asyncio
import json
import random

import httpx2
import pytest
from tests.armllm.server.router.conftest import METRICS, Replica, begin_events, chunk, until
from tests.armllm.server.router.test_forward import hang, in_loop

from armllm.errors import RequestError
from armllm.server.router.prefixes import PrefixTable, read_prompt
from armllm.server.router.replica import HealthChecks, Load, Replicas, cache_blocks
from armllm.server.router.upstream import Address, UnreachableError, within

CHAT = "/v1/chat/completions"


def well(count, policy="cache_aware"):
    replicas = Replicas([Address.of(f"http://127.0.0.1:{1 + index}") for index in range(count)], policy)
    for replica in replicas.all:
        replica.well = True
    return replicas


def conversation(messages, **fields):
    return read_prompt(CHAT, json.dumps({"messages": messages, **fields}).encode())


def simulate(policy, conversations=12, turns=6, seed=0):
    """Tokens that 3 replicas compute, if conversations take turns in a random order; and each one's share."""
    replicas, rng = well(3, policy), random.Random(seed)  # noqa: S311
    texts = [[{"role": "user", "content": rng.randbytes(600).hex()}] for _ in range(conversations)]
    shares = dict.fromkeys(replicas.all, 0.0)
    order = [index for index in range(conversations) for _ in range(turns)]
    rng.shuffle(order)
    for index in order:
        prompt = conversation(texts[index], max_tokens=16)
        replica = replicas.choose(prompt)
        shares[replica] += replica.prefixes.uncached(prompt)
        Load(replica, prompt).end()
        texts[index] += [{"role": "assistant", "content": "x" * 80}, {"role": "user", "content": "y" * 80}]
    return list(shares.values())


def test_conversations_stay_where_their_beginning_is_and_are_spread():
    aware, blind = simulate("cache_aware"), simulate("round_robin")
    assert sum(aware) < 0.6 * sum(blind)
    assert max(aware) < 2.5 * sum(aware) / 3


def test_a_hot_prefix_is_computed_where_it_is_until_that_replica_has_more_to_do():
    replicas = well(2)
    prompts = [conversation([{"role": "system", "content": "s" * 8000}, {"role": "user", "content": str(n)}])
               for n in range(40)]  # fmt: skip
    Load(replicas.all[1], prompts[0]).end()
    assert all(replicas.choose(prompt) is replicas.all[1] for prompt in prompts)
    loads = [Load(replicas.choose(prompt), prompt) for prompt in prompts]
    running = [replica.num_running for replica in replicas.all]
    assert min(running) > 10, running
    for load in loads:
        load.begun()
        load.end()
    assert [replica.outstanding for replica in replicas.all] == [0, 0]


def test_without_common_beginnings_the_load_is_even():
    replicas = well(4)
    for number in range(64):
        prompt = conversation([{"role": "user", "content": f"{number}" * 300}])
        Load(replicas.choose(prompt), prompt)
    assert [replica.num_running for replica in replicas.all] == [16] * 4
    assert replicas.choose(prompt, replicas.all) is None


@pytest.mark.parametrize(
    ("body", "tokens", "chains"),
    [
        ({"prompt": "x" * 1024}, 256, [4]),
        ({"prompt": [1] * 400, "max_tokens": 7}, 400, [3]),
        ({"prompt": ["x" * 512, "y" * 300]}, 203, [2, 1]),
        ({"prompt": [[1] * 400, [2] * 400]}, 800, [3, 3]),
        ({"input": "x" * 100}, 25, [0]),
        ({"prompt": 7}, 0, []),
        ({}, 0, []),
    ],
)
def test_prompts_are_found_in_bodies(body, tokens, chains):
    prompt = read_prompt("/v1/completions", json.dumps(body).encode())
    assert prompt.tokens == tokens
    assert [len(chain) for chain in prompt.chains] == chains
    assert prompt.output == body.get("max_tokens", 512)
    table = PrefixTable()
    table.add(prompt)
    assert table.uncached(prompt) <= prompt.tokens / 4 or tokens < 100


@pytest.mark.parametrize(
    "body", [b"", b"x" * 400, b"[1]", b'{"prompt": "\\ud800"}', b"[" * 5000, b"\xff" * 9]
)
def test_a_body_that_is_no_object_counts_by_its_size(body):
    assert read_prompt("/v1/completions", body).tokens == pytest.approx(len(body) / 4)


def test_fields_beside_the_prompt_do_not_change_what_it_begins_with():
    messages = [{"role": "user", "content": "x" * 900}]
    table = PrefixTable()
    table.add(conversation(messages, seed=1, user="a"))
    assert table.uncached(conversation(messages, user="b", temperature=0.5)) < 64
    assert table.uncached(conversation(messages, tools=[{"type": "function"}])) > 200


def test_the_table_is_bounded_and_forgets_ends_first():
    table = PrefixTable()
    table.set_capacity(8 * 64)
    first, second = (read_prompt("", json.dumps({"prompt": letter * 256 * 6}).encode()) for letter in "ab")
    table.add(first)
    table.add(second)
    assert len(table) == 8
    assert table.uncached(second) == 0
    assert table.uncached(first) == first.tokens * 4 / 6


def test_a_replica_tells_how_much_its_cache_holds():
    assert cache_blocks((METRICS % 1).encode()) == (1000, 16)
    assert cache_blocks(b"") is None


BAD_URLS = ("", "host:8000", "ftp://x", "http://", "http://x:99999", "http://x/?q", "unix:", "http://a@b")


@pytest.mark.parametrize("url", [*BAD_URLS, "http://x\r\ny"])
def test_bad_urls_are_refused_by_name(url):
    with pytest.raises(RequestError, match="URL"):
        Address.of(url)


@in_loop
async def test_a_replica_that_dies_under_64_clients_loses_nothing_that_had_not_begun(cluster):
    async def slow_stream(_request, writer):
        await asyncio.sleep(random.random() / 10)  # noqa: S311
        begin_events(writer)
        for number in range(5):
            chunk(writer, b"data: %d\n\n" % number)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")

    async with cluster(Replica(slow_stream), Replica(slow_stream)) as one:
        results = []

        async def client(number):
            for turn in range(1):
                answer = await one.complete(f"{number} {turn}", stream=True)
                results.append((answer.status_code, answer.content))

        clients = [asyncio.ensure_future(client(number)) for number in range(64)]
        await until(lambda: len(one.fakes[0].requests) > 20)
        await one.fakes[0].kill()
        await until(lambda: len(one.replicas.well) == 1)
        await one.fakes[0].start()  # on the same port
        await until(lambda: len(one.replicas.well) == 2)
        before = len(one.fakes[0].requests)
        await asyncio.gather(*clients)
        await asyncio.gather(*(one.complete(f"{number}") for number in range(8)))
        assert len(one.fakes[0].requests) > before, "it came back, and got no request"
        assert {status for status, _ in results} == {200}
        assert len(results) == 64
        whole = b"".join(b"data: %d\n\n" % number for number in range(5))
        cut = [content for _, content in results if content != whole]
        assert all(content.endswith(b"data: [DONE]\n\n") and b"replica_lost" in content for content in cut)
        assert len(cut) < 64


@in_loop
async def test_who_accepts_and_never_answers_is_out_and_its_requests_are_asked_of_others(cluster):
    async def half(_request, writer):
        begin_events(writer)
        chunk(writer, b"data: 1\n\n")
        await asyncio.sleep(60)

    async with cluster(Replica(half), Replica(), checks=HealthChecks(0.1, 0.5, 2, 0.3)) as one:
        begun = asyncio.ensure_future(one.complete("begun"))
        await until(lambda: one.fakes[0].requests)
        one.fakes[0].answer = hang
        waiting = asyncio.ensure_future(one.complete("x" * 8000))
        one.replicas.all[1].outstanding += 1e6  # so that the first one is asked
        await until(lambda: len(one.fakes[0].requests) > 1 or waiting.done())
        one.replicas.all[1].outstanding -= 1e6
        one.fakes[0].hung = True
        answer = await waiting
        assert (answer.status_code, answer.json()["port"]) == (200, one.fakes[1].port)
        assert b"replica_lost" in (await begun).content
        assert [replica.well for replica in one.replicas.all] == [False, True]
        one.fakes[0].hung = False
        await until(lambda: one.replicas.all[0].well)


@in_loop
async def test_health_is_that_of_the_best_replica(cluster):
    async with cluster() as one:
        assert (await one.client.get("/health")).status_code == 200
        one.fakes[0].health = 503
        await until(lambda: len(one.replicas.well) == 1)
        assert (await one.client.get("/health")).status_code == 200
        one.fakes[1].health = 500
        await until(lambda: not one.replicas.well)
        assert (await one.client.get("/health")).status_code == 503
        answer = await one.complete()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
        one.fakes[0].health = 200
        await until(lambda: one.replicas.well)
        assert (await one.client.get("/load")).json() == {"server_load": 0}


@in_loop
async def test_metrics_of_all_replicas_are_one_page(cluster):
    async with cluster() as one:
        page = (await one.client.get("/metrics")).text
        for index, fake in enumerate(one.fakes):
            labels = f'engine="{index}",model_name="a\\"b"'
            assert f"vllm:prompt_tokens_total{{{labels}}} {fake.port}.0" in page
            assert f'vllm:e2e_request_latency_seconds_bucket{{engine="{index}",le="+Inf"}} 3.0' in page
            assert f'armllm:router_replica_up{{engine="{index}",url="{fake.url}"}} 1.0' in page
        assert page.count("# TYPE vllm:prompt_tokens_total counter") == 1
        assert one.replicas.all[0].prefixes.capacity == 16000 * 4 // 256
        await one.fakes[1].kill()
        await until(lambda: len(one.replicas.well) == 1)
        page = (await one.client.get("/metrics")).text
        assert 'vllm:prompt_tokens_total{engine="1"' not in page
        assert 'armllm:router_replica_up{engine="1"' in page


@in_loop
async def test_a_check_that_fails_while_it_is_cancelled_logs_nothing(monkeypatch):
    """A replica that could not load left a traceback of the other one's health check."""
    (replica,) = well(1).all
    asked = asyncio.Event()

    async def ask(*_):
        asked.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise UnreachableError("Connection refused") from None

    monkeypatch.setattr(replica.pool, "ask", ask)
    check = asyncio.ensure_future(replica.get("/health", 5.0))
    await asked.wait()
    (asking,) = asyncio.all_tasks() - {asyncio.current_task(), check}
    check.cancel()
    await asyncio.wait({check})
    assert check.cancelled()
    assert not asking._log_traceback, "asyncio would log it when it is collected as garbage"
    assert isinstance(asking.exception(), UnreachableError)


@in_loop
async def test_who_is_cancelled_as_its_work_ends_is_cancelled():
    """The watch over a replica went on, and the router did not stop."""
    work = asyncio.get_running_loop().create_future()
    waits = asyncio.ensure_future(within(5.0, work))
    await asyncio.sleep(0)
    work.set_result(1)
    waits.cancel()
    await asyncio.wait({waits})
    assert waits.cancelled()


@in_loop
async def test_a_connection_that_opens_as_its_caller_is_cancelled_is_closed(monkeypatch):
    closed = asyncio.Event()

    async def serve(reader, writer):
        assert await reader.read() == b""
        writer.close()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = Address.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    opened = await asyncio.open_connection(address.host, address.port)
    given = asyncio.get_running_loop().create_future()

    async def give(*_, **__):
        return await given

    monkeypatch.setattr(asyncio, "open_connection", give)
    caller = asyncio.ensure_future(address.connect())
    await asyncio.sleep(0.01)
    given.set_result(opened)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    await asyncio.wait_for(closed.wait(), 30)
    server.close()


@in_loop
async def test_a_connection_that_waited_may_be_closed_by_the_replica(cluster):
    async with cluster(Replica()) as one:
        for _ in range(5):
            for writer in list(one.fakes[0]._writers):
                writer.transport.abort()
            assert (await one.complete()).status_code == 200


def test_health_checks_are_quick_enough_by_default():
    checks = HealthChecks()
    assert checks.failures * (checks.timeout + checks.interval) <= 12


@in_loop
async def test_round_robin_takes_turns(cluster):
    async with cluster(policy="round_robin") as one:
        ports = [(await one.complete()).json()["port"] for _ in range(6)]
        assert ports == ports[:2] * 3
        assert ports[0] != ports[1]
        assert isinstance(one.client, httpx2.AsyncClient)
