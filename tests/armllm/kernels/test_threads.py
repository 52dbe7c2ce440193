"""What a layer of a decode costs the threads: regions, and updates of counters that they share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import model_threads
from armllm import kernels
from armllm.kernels._extension import extension

HIDDEN, WIDE, HEADS, KV_HEADS, DIM, CONTEXT, BLOCK = 1024, 4096, 16, 4, 64, 1500, 16
THREADS = 8


class Layer:
    """A layer of Llama with random weights of 8 bits, ``rows`` sequences of 1500 tokens."""

    def __init__(self, rows):
        self.random = torch.Generator().manual_seed(0)
        self.qkv_proj = self.weight((HEADS + 2 * KV_HEADS) * DIM, HIDDEN)
        self.o_proj = self.weight(HIDDEN, HEADS * DIM)
        self.gate_up_proj = self.weight(2 * WIDE, HIDDEN)
        self.down_proj = self.weight(HIDDEN, WIDE)
        self.norm = torch.rand(HIDDEN, generator=self.random)
        self.layout = kernels.kv_cache_layout(
            torch.float32, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=BLOCK
        )
        blocks = -(-CONTEXT // BLOCK)
        self.cache = kernels.allocate_kv_cache(self.layout, blocks * rows).zero_()
        self.tables = torch.arange(rows * blocks, dtype=torch.int32).view(rows, blocks)
        self.starts = torch.arange(rows + 1, dtype=torch.int32)
        self.lens = torch.full((rows,), CONTEXT, dtype=torch.int32)
        self.slots = torch.arange(rows) * blocks * BLOCK + CONTEXT - 1
        self.positions = torch.full((rows,), CONTEXT - 1)
        self.angles = torch.rand(CONTEXT, DIM, generator=self.random)
        self.input = torch.randn(2, rows, HIDDEN, generator=self.random)
        self.x, self.residual = torch.zeros(2, rows, HIDDEN)
        self.heads = torch.zeros(rows, HEADS + 2 * KV_HEADS, DIM)
        self.attended = torch.zeros(rows, HEADS, DIM)
        self.gate_up, self.activated = torch.zeros(rows, 2 * WIDE), torch.zeros(rows, WIDE)

    def weight(self, out_features, in_features):
        q = torch.randint(-99, 99, (out_features, in_features), dtype=torch.int8, generator=self.random)
        scales = torch.rand(out_features, 1, generator=self.random) * 0.001
        return kernels.pack_weight(q, scales, None, bits=8)

    def run(self):
        query, key, value = self.heads.split_with_sizes((HEADS, KV_HEADS, KV_HEADS), 1)
        kernels.fused_add_rms_norm(self.x, self.residual, self.norm, 1e-5)
        kernels.matmul_w8a8(self.heads.flatten(1), self.x, self.qkv_proj)
        kernels.rotary_embedding(self.positions, query, key, self.angles)
        kernels.write_kv_cache(key, value, self.cache, self.layout, self.slots)
        kernels.paged_attention(
            self.attended, query, self.cache, self.layout, self.tables, self.starts, self.lens, DIM**-0.5
        )
        kernels.matmul_w8a8(self.x, self.attended.flatten(1), self.o_proj)
        kernels.fused_add_rms_norm(self.x, self.residual, self.norm, 1e-5)
        kernels.matmul_w8a8(self.gate_up, self.x, self.gate_up_proj)
        kernels.silu_and_mul(self.activated, self.gate_up)
        kernels.matmul_w8a8(self.x, self.activated, self.down_proj)

    def record(self):
        extension.start_recording()
        try:
            self.run()
            return extension.take_recording()
        finally:
            extension.stop_recording()

    def results(self, run):
        """What every tensor holds after a run from the same inputs."""
        self.x.copy_(self.input[0])
        self.residual.copy_(self.input[1])
        run()
        written = (self.x, self.residual, self.heads, self.attended, self.gate_up, self.activated)
        return [tensor.clone() for tensor in written]


@pytest.fixture
def own_threads():
    kernels.use_own_threads()
    kernels.set_num_threads(THREADS)
    yield
    extension.count_threads(False)
    kernels.set_num_threads(0)
    kernels.use_own_threads(False)


# With one counter for all threads and a region for each op it was 7 and 13 regions, 234 and 474 updates.
@pytest.mark.parametrize(("rows", "regions", "updates"), [(1, 5, 150), (32, 6, 350)])
@pytest.mark.usefixtures("own_threads")
def test_a_recorded_layer_has_few_regions_and_updates_and_its_bits(rows, regions, updates):
    layer = Layer(rows)
    program = layer.record()
    computed = layer.results(layer.run)
    extension.count_threads(True)
    replayed = layer.results(program.run)
    counted = extension.thread_counts()
    assert all(torch.equal(a, b) for a, b in zip(computed, replayed, strict=True))
    assert counted[0] == regions
    assert 0 < counted[2] <= updates
    extension.count_threads(False)
    program.run()
    assert extension.thread_counts() == (0, 0, 0)


@pytest.mark.usefixtures("own_threads")
def test_only_neighbors_that_fit_share_a_region():
    """A norm of other rows than the product reads, and an activation of another product's, stay alone."""
    layer = Layer(32)

    def run():
        kernels.rms_norm(layer.attended.flatten(1), layer.x, layer.norm, 1e-5)
        kernels.matmul_w8a8(layer.gate_up, layer.x, layer.gate_up_proj)
        kernels.matmul_w8a8(layer.x, layer.attended.flatten(1), layer.o_proj)
        kernels.silu_and_mul(layer.activated, layer.gate_up)

    layer.run = run
    program = layer.record()
    computed = layer.results(run)
    extension.count_threads(True)
    replayed = layer.results(program.run)
    assert extension.thread_counts()[0] == 4
    assert all(torch.equal(a, b) for a, b in zip(computed, replayed, strict=True))


def page_faults():
    """How many pages each thread of this process has touched first."""
    stats = {task.name: (task / "stat").read_text() for task in Path("/proc/self/task").iterdir()}
    return {thread: int(stat.rpartition(")")[2].split()[7]) for thread, stat in stats.items()}


def test_each_thread_touches_its_share_of_a_weight_first():
    """Catches panels whose pages all go to the node of the thread that loads."""
    kernels.set_num_threads(2)
    try:
        kernels.PanelWeight.empty(1024, 1024, torch.float32)  # starts the threads
        before = page_faults()
        panels = kernels.PanelWeight.empty(4096, 4096, torch.float32)
        after = page_faults()
    finally:
        kernels.set_num_threads(0)
    faults = sorted(count - before.get(thread, 0) for thread, count in after.items())
    half = panels.nbytes // 2**22  # in huge pages; the first and the last part may have small ones
    assert faults[-2] >= 0.8 * half


def test_the_model_of_many_threads_prefers_groups_of_them():
    for threads in (64, 128):
        (total, ideal, updates), (before, _, more) = (
            model_threads.simulate(threads, 100.0, grouped=grouped) for grouped in (True, False)
        )
        assert ideal < total < before
        assert updates < more
    assert model_threads.simulate(1, 100.0, grouped=True)[0] == pytest.approx(
        model_threads.simulate(1, 100.0, grouped=True)[1], rel=0.1
    )
