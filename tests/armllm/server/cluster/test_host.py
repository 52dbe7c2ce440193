"""The process of an actor: it runs in the folder that was named, with the variables, until it is to end."""

from __future__ import annotations

import concurrent.futures
import socket
import sys
import time

import pytest

from armllm.server.cluster import host
from armllm.server.cluster.host import Host

SCRIPT = """
import os, sys, time
print(sys.argv[1:], os.getcwd(), os.environ["ARMLLM_TEST"], file=open(sys.argv[-1], "w"))
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def script(monkeypatch):
    monkeypatch.setattr(host, "COMMAND", [sys.executable, "-c", SCRIPT])


@pytest.mark.parametrize("there", [True, False])
def test_the_process_gets_its_arguments_and_ends(tmp_path, there):
    folder, written = tmp_path if there else tmp_path / "elsewhere", tmp_path / "written"
    actor = Host()
    actor.terminate()  # there is none yet
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(actor.run, ["serve", str(written)], {"ARMLLM_TEST": "x y"}, str(folder))
        while not written.exists() or not written.read_text().endswith("\n"):
            time.sleep(0.01)
        actor.terminate()
        assert running.result(30) == -15
    assert "'-', 'serve'" in written.read_text()
    assert written.read_text().endswith(" x y\n")
    assert (f" {tmp_path} " in written.read_text()) == there


def test_its_ports_are_free_and_differ():
    first, second = Host().ports("127.0.0.1", 2)
    assert first != second
    for port in (first, second):
        socket.create_server(("127.0.0.1", port)).close()
