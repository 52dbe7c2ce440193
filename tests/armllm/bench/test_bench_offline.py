"""Engines that are compared compute the same way."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import bench_offline as tool
from armllm.openvino.graph import Precision


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_openvino_genai_has_the_cache_of_our_back_end(monkeypatch, dtype):
    """It would catch a cache of 16 bits beside one of 32, which has twice the bytes to read."""
    asked = []
    genai = types.ModuleType("openvino_genai")
    genai.SchedulerConfig = types.SimpleNamespace
    genai.ContinuousBatchingPipeline = lambda *arguments: asked.append(arguments)
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    tool.openvino("model", 2, dtype)
    [(folder, scheduler, device, properties)] = asked
    assert (folder, scheduler.cache_size, device) == ("model/openvino", tool.KV_CACHE_GIB, "CPU")
    ours = getattr(torch, dtype)
    precision = Precision(dtype=ours, cache=ours)
    assert properties == {"INFERENCE_NUM_THREADS": 2, **precision.properties()}
