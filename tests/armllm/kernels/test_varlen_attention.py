"""Attention within whole sequences: the bits of `paged_attention`, whoever computes what."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from armllm import kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BLOCK = 16


@pytest.fixture(autouse=True)
def threads_as_before():
    yield
    kernels.set_num_threads(0)


def starts_of(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def inputs(lengths, heads, kv_heads, head_dim, dtype):
    """Query, key and value as parts of one product."""
    tokens = sum(lengths)
    parts = [heads, kv_heads, kv_heads]
    wide = torch.randn(tokens, sum(parts) * head_dim).to(dtype)
    return [
        part.view(tokens, count, head_dim)
        for part, count in zip(wide.split([n * head_dim for n in parts], 1), parts, strict=True)
    ]


def by_cache(query, key, value, lengths, **options):
    """The same by `paged_attention`, on a cache whose other slots hold NaN."""
    layout = kernels.kv_cache_layout(
        query.dtype, num_kv_heads=key.shape[1], head_dim=query.shape[2], block_size=BLOCK
    )
    counts = [-(-length // BLOCK) for length in lengths]
    cache = kernels.allocate_kv_cache(layout, sum(counts) + 1)
    cache.fill_(0xFF)
    tables = torch.full((len(lengths), max(counts) + 1), -1, dtype=torch.int32)
    slots, block = [], 1
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        tables[row, :count] = torch.arange(block, block + count)
        slots += range(block * BLOCK, block * BLOCK + length)
        block += count
    kernels.write_kv_cache(key, value, cache, layout, torch.tensor(slots, dtype=torch.int64))
    out = torch.full(query.shape, torch.nan, dtype=query.dtype)
    kernels.paged_attention(
        out,
        query,
        cache,
        layout,
        tables,
        starts_of(lengths),
        torch.tensor(lengths, dtype=torch.int32),
        query.shape[2] ** -0.5,
        **options,
    )
    return out


def without_cache(query, key, value, lengths, **options):
    out = torch.full(query.shape, torch.nan, dtype=query.dtype)
    kernels.varlen_attention(out, query, key, value, starts_of(lengths), query.shape[2] ** -0.5, **options)
    return out


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1 << 30),
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=6).filter(any),
    long=st.sampled_from([0, 0, 530, 1100]),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kind=st.tuples(st.sampled_from([8, 24, 32, 40, 64]), st.sampled_from(DTYPES), st.integers(1, 4)),
    options=st.fixed_dictionaries(
        {"bidirectional": st.booleans()},
        optional={"sliding_window": st.integers(1, 700), "logit_soft_cap": st.floats(0.5, 100)},
    ),
)
def test_it_has_the_bits_of_attention_over_a_cache(*, seed, lengths, long, heads, kind, options):
    torch.manual_seed(seed)
    lengths, (kv_heads, group), (head_dim, dtype, threads) = [*lengths, long], heads, kind
    parts = inputs(lengths, kv_heads * group, kv_heads, head_dim, dtype)
    kernels.set_num_threads(threads)
    assert torch.equal(without_cache(*parts, lengths, **options), by_cache(*parts, lengths, **options))


@pytest.mark.parametrize("lengths", [[600], [5, 600, 1], [16] * 40])
def test_the_number_of_threads_changes_no_bit(lengths):
    """One thread has every head to itself; with many, a long sequence is shared."""
    torch.manual_seed(0)
    parts = inputs(lengths, 4, 2, 32, torch.float32)
    found = []
    for threads in (1, 2, 3, 8):
        kernels.set_num_threads(threads)
        found.append(without_cache(*parts, lengths, bidirectional=True))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_sequence_leaves_behind_reaches_no_other(dtype, threads):
    """A shorter one finds the infinities of a longer one behind its own tokens."""
    torch.manual_seed(0)
    lengths = [40, 3, 17, 1]
    query, key, value = inputs(lengths, 2, 2, 16, dtype)
    kernels.set_num_threads(threads)
    expected = without_cache(query, key, value, lengths)[40:]
    key[:40], value[:40] = torch.inf, torch.nan
    found = without_cache(query, key, value, lengths)
    assert found[:40].isnan().all()
    assert torch.equal(found[40:], expected)
    assert expected.isfinite().all()


def test_no_tokens_and_no_sequences():
    for lengths in ([], [0], [0, 0, 0]):
        parts = inputs(lengths, 2, 1, 8, torch.float32)
        assert without_cache(*parts, lengths).shape == (0, 2, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": torch.zeros(9, 3, 16)}, "query has 4 heads, expected a multiple of the 3 KV heads"),
        ({"key": torch.zeros(9, 0, 16), "value": torch.zeros(9, 0, 16)}, "multiple of the 0 KV heads"),
        ({"value": torch.zeros(9, 1, 16)}, "value"),
        ({"key": torch.zeros(8, 2, 16)}, "key"),
        ({"value": torch.zeros(9, 2, 16).half()}, "value"),
        ({"out": torch.zeros(9, 4, 8)}, "out"),
        ({"query_start_loc": torch.tensor([0, 4, 8], dtype=torch.int32)}, r"query_start_loc\[2\] is 8"),
        ({"query_start_loc": torch.tensor([0, 7, 4, 9], dtype=torch.int32)}, r"query_start_loc\[2\] is 4"),
        ({"query_start_loc": torch.tensor([1, 9], dtype=torch.int32)}, r"query_start_loc\[0\] is 1"),
        ({"query_start_loc": torch.tensor([], dtype=torch.int32)}, "query_start_loc is empty"),
        ({"query_start_loc": torch.tensor([0, 9])}, "query_start_loc"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"logit_soft_cap": -1.0}, "logit_soft_cap"),
        ({"scale": float("nan")}, "scale"),
    ],
)
def test_it_names_what_does_not_fit_and_writes_nothing(change, message):
    query, key, value = inputs([4, 5], 4, 2, 16, torch.float32)
    out = torch.full_like(query, 7.0)
    arguments = {
        "out": out,
        "query": query,
        "key": key,
        "value": value,
        "query_start_loc": starts_of([4, 5]),
        "scale": 0.25,
    }
    if len(change.get("key", value)) == 9 and change.get("key", value).shape[1] == 3:
        change = change | {"value": torch.zeros(9, 3, 16)}
    with pytest.raises((ValueError, TypeError), match=message):
        kernels.varlen_attention(**arguments | change)
    assert (out == 7.0).all()


def test_heads_of_a_size_that_no_kernel_has_are_refused():
    parts = inputs([3], 2, 2, 12, torch.float32)
    with pytest.raises(ValueError, match="head_dim must be a multiple of 8"):
        without_cache(*parts, [3])
