"""The paged KV cache and attention against float64 torch, and everything the face must refuse."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from armllm import kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROUND = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}
"""Twice the rounding of an output, since weights may be rounded before they multiply the values."""
ANY_OPTIONS = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            limit: st.integers(1, 200),
            "logit_soft_cap": st.floats(0.5, 100),
            "alibi_slopes": st.just(True),
            "sinks": st.just(True),
        },
    )
    for limit in ("sliding_window", "chunk_size")
)


@dataclass
class Batch:
    """Sequences of random keys and values in a cache whose other slots hold NaN."""

    layout: kernels.KVCacheLayout
    cache: torch.Tensor
    block_tables: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    scale: float
    options: dict[str, object] = field(default_factory=dict)

    def arguments(self) -> dict[str, object]:
        return {
            "out": torch.full_like(self.query, torch.nan),
            "query": self.query,
            "cache": self.cache,
            "layout": self.layout,
            "block_tables": self.block_tables,
            "query_start_loc": self.query_start_loc,
            "seq_lens": self.seq_lens,
            "scale": self.scale,
            **self.options,
        }

    def float64(self) -> torch.Tensor:
        out = torch.empty(self.query.shape, dtype=torch.float64)
        group = self.query.shape[1] // self.layout.num_kv_heads
        for s, both in enumerate(zip(self.keys, self.values, strict=True)):
            rows = slice(int(self.query_start_loc[s]), int(self.query_start_loc[s + 1]))
            query = self.query[rows].double()
            key, value = (x.double().repeat_interleave(group, 1) for x in both)
            logits = torch.einsum("qhd,khd->hqk", query, key) * self.scale
            distance = torch.arange(len(key)) - torch.arange(len(key) - len(query), len(key))[:, None]
            if cap := self.options.get("logit_soft_cap"):
                logits = cap * torch.tanh(logits / cap)
            if (slopes := self.options.get("alibi_slopes")) is not None:
                logits = logits + slopes.double()[:, None, None] * distance
            window = min(self.options.get("sliding_window") or 2**31, 2**31)
            seen = (distance <= 0) & (distance > -window)
            if self.options.get("bidirectional"):
                seen = distance.abs() < window
            chunks = torch.arange(len(key)) // min(self.options.get("chunk_size") or 2**31, 2**31)
            seen &= chunks == chunks[len(key) - len(query) :, None]
            logits = logits.masked_fill(~seen, -torch.inf)
            if (sinks := self.options.get("sinks")) is not None:
                sink = sinks.double()[:, None, None].expand(-1, len(query), 1)
                logits = torch.cat((logits, sink), -1)
            weights = logits.softmax(-1)[..., : len(key)]
            # Nothing that a query does not see counts, be it infinite.
            for row, visible in enumerate(seen):
                out[rows][row] = torch.einsum("hk,khd->hd", weights[:, row, visible], value[visible])
        return out


def make_batch(
    dtype, lengths, queries, *, heads=(4, 2), head_dim=32, block_size=16, seed=0, options=None, poison=False
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    query_heads, kv_heads = heads
    layout = kernels.kv_cache_layout(dtype, num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size)
    counts = [-(-length // block_size) for length in lengths]
    cache = kernels.allocate_kv_cache(layout, sum(counts) + 1)
    cache.fill_(0xFF)
    order = torch.randperm(sum(counts) + 1, generator=generator).int()
    block_tables = torch.full((len(lengths), max(counts, default=0) + 1), -7, dtype=torch.int32)
    keys, values, used = [], [], 0
    for s, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        block_tables[s, :count] = order[used : used + count]
        used += count
        both = torch.randn(2, length, kv_heads, head_dim, generator=generator).to(dtype)
        if poison:
            both[1, -1:] = torch.inf if length > 1 else 0
        keys.append(both[0])
        values.append(both[1])
        token = torch.arange(length)
        slots = block_tables[s, token // block_size].long() * block_size + token % block_size
        kernels.write_kv_cache(both[0], both[1], cache, layout, slots)
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    query = torch.randn(sum(queries), query_heads, head_dim, generator=generator).to(dtype)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    options = dict(options or {})
    for name in ("alibi_slopes", "sinks"):
        if name in options:
            options[name] = torch.rand(query_heads, generator=generator)
    return Batch(
        layout, cache, block_tables, starts, seq_lens, query, keys, values,
        head_dim**-0.5, options,
    )  # fmt: skip


def check(batch: Batch) -> None:
    arguments = batch.arguments()
    kernels.paged_attention(**arguments)
    bound = ROUND[batch.query.dtype]
    assert_close(arguments["out"].double(), batch.float64(), rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("head_dim", [8, 32, 64, 80, 96, 112, 128, 192, 256])
def test_prefills_decodes_and_empty_sequences_in_one_call(dtype, block_size, head_dim):
    check(make_batch(dtype, [17, 1, 40, 0, 64], [17, 1, 3, 0, 1], block_size=block_size, head_dim=head_dim))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(1, 1), (8, 8), (8, 1), (14, 2), (71, 1), (12, 3)])
def test_query_heads_share_their_kv_head(dtype, heads):
    check(make_batch(dtype, [70, 33], [5, 33], heads=heads))


@pytest.mark.parametrize("dtype", DTYPES)
def test_contexts_longer_than_one_split(dtype):
    check(make_batch(dtype, [1600, 511, 512, 513, 1024, 1025], [1, 2, 1, 70, 1, 1], block_size=32))


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_batch_matches_float64(data):
    kv_heads = data.draw(st.integers(1, 3))
    lengths = data.draw(st.lists(st.integers(0, 150), max_size=4))
    queries = [data.draw(st.integers(0, length)) for length in lengths]
    check(
        make_batch(
            data.draw(st.sampled_from(DTYPES)),
            lengths,
            queries,
            heads=(kv_heads * data.draw(st.integers(1, 9)), kv_heads),
            head_dim=8 * data.draw(st.integers(1, 20)),
            block_size=data.draw(st.sampled_from([16, 32, 64, 128])),
            seed=data.draw(st.integers(0, 2**31)),
            options=data.draw(ANY_OPTIONS),
        )
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 1},
        {"sliding_window": 37},
        {"sliding_window": 2**70},
        {"chunk_size": 1},
        {"chunk_size": 7},
        {"chunk_size": 600},
        {"chunk_size": 2**70},
        {"logit_soft_cap": 3.0},
        {"alibi_slopes": True},
        {"sinks": True},
        {"bidirectional": True},
        {"bidirectional": True, "sliding_window": 600, "alibi_slopes": True},
        {"bidirectional": True, "sliding_window": 1},
        {"sliding_window": 600, "logit_soft_cap": 30.0, "alibi_slopes": True, "sinks": True},
        {"chunk_size": 700, "logit_soft_cap": 30.0, "alibi_slopes": True, "sinks": True},
    ],
)
def test_windows_caps_slopes_and_sinks_over_several_splits(dtype, options):
    check(make_batch(dtype, [1300, 90, 17], [3, 90, 1], options=options))


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinite_values_of_a_later_token_spoil_no_earlier_row(dtype):
    batch = make_batch(dtype, [40, 1], [10, 1], poison=True)
    arguments = batch.arguments()
    kernels.paged_attention(**arguments)
    assert arguments["out"][:9].isfinite().all()
    assert arguments["out"][10:].isfinite().all()
    check(batch)


@pytest.mark.parametrize("size", [2.0**10, 2.0**20, 2.0**21, 2.0**30, 2.0**100, -(2.0**20), -(2.0**30)])
def test_logits_far_from_zero_are_weighed_against_each_other(size):
    """Two keys share the largest logit, the third has half of it: where it is negative, that is more."""
    batch = make_batch(torch.float32, [3], [1], heads=(1, 1), head_dim=8)
    key, value = torch.zeros(3, 1, 8), torch.tensor([1.0, 3.0, 100.0]).view(3, 1, 1).repeat(1, 1, 8)
    key[:, 0, 0] = torch.tensor([1.0, 1.0, 0.5])
    slots = batch.block_tables[0, 0].long() * 16 + torch.arange(3)
    kernels.write_kv_cache(key, value, batch.cache, batch.layout, slots)
    batch.query[:] = size
    arguments = batch.arguments() | {"scale": 1.0}
    kernels.paged_attention(**arguments)
    assert_close(arguments["out"], torch.full((1, 1, 8), 2.0 if size > 0 else 100.0))


def test_blocks_before_the_window_may_be_gone():
    batch = make_batch(torch.float32, [200], [2], options={"sliding_window": 20})
    batch.block_tables[0, :11] = -1  # the first query, at 198, sees 179 and later: block 11
    check(batch)
    batch.block_tables[0, 11] = -1
    with pytest.raises(ValueError, match=r"^block_tables\[0, 11\] is -1"):
        kernels.paged_attention(**batch.arguments())


def test_strides_of_query_and_out_are_honored():
    batch = make_batch(torch.float32, [20, 9], [4, 1])
    wide = torch.zeros(5, 4, 3, 32)
    wide[:, :, 1] = batch.query
    batch.query = wide[:, :, 1]
    out = torch.full((4, 5, 40), 5.0).transpose(0, 1)[:, :, :32]
    kernels.paged_attention(**(batch.arguments() | {"out": out}))
    assert_close(out.double(), batch.float64(), rtol=1e-5, atol=1e-5)


def test_negative_slots_are_skipped_and_others_left_alone():
    layout = kernels.kv_cache_layout(torch.float32, num_kv_heads=1, head_dim=8, block_size=16)
    cache = kernels.allocate_kv_cache(layout, 2)
    cache.zero_()
    ones = torch.ones(3, 1, 8)
    kernels.write_kv_cache(ones, ones, cache, layout, torch.tensor([-1, 17, -(2**60)]))
    assert not cache[0].any()
    assert (cache[1].view(torch.float32) == 1).sum() == 2 * 8


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_threads_nor_company_change_a_bit(dtype):
    batch = make_batch(dtype, [1500, 30, 600], [1, 30, 2], heads=(8, 2), head_dim=64)
    results = []
    for threads in (1, 2, 5):
        kernels.set_num_threads(threads)
        arguments = batch.arguments()
        kernels.paged_attention(**arguments)
        results.append(arguments["out"])
    kernels.set_num_threads(0)
    alone = batch.arguments() | {
        "out": torch.empty_like(batch.query[:1]),
        "query": batch.query[:1],
        "block_tables": batch.block_tables[:1],
        "query_start_loc": batch.query_start_loc[:2],
        "seq_lens": batch.seq_lens[:1],
    }
    kernels.paged_attention(**alone)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[0][:1], alone["out"])


def test_allocated_caches_are_aligned_and_of_the_size_asked_for():
    layout = kernels.kv_cache_layout(torch.bfloat16, num_kv_heads=3, head_dim=24, block_size=16)
    for blocks in (0, 1, 7):
        cache = kernels.allocate_kv_cache(layout, blocks)
        assert cache.shape == (blocks, layout.block_bytes)
        assert cache.dtype is torch.uint8
        assert cache.data_ptr() % 64 == 0
    with pytest.raises(ValueError, match="num_blocks is -1"):
        kernels.allocate_kv_cache(layout, -1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("head_dim", {"head_dim": 12}),
        ("head_dim", {"head_dim": 0}),
        ("head_dim", {"head_dim": -8}),
        ("head_dim", {"head_dim": 2048}),
        ("block_size", {"block_size": 24}),
        ("block_size", {"block_size": 0}),
        ("num_kv_heads", {"num_kv_heads": 0}),
        ("num_kv_heads", {"num_kv_heads": -2}),
        ("dtype", {"dtype": torch.float64}),
    ],
)
def test_a_layout_that_no_kernel_has_is_refused_by_name(name, change):
    arguments = {"dtype": torch.float32, "num_kv_heads": 2, "head_dim": 64, "block_size": 16} | change
    with pytest.raises(ValueError, match=name):
        kernels.kv_cache_layout(arguments.pop("dtype"), **arguments)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def unaligned(cache):
    memory = torch.empty(cache.numel() + 128, dtype=torch.uint8)
    start = -memory.data_ptr() % 64 + 8
    return memory[start : start + cache.numel()].view_as(cache)


# Two sequences, 20 and 5 tokens long with 3 and 1 queries; 4 blocks of 16, of which 3 are in use.
BAD_CALLS = {
    "query of another dtype": ("query", lambda _: {"query": torch.ones(4, 4, 32, dtype=torch.bfloat16)}),
    "query with other head_dim": ("query", lambda _: {"query": torch.ones(4, 4, 16)}),
    "query heads no multiple": ("query", lambda _: {"query": torch.ones(4, 3, 32)}),
    "out too short": ("out", lambda _: {"out": torch.ones(3, 4, 32)}),
    "out in one place": ("out", lambda _: {"out": torch.ones(1, 4, 32).expand(4, 4, 32)}),
    "cache of another shape": ("cache", lambda b: {"cache": b.cache[:, :-64]}),
    "cache of another dtype": ("cache", lambda b: {"cache": b.cache.view(torch.int8)}),
    "cache with gaps": ("cache", lambda b: {"cache": b.cache[::2]}),
    "cache not aligned": ("cache", lambda b: {"cache": unaligned(b.cache)}),
    "64-bit block table": ("block_tables", lambda b: {"block_tables": b.block_tables.long()}),
    "one-dimensional block table": ("block_tables", lambda b: {"block_tables": b.block_tables[0]}),
    "block out of range": ("block_tables[0, 1]", lambda _: {"block_tables": int32(0, 4, 1, 0).view(2, 2)}),
    "negative block": ("block_tables[1, 0]", lambda _: {"block_tables": int32(0, 1, -1, 0).view(2, 2)}),
    "too few blocks": ("seq_lens[0]", lambda _: {"block_tables": int32(0, 1).view(2, 1)}),
    "starts not from 0": ("query_start_loc[0]", lambda _: {"query_start_loc": int32(1, 3, 4)}),
    "starts fall": ("query_start_loc[2]", lambda _: {"query_start_loc": int32(0, 5, 4)}),
    "starts end early": ("query_start_loc[2]", lambda _: {"query_start_loc": int32(0, 2, 3)}),
    "starts overflow": ("query_start_loc[1]", lambda _: {"query_start_loc": int32(0, -(2**31), 4)}),
    "starts too short": ("query_start_loc", lambda _: {"query_start_loc": int32(0, 4)}),
    "length below queries": ("seq_lens[0]", lambda _: {"seq_lens": int32(2, 5)}),
    "length beyond table": ("seq_lens[1]", lambda _: {"seq_lens": int32(20, 2**31 - 1)}),
    "lengths of another dtype": ("seq_lens", lambda b: {"seq_lens": b.seq_lens.long()}),
    "window of nothing": ("sliding_window", lambda _: {"sliding_window": 0}),
    "chunk of nothing": ("chunk_size", lambda _: {"chunk_size": 0}),
    "window and chunk": ("chunk_size", lambda _: {"chunk_size": 8, "sliding_window": 8}),
    "both sides and chunk": ("chunk_size", lambda _: {"chunk_size": 8, "bidirectional": True}),
    "negative cap": ("logit_soft_cap", lambda _: {"logit_soft_cap": -1.0}),
    "cap that is no number": ("logit_soft_cap", lambda _: {"logit_soft_cap": float("nan")}),
    "slopes of another dtype": ("alibi_slopes", lambda _: {"alibi_slopes": torch.ones(4).double()}),
    "a slope per KV head": ("alibi_slopes", lambda _: {"alibi_slopes": torch.ones(2)}),
    "too many sinks": ("sinks", lambda _: {"sinks": torch.ones(5)}),
    "layout of another target": ("layout", lambda b: {"layout": replace(b.layout, target="other")}),
    "layout of another size": ("layout", lambda b: {"layout": replace(b.layout, block_bytes=64)}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "change"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_paged_attention_names_what_does_not_fit_and_writes_nothing(name, change):
    batch = make_batch(torch.float32, [20, 5], [3, 1])
    arguments = batch.arguments() | change(batch)
    before = arguments["out"].clone()
    with pytest.raises(ValueError) as caught:
        kernels.paged_attention(**arguments)
    assert str(caught.value).startswith(name)
    assert torch.equal(arguments["out"].nan_to_num(7), before.nan_to_num(7))


@pytest.mark.parametrize("slot", [64, 2**62])
def test_a_slot_behind_the_cache_is_refused_and_nothing_written(slot):
    batch = make_batch(torch.float32, [20, 5], [3, 1])
    before = batch.cache.clone()
    both = torch.ones(2, 2, 32)
    with pytest.raises(ValueError, match=r"^slot_mapping\[1\] is .* 64 slots"):
        kernels.write_kv_cache(both, both, batch.cache, batch.layout, torch.tensor([0, slot]))
    assert torch.equal(batch.cache, before)


def test_a_slot_that_stands_twice_is_refused_and_nothing_written():
    batch = make_batch(torch.float32, [20, 5], [3, 1])
    before = batch.cache.clone()
    both = torch.ones(4, 2, 32)
    with pytest.raises(ValueError, match=r"^slot_mapping\[3\] is 7, as slot_mapping\[0\] is"):
        kernels.write_kv_cache(both, both, batch.cache, batch.layout, torch.tensor([7, -1, -1, 7]))
    assert torch.equal(batch.cache, before)
