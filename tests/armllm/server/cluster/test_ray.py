"""Replicas and stages on a Ray cluster of two nodes: they come back, move, and give one process's tokens."""

from __future__ import annotations

import contextlib
import signal
import socket
import time

import httpx2
import psutil
import pytest

from armllm.server.cluster.host import Host

DEADLINE = 180.0  # seconds, for a machine that does other work; each step takes some seconds
QUICK = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
QUICK |= {"health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
QUICK |= {"agent_register_timeout_ms": 100_000, "worker_niceness": 0}
PROMPT = {"prompt": "A wheel", "temperature": 0, "max_tokens": 24}

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray leaves sockets and processes open


def node():
    """One CPU, and ports for Ray's helpers: a node that has to ask them gives up on a busy machine."""
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
    return {"num_cpus": 1, **dict(zip(names, Host().ports("127.0.0.1", 3), strict=True))}


@pytest.fixture(scope="module")
def cluster():
    """A head with one CPU, and a second node with one."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - only the slow tests need it

    head = {**node(), "include_dashboard": False, "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.second = cluster.add_node(**node())
    yield cluster
    cluster.shutdown()


@pytest.fixture
def serve(cluster, folder, start):
    """serve(*arguments): a server on the cluster that answers, and its replicas' processes."""

    def begin(*arguments):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        line = (folder, "--dtype=float32", "--served-model-name=smoke", *arguments)
        server = start(
            *line, "--distributed-executor-backend=ray", f"--port={port}", RAY_ADDRESS=cluster.address
        )
        server.base = f"http://127.0.0.1:{port}"
        try:
            wait_until(lambda: server.popen.poll() is not None or up(server) is not None)
        finally:
            print(server.stderr)
        assert server.popen.poll() is None, server.stderr
        return server

    return begin


def wait_until(condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def up(server):
    """How many replicas get requests; None if the server does not listen."""
    with contextlib.suppress(httpx2.TransportError):
        page = httpx2.get(f"{server.base}/metrics", timeout=10).text
        lines = [line for line in page.splitlines() if line.startswith("armllm:router_replica_up{")]
        return sum(line.endswith(" 1.0") for line in lines)
    return None


def answer(server):
    response = httpx2.post(f"{server.base}/v1/completions", json=PROMPT, timeout=DEADLINE)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def actors():
    return [
        one for one in psutil.process_iter(["cmdline"]) if "ray::Host" in " ".join(one.info["cmdline"] or [])
    ]


def replicas():
    """The processes of replicas and stages."""
    found = []
    for one in actors():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += one.children()
    return found


def test_replicas_come_back_and_follow_the_nodes(cluster, serve):
    server = serve()
    wait_until(lambda: up(server) == 2)
    text = answer(server)
    old = actors()
    assert len(old) == len(replicas()) == 2

    old[0].kill()
    assert [answer(server) for _ in range(4)] == [text] * 4, "the other replica did not answer"
    wait_until(lambda: up(server) == 2 and len(replicas()) == 2 and old[0] not in actors())

    cluster.remove_node(cluster.second, allow_graceful=False)
    began = time.monotonic()
    assert [answer(server) for _ in range(4)] == [text] * 4, "the node that is left did not answer"
    wait_until(lambda: "has left the cluster" in server.stderr)
    assert time.monotonic() - began < 30, "Ray has not noticed it; by default that takes 40 s"
    wait_until(lambda: len(replicas()) == 1)

    cluster.second = cluster.add_node(**node())
    wait_until(lambda: up(server) == 2)
    assert answer(server) == text
    everybody = replicas()
    server.popen.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert not psutil.wait_procs(everybody, 10)[1], "a replica outlived its server"


def test_stages_on_two_nodes_give_the_tokens_of_one_process(cluster, serve, start, folder):
    staged = serve("-pp", "2")
    assert up(staged) == 1
    assert len(replicas()) == 2
    text = answer(staged)
    actors()[0].kill()
    wait_until(lambda: len(replicas()) == 2 and up(staged) == 1)
    assert answer(staged) == text
    everybody = actors() + replicas()
    assert len(everybody) == 4
    staged.popen.kill()
    assert not psutil.wait_procs(everybody, DEADLINE)[1], "a stage outlived its server, which was killed"

    single = start(folder, "--dtype=float32", "--served-model-name=smoke")
    single.base = single.wait_ready()
    assert answer(single) == text
