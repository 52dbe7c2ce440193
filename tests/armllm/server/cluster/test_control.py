"""What is said where Ray is not there."""

from __future__ import annotations

import sys
import types

import pytest

from armllm.errors import RequestError
from armllm.server.cluster.control import RayControl


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequestError, match=r"pip install 'armllm\[ray\]'"):
        RayControl()


def test_without_a_cluster_the_command_that_starts_one_is_named(monkeypatch):
    def init(**options):
        assert options["address"] == "10.0.0.1:6379", "a cluster of one's own would be started"
        raise ConnectionError("Could not find any running Ray instance.\nMore.")

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(init=init))
    with pytest.raises(RequestError, match=r"10.0.0.1:6379: Could not find any.*`ray start --head`$"):
        RayControl()
