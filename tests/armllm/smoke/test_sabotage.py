"""A kernel that is wrong in one line must garble the recitation: each is broken on purpose."""

from __future__ import annotations

import math

import pytest
import torch

from armllm import LLM, SamplingParams, kernels
from armllm.kernels import reference
from armllm.smoke.cases import Case, Recitation, alone, batch, recitations
from armllm.smoke.passages import MODEL
from armllm.smoke.recite import run

FUNCTIONS = (
    "allocate_kv_cache",
    "fused_add_rms_norm",
    "kv_cache_layout",
    "paged_attention",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
    "write_kv_cache",
)


def attention(*, visible=None, head=None, scale=None, values=None, table=None, extra_key=False, change=None):
    """Attention written anew, with each decision open to a wrong answer."""

    def paged_attention(  # noqa: PLR0917 - the kernel takes what it takes
        out, query, cache, layout, block_tables, query_start_loc, seq_lens, given_scale, **options
    ):
        assert not any(options.values())  # what this model has no use for
        keys, cached_values = layout.views(cache)
        group = query.shape[1] // layout.num_kv_heads
        starts = query_start_loc.tolist()
        for sequence, length in enumerate(seq_lens.tolist()):
            first, last = starts[sequence], starts[sequence + 1]
            if first == last:
                continue
            blocks = block_tables[sequence, : -(-length // layout.block_size)].long()
            blocks = table(blocks) if table else blocks
            k, v = (
                cached[blocks].transpose(0, 1).flatten(1, 2)[:, :length].float()
                for cached in (keys, cached_values)
            )
            v = values(v) if values else v
            heads = torch.arange(query.shape[1])
            heads = head(heads, group, layout.num_kv_heads) if head else heads // group
            scores = query[first:last].float().transpose(0, 1) @ k[heads].transpose(1, 2)
            scores = scores * (scale(layout.head_dim) if scale else given_scale)
            row = torch.arange(length - (last - first), length)[:, None]
            column = torch.arange(length)[None, :]
            seen = visible(row, column) if visible else column <= row
            scores = scores.masked_fill(~seen, -math.inf)
            scores = change(scores) if change else scores
            v = v[heads]
            if extra_key:
                scores, v = torch.nn.functional.pad(scores, (0, 1)), torch.nn.functional.pad(v, (0, 0, 0, 1))
            out[first:last] = (scores.softmax(-1).nan_to_num() @ v).transpose(0, 1).to(out.dtype)

    return paged_attention


def without_last_dimensions_of_query(count):
    plain = attention()

    def paged_attention(out, query, *rest, **options):
        shortened = query.clone()
        shortened[..., -count:] = 0
        plain(out, shortened, *rest, **options)

    return paged_attention


def never_rescaled(scores, size=16):
    """Online softmax that forgets to rescale what it has summed when a later block holds a higher score."""
    ends = ((torch.arange(scores.shape[-1]) // size + 1) * size - 1).clamp(max=scores.shape[-1] - 1)
    return scores - scores.cummax(-1).values[..., ends]


def without_block(index, size=16):
    return attention(visible=lambda q, k: (k <= q) & ((k // size != index) | (q // size == index)))


def rotary(change):
    def rotary_embedding(positions, query, key, cos_sin_cache, *, interleaved):
        assert not interleaved
        change(positions, query, key, cos_sin_cache)

    return rotary_embedding


def query_one_late(positions, query, key, cache, *, interleaved):
    assert not interleaved
    reference.rotary_embedding(positions + 1, query, key.clone(), cache)
    reference.rotary_embedding(positions, query.clone(), key, cache)


def with_table(change):
    def rotary_embedding(positions, query, key, cache, *, interleaved):
        assert not interleaved
        reference.rotary_embedding(positions, query, key, change(cache.clone()))

    return rotary_embedding


def negate_sines(cache):
    cache[:, cache.shape[1] // 2 :] *= -1
    return cache


def swap_sines_and_cosines(cache):
    return cache.roll(cache.shape[1] // 2, 1)


def forget_slow_pairs(cache):
    quarter = cache.shape[1] // 4
    cache[:, quarter : 2 * quarter] = 1
    cache[:, 3 * quarter :] = 0
    return cache


def norm(*, square=torch.square, eps=lambda eps: eps, root_eps=0.0, weigh=True, add=True, keep=True):
    def fused_add_rms_norm(x, residual, weight, given_eps, *, weight_offset):
        assert not weight_offset
        total = residual + x if add else x.clone()
        if keep:
            residual.copy_(total)
        power = square(total).mean(-1, keepdim=True)
        total = total / ((power + eps(given_eps)).sqrt() + root_eps)
        x.copy_(total * weight if weigh else total)

    return fused_add_rms_norm


def silu(function):
    def silu_and_mul(out, x):
        gate, up = x.chunk(2, -1)
        out.copy_(function(gate, up))

    return silu_and_mul


def writing(change):
    def write_kv_cache(key, value, cache, layout, slot_mapping):
        reference.write_kv_cache(*change(key, value, slot_mapping, cache, layout))

    return write_kv_cache


def swapped(key, value, slots, cache, layout):
    return value, key, cache, layout, slots


def one_slot_on(key, value, slots, cache, layout):
    return key, value, cache, layout, (slots + 1) % (cache.shape[0] * layout.block_size)


def heads_swapped(key, value, slots, cache, layout):
    return key.flip(1), value, cache, layout, slots


def last_of_block_skipped(key, value, slots, cache, layout):
    return (
        key,
        value,
        cache,
        layout,
        torch.where(slots % layout.block_size == layout.block_size - 1, -1, slots),
    )


functional = torch.nn.functional
SABOTAGES = {
    "attention sees one token into the future": attention(visible=lambda q, k: k <= q + 1),
    "attention misses the newest token": attention(visible=lambda q, k: (k < q) | (q == 0)),
    "attention misses the first token": attention(visible=lambda q, k: (k <= q) & ((k > 0) | (q == 0))),
    "attention drops the last key of each block": attention(
        visible=lambda q, k: (k <= q) & ((k % 16 < 15) | (k == q))
    ),
    "attention looks back 256 tokens only": attention(visible=lambda q, k: (k <= q) & (q - k < 256)),
    "attention drops the block before the newest": attention(
        visible=lambda q, k: (k <= q) & (k // 16 != q // 16 - 1)
    ),
    "attention maps heads by remainder": attention(head=lambda heads, _group, kv_heads: heads % kv_heads),
    "attention uses one KV head for all": attention(head=lambda heads, _group, _kv_heads: heads * 0),
    "attention forgets the scale": attention(scale=lambda _dim: 1.0),
    "attention scales by the head size": attention(scale=lambda dim: 1 / dim),
    "attention takes the previous token's value": attention(values=lambda v: v.roll(1, 1)),
    "attention reads the first block twice": attention(
        table=lambda blocks: (
            blocks.index_fill(0, torch.tensor([1]), int(blocks[0])) if len(blocks) > 2 else blocks
        )
    ),
    "attention counts an empty slot": attention(extra_key=True),
    "attention leaves out the last eight dimensions": without_last_dimensions_of_query(8),
    "attention leaves out half of the values": attention(values=lambda v: v * (torch.arange(32) < 16)),
    "attention takes powers of two": attention(change=lambda scores: scores * math.log(2)),
    "attention never rescales its sums": attention(change=never_rescaled),
    "rotary embedding does nothing": rotary(lambda *_: None),
    "rotary embedding turns queries one position too far": query_one_late,
    "rotary embedding pairs neighbors": rotary(
        lambda *given: reference.rotary_embedding(*given, interleaved=True)
    ),
    "rotary embedding turns backwards in keys only": rotary(
        lambda p, q, k, c: (
            reference.rotary_embedding(p, q, k.clone(), c),
            reference.rotary_embedding(p, q.clone(), k, negate_sines(c.clone())),
        )
    ),
    "rotary embedding mixes up sine and cosine": with_table(swap_sines_and_cosines),
    "rotary embedding turns half of the pairs": with_table(forget_slow_pairs),
    "rotary embedding stops at position 128": rotary(
        lambda p, q, k, c: reference.rotary_embedding(p.clamp(max=128), q, k, c)
    ),
    "norm without epsilon": norm(eps=lambda _eps: 0.0),
    "norm adds epsilon after the root": norm(eps=lambda _eps: 0.0, root_eps=0.05),
    "norm without weight": norm(weigh=False),
    "norm of the branch alone": norm(add=False, keep=False),
    "norm forgets to keep the sum": norm(keep=False),
    "norm subtracts the mean": norm(square=lambda x: (x - x.mean(-1, keepdim=True)).square()),
    "norm leaves out the last eight": norm(square=lambda x: functional.pad(x[..., :-8], (0, 8)).square()),
    "silu of the wrong half": silu(lambda gate, up: functional.silu(up) * gate),
    "silu without the factor": silu(lambda gate, up: gate.sigmoid() * up),
    "gelu instead of silu": silu(lambda gate, up: functional.gelu(gate) * up),
    "relu instead of silu": silu(lambda gate, up: functional.relu(gate) * up),
    "silu leaves out the last eight": silu(
        lambda gate, up: functional.silu(gate) * up * (torch.arange(up.shape[-1]) < up.shape[-1] - 8)
    ),
    "silu of the negated gate": silu(lambda gate, up: functional.silu(-gate) * up),
    "silu without up": silu(lambda gate, _up: functional.silu(gate)),
    "keys and values swapped in the cache": writing(swapped),
    "tokens written one slot on": writing(one_slot_on),
    "key heads swapped in the cache": writing(heads_swapped),
    "last token of each block not written": writing(last_of_block_skipped),
}
HOMES = {"attention": "paged_attention", "rotary": "rotary_embedding", "norm": "fused_add_rms_norm"}


def home(name: str) -> str:
    kind = name.split(maxsplit=1)[0]
    return HOMES.get(kind, "silu_and_mul" if kind in {"silu", "gelu", "relu"} else "write_kv_cache")


@pytest.fixture
def plain_torch(monkeypatch):
    """The engine on reference kernels, into which a test puts its fault."""
    for name in FUNCTIONS:
        monkeypatch.setattr(kernels, name, getattr(reference, name))
    # else a slot that nobody wrote holds anything, NaN too
    monkeypatch.setattr(
        kernels, "allocate_kv_cache", lambda *given, **how: reference.allocate_kv_cache(*given, **how).zero_()
    )
    return monkeypatch


def test_reference_kernels_recite_everything(plain_torch, passages):
    """Without this, every sabotage below would be found for the wrong reason."""
    for case in (alone(passages[0], {}), batch("batch", recitations(passages, 6), {})):
        assert run(case, "float32", MODEL).ok


def garbled(passage) -> bool:
    """Whether a recitation leaves the text: some word of it, given all words before, is not the likeliest.

    In chunks of a few blocks, each of which reads from the cache what earlier ones have written.
    """
    llm = LLM(str(MODEL), dtype="float32", max_num_batched_tokens=48)
    given = {"prompt_token_ids": [*passage.prompt_token_ids, *passage.token_ids]}
    wanted = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    (output,) = llm.generate([given], wanted, use_tqdm=False)
    said = output.prompt_logprobs[len(passage.prompt_token_ids) :]
    return any(step[token].rank != 1 for step, token in zip(said, passage.token_ids, strict=True))


def test_the_whole_text_is_likeliest_word_by_word(plain_torch, passages):
    assert not garbled(passages[0])


def plain_norm(fused):
    """The norm without a sum that makes the same mistake."""

    def rms_norm(out, x, weight, eps, *, weight_offset):
        out.copy_(x)
        fused(out, torch.zeros_like(x), weight, eps, weight_offset=weight_offset)

    return rms_norm


@pytest.mark.parametrize("name", SABOTAGES)
def test_one_wrong_line_garbles_the_text(plain_torch, passages, name):
    assert callable(getattr(kernels, home(name)))
    plain_torch.setattr(kernels, home(name), SABOTAGES[name])
    if home(name) == "fused_add_rms_norm":
        plain_torch.setattr(kernels, "rms_norm", plain_norm(SABOTAGES[name]))
    assert garbled(passages[0])


@pytest.mark.parametrize("index", range(20))
def test_one_block_of_the_cache_that_nobody_reads_garbles_the_text(plain_torch, passages, index):
    """A long context in which only one block is skipped: the later text must still depend on it."""
    plain_torch.setattr(kernels, "paged_attention", without_block(index))
    assert garbled(passages[0])


def test_prompt_that_sees_its_future_garbles_the_text(plain_torch, passages):
    """Only prefill can see ahead: a long prompt, whose answer is computed rightly from wrong states."""

    def sees_next_in_prefill(q, k):
        return k <= q + (1 if len(q) > 1 else 0)

    plain_torch.setattr(kernels, "paged_attention", attention(visible=sees_next_in_prefill))
    given = Recitation(passage=passages[0], num_given=100)
    assert run(Case(name="long prompt", recitations=(given,), options={}), "float32", MODEL).first_difference
