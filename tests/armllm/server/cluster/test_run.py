"""Replicas that come and go with the machines of a cluster, which is played here: there is no Ray in it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket

import httpx2
import pytest
from tests.armllm.server.router.conftest import CHECKS, Replica, until
from tests.armllm.server.router.test_forward import in_loop

from armllm.cli import main
from armllm.server.cluster import group, run
from armllm.server.cluster.control import LostError, Node
from armllm.server.cluster.group import Command
from armllm.server.cluster.run import ClusterServer, Fleet
from armllm.server.router import local
from armllm.server.router.replica import Replicas
from armllm.server.router.run import Router, RouterOptions

BIG, SMALL = Node("a", "127.0.0.1", 8), Node("b", "127.0.0.1", 4)


class Actor:
    """Plays a `Host`: its process is a server of this event loop, or a status of ``control.ends``."""

    def __init__(self, control, node):
        self.control, self.node, self.fake, self.serving = control, node, None, None
        self.line = []
        self.runs = concurrent.futures.Future()

    def call(self, name, *arguments):
        if name == "ports":
            ports = concurrent.futures.Future()
            with contextlib.ExitStack() as stack:
                free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
                ports.set_result([one.getsockname()[1] for one in free])
            return ports
        if name == "run":
            self.line = arguments[0]
            if self.node.id in self.control.ends:
                self.runs.set_result(self.control.ends[self.node.id])
            elif "--headless" not in self.line:
                self.serving = asyncio.run_coroutine_threadsafe(self.serve(), self.control.loop)
        elif not self.runs.done():
            self.runs.set_result(0)
        return self.runs

    async def serve(self):
        self.fake = Replica()
        self.fake.port = int(self.line[-1].partition("--port=")[2])
        await self.fake.start()

    def kill(self):
        if not self.runs.done():  # else it was killed before, or the loop may have ended
            if self.fake is not None:
                asyncio.run_coroutine_threadsafe(self.fake.kill(), self.control.loop)
            self.runs.set_exception(LostError("killed"))


class Control:
    """Plays `RayControl`."""

    def __init__(self, *nodes):
        self.loop = asyncio.get_running_loop()
        self.alive = list(nodes)
        self.actors = []
        self.ends = {}
        self.broken = False

    def nodes(self):
        if self.broken:
            raise RuntimeError("no answer of the head")
        return sorted(self.alive)

    def start(self, node):
        self.actors.append(Actor(self, node))
        return self.actors[-1]

    def wait(self, calls, count, seconds=None):
        found = (
            concurrent.futures.ALL_COMPLETED if count == len(calls) else concurrent.futures.FIRST_COMPLETED
        )
        done = concurrent.futures.wait(calls, seconds, found).done
        return [call for call in calls if call in done]

    def result(self, call):
        return call.result()


class Cluster:
    """A `ClusterServer` of such machines in this event loop."""

    def __init__(self, control, size=None, stages=1):
        replicas = Replicas([], checks=CHECKS)
        options = RouterOptions(log_level="warning")
        self.control, self.replicas = control, replicas
        self.fleet = Fleet(replicas, control, Command(["serve", "model"], {}, "/"), size, stages)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = ClusterServer(Router(replicas, options), options, self.url, self.fleet)

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self.server.serve(sockets=[self.socket]))
        self.client = httpx2.AsyncClient(base_url=self.url, timeout=30)
        return self

    async def __aexit__(self, *_):
        await self.client.aclose()
        self.server.should_exit = True
        await self.task
        self.socket.close()
        for actor in self.control.actors:
            actor.kill()
        for actor in self.control.actors:
            if actor.serving is not None:  # it may have been killed before it listened
                await asyncio.wrap_future(actor.serving)
                await actor.fake.kill()

    async def well(self, count):
        await until(lambda: self.server.started and len(self.replicas.well) == count)

    async def statuses(self, count=4):
        return [(await self.client.get("/v1/models")).status_code for _ in range(count)]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(run, "ASK_EVERY", 0.02)
    monkeypatch.setattr(local, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(group, "SAY_SECONDS", 0.2)


@in_loop
async def test_each_machine_has_a_replica_also_one_that_comes_later():
    async with Cluster(Control(BIG)) as one:
        await one.well(1)
        one.control.alive.append(SMALL)
        await one.well(2)
        assert [actor.node for actor in one.control.actors] == [BIG, SMALL]
        assert one.control.actors[1].line[:-1] == ["serve", "model", "--host=127.0.0.1"]
        assert {replica.name for replica in one.replicas.all} == {"0", "1"}


@in_loop
async def test_no_more_replicas_than_asked_for():
    async with Cluster(Control(BIG, SMALL), size=1) as one:
        await one.well(1)
        await asyncio.sleep(0.2)
        assert len(one.control.actors) == 1


@in_loop
async def test_an_actor_that_was_killed_is_started_again_at_the_same_machine():
    async with Cluster(Control(BIG, SMALL)) as one:
        await one.well(2)
        one.control.actors[0].kill()
        assert await one.statuses() == [200] * 4
        await until(lambda: len(one.control.actors) == 3)
        await one.well(2)
        assert one.control.actors[2].node == one.control.actors[0].node
        assert await one.statuses() == [200] * 4


@in_loop
async def test_a_machine_that_leaves_takes_its_replica_along():
    async with Cluster(Control(BIG, SMALL)) as one:
        await one.well(2)
        (gone,) = [actor for actor in one.control.actors if actor.node == SMALL]
        gone.fake.hung = True  # its machine says nothing any more, no refusal either
        asking = asyncio.ensure_future(one.statuses())
        one.control.alive.remove(SMALL)
        assert await asyncio.wait_for(asking, 30) == [200] * 4, "requests waited for the machine"
        await until(lambda: len(one.replicas.all) == 1)
        assert len(one.control.actors) == 2


@in_loop
async def test_stages_share_the_machines_and_end_together():
    nodes = [Node(letter, "127.0.0.1", 2) for letter in "abc"]
    async with Cluster(Control(*nodes), stages=2) as one:
        await one.well(1)
        first, second = one.control.actors
        assert [actor.node for actor in one.control.actors] == nodes[:2]
        port = first.line[-3].partition("--master-port=")[2]
        stages = ["serve", "model", "--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1"]
        assert second.line == [*stages, f"--master-port={port}", "--headless"]
        second.kill()
        await until(lambda: len(one.control.actors) == 4)
        assert first.runs.done()
        await one.well(1)
        one.control.alive.remove(nodes[0])
        await until(lambda: len(one.control.actors) >= 6 and one.control.actors[-1].node == nodes[2])
        await one.well(1)
        assert await one.statuses() == [200] * 4


@in_loop
async def test_what_no_machine_can_load_ends_the_server_with_its_status():
    control = Control(BIG, SMALL)
    control.ends = {"a": 2, "b": 2}
    async with Cluster(control) as one:
        await one.task
        assert one.server.status == 2
        assert not one.server.started


@in_loop
async def test_a_machine_that_can_not_load_leaves_the_others_alone():
    control = Control(BIG, SMALL)
    control.ends = {"a": 3}
    async with Cluster(control) as one:
        await one.well(1)
        assert await one.statuses() == [200] * 4
        assert [actor.node.id for actor in control.actors].count("a") == 1


@in_loop
async def test_a_cluster_that_does_not_answer_ends_the_server():
    control = Control(BIG)
    async with Cluster(control) as one:
        await one.well(1)
        control.broken = True
        await one.task
        assert one.server.status == local.ENGINE_FAILED


def test_ray_gets_the_flags_of_the_user(monkeypatch):
    seen = []
    monkeypatch.setattr("armllm.server.cluster.run.serve_on_cluster", lambda *one: seen.append(one) or 0)
    line = "serve folder --distributed-executor-backend ray -pp 2 --port 0 --dtype=float32 --api-key A"
    assert main(line.split()) == 0
    ((arguments, size, stages, options),) = seen
    assert (size, stages, options.port, options.api_keys) == (None, 2, 0, ("A",))
    flags = ["--disable-uvicorn-access-log", "--pipeline-parallel-size=2", "--dtype=float32", "--api-key=A"]
    assert arguments[:2] == ["serve", "folder"]
    assert sorted(arguments[2:]) == sorted(flags)
    assert main([*line.split(), "-dp", "1"]) == 0
    assert seen[1][1] == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--headless"], "does not take --headless"),
        (["--nnodes", "2"], "does not take --nnodes"),
        (["--master-addr", "10.0.0.1"], "does not take --master-addr"),
        (["--distributed-executor-backend", "florp"], "must be mp or uni or ray, not florp"),
    ],
)
def test_flags_that_contradict_are_refused(capsys, flags, words):
    assert main(["serve", "folder", "--distributed-executor-backend", "ray", *flags]) == 2
    assert words in capsys.readouterr().err


def test_stages_have_the_key_of_the_user_or_a_new_one(monkeypatch):
    monkeypatch.delenv("ARMLLM_NODES_KEY", raising=False)
    keys = {Command.here([], "10.0.0.1").environment["ARMLLM_NODES_KEY"] for _ in range(2)}
    assert len(keys) == 2
    monkeypatch.setenv("ARMLLM_NODES_KEY", "of the user")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    environment = Command.here([], "10.0.0.1").environment
    assert environment["ARMLLM_NODES_KEY"] == "of the user"
    assert environment["FORWARDED_ALLOW_IPS"] == "10.0.0.1"
    assert "OMP_NUM_THREADS" not in environment, "each machine has its own number of CPUs"


def test_an_address_of_ip_6_is_one_of_urls():
    node = Node("a", "::1", 1)
    line = Command(["serve", "model"], {}, "/").of_stage([node], 0, 80, 0)
    assert line[-2:] == ["--host=::1", "--port=80"]
