from __future__ import annotations

import pytest

from armllm.smoke.cases import batch, default_cases, fraction, recitations
from armllm.smoke.passages import MODEL
from armllm.smoke.recite import run


def test_fractions_never_repeat():
    values = [fraction(index) for index in range(64)]
    assert len(set(values)) == 64
    assert all(0 <= value < 1 for value in values)


def test_a_large_batch_holds_different_requests(passages):
    chosen = recitations(passages, 40)
    assert len({(request.passage.name, request.num_given) for request in chosen}) == 40
    assert all(request.expected for request in chosen)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("count", "options"),
    [
        (1, {"max_num_batched_tokens": 1}),
        (3, {"block_size": 32}),
        (7, {"max_num_seqs": 2}),
        (9, {"enable_prefix_caching": False, "max_num_batched_tokens": 17}),
        (17, {"block_size": 64, "max_num_batched_tokens": 2048}),
        (5, {"block_size": 128}),
    ],
)
def test_batches_of_many_shapes_are_recited(passages, dtype, count, options):
    result = run(batch("batch", recitations(passages, count), options), dtype, MODEL)
    assert result.error is None
    assert result.first_difference is None


def test_order_of_requests_does_not_matter(passages):
    chosen = tuple(reversed(recitations(passages, 6)))
    assert run(batch("batch", chosen, {}), "float32", MODEL).ok


def test_usual_batch_is_preempted(passages):
    """Without preemption the case would prove less than it says."""
    result = run(default_cases(passages, {})[1], "float32", MODEL)
    assert result.ok
    assert result.preemptions > 0


def test_usual_cases_recite_the_longest_text_whole_and_most_of_the_others(passages):
    first_given = {}
    for case in default_cases(passages, {}):
        for request in case.recitations:
            name = request.passage.name
            first_given[name] = min(request.num_given, first_given.get(name, request.num_given))
    longest, next_longest, *others = passages
    assert first_given[longest.name] == 0
    assert first_given[next_longest.name] == len(next_longest.token_ids) // 2
    assert all(first_given[other.name] == 0 for other in others)


def test_engine_that_raises_has_failed_and_says_why(passages):
    result = run(batch("batch", recitations(passages, 2), {"num_gpu_blocks_override": 1}), "float32", MODEL)
    assert not result.ok
    assert "KV cache" in result.error
