"""Machines find each other, with the same key only; a model over two of them has one process's tokens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import armllm
from armllm import LLM, SamplingParams
from armllm.engine import nodes
from armllm.engine.config import EngineConfig
from armllm.engine.nodes import HELLO, NONCE, join, wait_for_nodes
from armllm.errors import EngineError, RequestError

KEY = "a key for tests, which is long"
MODEL = Path(armllm.__file__).parent / "smoke/model"


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setenv("ARMLLM_NODES_KEY", KEY)
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def config(port, rank=0, count=2):
    return EngineConfig(
        model="x", pipeline_parallel_size=count, nnodes=count, node_rank=rank, master_port=port
    )


def waiting(port, count=2):
    found = []

    def wait():
        try:
            found.append(wait_for_nodes(config(port, count=count)))
        except EngineError as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, found


def test_machines_come_in_any_order_and_each_once(port):
    thread, found = waiting(port, 3)
    second, first = join(config(port, 2, 3)), join(config(port, 1, 3))
    thread.join()
    (ends,) = found
    for rank, (end, other) in enumerate(zip(ends, (first, second), strict=True), 1):
        end.link.send({"rank": rank})
        assert other.receive() == {"rank": rank}
        assert end.address == "127.0.0.1"
        end.link.close()
        other.close()


def test_strangers_are_refused_and_the_others_still_come(port, monkeypatch):
    monkeypatch.setattr(nodes, "PROOF_SECONDS", 0.5)
    thread, found = waiting(port)
    while True:
        try:
            silent = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    with silent, socket.create_connection(("127.0.0.1", port), 20) as guessing:
        guessing.recv(NONCE)
        guessing.sendall(HELLO.pack(1, bytes(NONCE), bytes(32)))
        assert not guessing.recv(1)
    monkeypatch.setenv("ARMLLM_NODES_KEY", KEY + "!")
    with pytest.raises(EngineError, match="refused node 1: it has another ARMLLM_NODES_KEY"):
        join(config(port, 1))
    monkeypatch.setenv("ARMLLM_NODES_KEY", KEY)
    link = join(config(port, 1))
    thread.join()
    link.close()
    found[0][0].link.close()


def test_what_is_missing_is_named(port, monkeypatch):
    monkeypatch.setattr(nodes, "JOIN_SECONDS", 0.3)
    with pytest.raises(EngineError, match=r"node 0 does not listen at 127\.0\.0\.1 port"):
        join(config(port, 1))
    with pytest.raises(EngineError, match=r"node 1, 2 of 3 did not come to 127\.0\.0\.1 port"):
        wait_for_nodes(config(port, count=3))
    monkeypatch.setenv("ARMLLM_NODES_KEY", "short")
    with pytest.raises(RequestError, match="ARMLLM_NODES_KEY must have 16 characters or more"):
        wait_for_nodes(config(port))


def test_options_of_machines(port):
    for options, message in (
        ({"nnodes": 2}, "nnodes 2 needs pipeline_parallel_size 2"),
        ({"nnodes": 2, "pipeline_parallel_size": 4}, "nnodes 2 needs pipeline_parallel_size 2"),
        ({"node_rank": 1}, "node_rank must be from 0 to 0"),
        ({"master_port": 0}, "master_port must be from 1"),
        ({"nnodes": 2, "pipeline_parallel_size": 2, "node_rank": 1}, "with --headless there"),
        ({"nnodes": 2, "pipeline_parallel_size": 2, "master_addr": "192.0.2.1"}, "master_addr 192"),
    ):
        with pytest.raises(RequestError, match=message):
            LLM(MODEL, **options)


def start(port, *arguments, **variables):
    flags = ["-pp=2", "--nnodes=2", "--node-rank=1", f"--master-port={port}", "--headless", *arguments]
    return subprocess.Popen(
        [sys.executable, "-m", "armllm", "serve", str(MODEL), *flags],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )


@pytest.mark.slow
def test_two_machines_have_the_tokens_of_one_process_and_a_killed_one_is_named(port, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    params = SamplingParams(max_tokens=12, temperature=0.8, seed=3, logprobs=1, ignore_eos=True)
    prompts = [[5, 6, 7 + number] for number in range(5)]

    def answers(llm):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [(one.outputs[0].token_ids, one.outputs[0].cumulative_logprob) for one in outputs]

    expected = answers(LLM(MODEL))
    options = {"pipeline_parallel_size": 2, "nnodes": 2, "master_port": port}
    with start(port) as other:
        llm = LLM(MODEL, **options)
        assert answers(llm) == expected
        other.send_signal(signal.SIGKILL)
        with pytest.raises(EngineError, match=r"rank 1 on 127\.0\.0\.1 has gone"):
            llm.generate(prompts * 100, params, use_tqdm=False)
    with start(port) as other:
        llm = LLM(MODEL, **options)
        llm.llm_engine.followers.close()
        assert other.wait(20) == EngineError.status
        assert "machine 0 has gone" in other.stderr.read()
