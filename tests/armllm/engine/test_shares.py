"""Who asks for much leaves others half of their speed. The time of these steps grows with their tokens."""

from __future__ import annotations

import itertools
import random

import pytest
from tests.armllm.engine.test_scheduler import make_scheduler, make_sequence, step

from armllm.engine.caller import Caller
from armllm.engine.shares import CHUNK, CHUNK_SECONDS, Shares

STEP_SECONDS, DECODE_SECONDS, PROMPT_SECONDS = 0.01, 0.002, 0.001


NUMBERS = itertools.count()


def queue(scheduler, client, num_prompt_tokens, max_tokens, *, priority=0, request=None):
    sequence = make_sequence(num_prompt_tokens, max_tokens)
    sequence.caller = Caller(client, next(NUMBERS) if request is None else request)
    sequence.priority = priority
    scheduler.add(sequence)
    return sequence


def run(scheduler, seconds=float("inf"), until=lambda: False):
    """The longest step, and the time of all of them."""
    longest = total = 0.0
    while total < seconds and not until() and (scheduler.running or scheduler.waiting):
        decodes = {sequence for sequence in scheduler.running if sequence.decodes}
        counts = step(scheduler)
        assert counts, "there is work, and none was scheduled"
        took = STEP_SECONDS + sum(
            DECODE_SECONDS * (1 if sequence.matcher is None else 4)
            if sequence in decodes
            else count * PROMPT_SECONDS
            for sequence, count in counts
        )
        scheduler.ran(took)
        longest, total = max(longest, took), total + took
    return longest, total


@pytest.fixture
def scheduler():
    made = make_scheduler(2000, block_size=16, max_num_seqs=128, budget=2048)
    made.shares = Shares()
    return made


def rate_beside(scheduler, attack, patience=20):
    """Tokens per second of one stream beside others, as a part of what it has alone."""
    good = queue(scheduler, "good", 4, 10_000)
    run(scheduler, 2)
    alone = good.num_output_tokens / 2
    attack()
    run(scheduler, patience / 4)
    before = good.num_output_tokens
    _, seconds = run(scheduler, patience)
    return (good.num_output_tokens - before) / seconds / alone


def test_long_prompts_leave_half_of_the_time_to_who_decodes(scheduler):
    """It would catch a step of 2048 tokens for each token of everybody else, of the same client or not."""

    def attack():
        for _ in range(100):
            queue(scheduler, "good", 1900, 1)

    assert rate_beside(scheduler, attack, patience=10) > 0.48
    longest, _ = run(scheduler, 3)
    assert longest < 1.5 * CHUNK * PROMPT_SECONDS


def test_prompts_go_on_beside_a_stream_that_has_had_as_much(scheduler):
    """Else one endless stream would halve the speed of everybody's prompts."""
    queue(scheduler, "one", 1000, 10_000)
    run(scheduler, 3)
    prompts = [queue(scheduler, "two", 1900, 1) for _ in range(2)]
    _, seconds = run(scheduler, until=lambda: all(one.finished for one in prompts))
    assert seconds < 1.3 * sum(one.num_prompt_tokens for one in prompts) * PROMPT_SECONDS


def test_many_short_prompts_of_a_client_leave_others_half_of_their_speed(scheduler):
    """It would catch a client that keeps the engine busy with prompts of a few tokens."""
    good = queue(scheduler, "good", 4, 10_000)
    run(scheduler, 2)
    alone = good.num_output_tokens / 2
    total, before = 0.0, good.num_output_tokens
    while total < 10:
        while len(scheduler.waiting) < 20:
            queue(scheduler, "bad", 8, 1)
        total += run(scheduler, STEP_SECONDS)[1]
    assert (good.num_output_tokens - before) / total > 0.5 * alone


@pytest.mark.parametrize("requests", [2, 20])
@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens", "answers"), [(8, 1, 1), (200, 1, 1), (2, 4, 2)])
def test_so_do_brief_answers_of_the_same_client(scheduler, requests, num_prompt_tokens, max_tokens, answers):
    """It would catch an address whose requests of a moment take all of the time of its streams."""
    good = queue(scheduler, "one", 4, 10_000)
    run(scheduler, 2)
    alone = good.num_output_tokens / 2
    total, before, others = 0.0, good.num_output_tokens, []
    while total < 20:
        count = requests * answers
        while len([one for one in others[-count:] if not one.finished]) < count:
            request = next(NUMBERS)
            others += [
                queue(scheduler, "one", num_prompt_tokens, max_tokens, request=request)
                for _ in range(answers)
            ]
        total += run(scheduler, STEP_SECONDS)[1]
    assert (good.num_output_tokens - before) / total > 0.5 * alone
    served = sum(one.finished for one in others) * num_prompt_tokens * PROMPT_SECONDS
    assert served > 0.02 * total, "others go on, too"


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(1024, 64), (128, 64), (1024, 1)])
def test_requests_that_are_alike_are_computed_as_fast_as_without_shares(num_prompt_tokens, max_tokens):
    """It would catch streams that go on alone while prompts wait."""
    seconds = {}
    for shares in (None, Shares()):
        scheduler = make_scheduler(3000, block_size=16, max_num_seqs=128, budget=2048)
        scheduler.shares = shares
        for client in range(32):
            queue(scheduler, client % 2, num_prompt_tokens, max_tokens)
        _, seconds[shares] = run(scheduler)
    before, now = seconds.values()
    assert now < 1.15 * before


def test_a_client_with_many_streams_leaves_others_half_of_their_speed(scheduler):
    def attack():
        for index in range(100):
            queue(scheduler, f"bad {index % 4}", 4, 10_000)

    assert rate_beside(scheduler, attack) > 0.45
    assert min(sequence.num_output_tokens for sequence in scheduler.running) > 25


def test_so_does_a_request_with_many_answers(scheduler):
    """It would catch one address, of a proxy or of nobody's own, whose requests are all one client's."""

    def attack():
        for request in range(4):
            for _ in range(25):
                queue(scheduler, "good", 4, 10_000, request=f"bad {request}")

    assert rate_beside(scheduler, attack) > 0.45
    assert min(sequence.num_output_tokens for sequence in scheduler.running) > 25


def test_so_do_requests_most_of_whose_answers_wait(scheduler):
    """It would catch requests that count as one stream each, because others have the rest of the places."""

    def attack():
        for request in range(20):
            for _ in range(128):
                queue(scheduler, "good", 4, 10_000, request=f"bad {request}")
            run(scheduler, 0.5)

    assert rate_beside(scheduler, attack) > 0.5


def test_streams_with_a_grammar_leave_others_half_of_their_speed(scheduler):
    """It would catch grammars whose next tokens take longer to find than the model takes to compute."""

    class Grammar:
        def advance(self, _token_id):
            return False

    def attack():
        for _ in range(20):
            queue(scheduler, "good", 4, 10_000).matcher = Grammar()

    assert rate_beside(scheduler, attack) > 0.5
    assert min(sequence.num_output_tokens for sequence in scheduler.running) > 25


def test_a_request_of_which_nothing_runs_gets_a_place_of_one_that_has_many(scheduler):
    for request in range(4):
        for _ in range(128):
            queue(scheduler, "one", 4, 10_000, request=f"bad {request}")
    run(scheduler, 3)
    good = queue(scheduler, "one", 10, 10)
    run(scheduler, 3, until=lambda: good.num_output_tokens)
    assert good.num_output_tokens
    assert scheduler.num_preemptions == 1


def beside_brief(scheduler, ended):
    """Tokens per second of a stream, as a part of what it has alone, beside 20 that end after two tokens."""
    good = queue(scheduler, "one", 4, 10_000)
    run(scheduler, 2)
    alone = good.num_output_tokens / 2
    others, total, before = [], 0.0, 0
    while total < 40:
        others += [queue(scheduler, "one", 4, 1000) for _ in range(20 - len(others))]
        total += run(scheduler, until=iter([False, True]).__next__)[1]
        left = [one for one in others if one.num_output_tokens > 1]
        for one in left:
            one.finish_reason = ended
        scheduler.finish(left)
        others = [one for one in others if one not in left]
        if total < 20:
            before, since = good.num_output_tokens, total
    return (good.num_output_tokens - before) / (total - since) / alone


def test_a_client_that_leaves_its_answers_leaves_its_streams_half_of_their_speed(scheduler):
    """It would catch clients that ask for 1000 tokens, read the first, leave and come back."""
    assert beside_brief(scheduler, None) > 0.5


def test_answers_that_end_early_are_no_longer_than_others(scheduler):
    """It would catch requests that wait because the model's answers to others were brief."""
    assert beside_brief(scheduler, "stop") < 0.3


def test_a_new_stream_of_such_a_client_is_no_slower_than_its_old_ones(scheduler):
    """It would catch one that counts as left, and so has the steps of a request with many answers only."""
    for _ in range(3):
        queue(scheduler, "one", 4, 10_000)
    run(scheduler, 5)
    scheduler._served._accounts["one"].part = 0.0
    for _ in range(60):
        queue(scheduler, "one", 4, 10_000, request="many")
    run(scheduler, 5)
    new = queue(scheduler, "one", 4, 10_000)
    run(scheduler, 20)
    assert new.num_output_tokens > 500


def test_all_requests_that_wait_get_their_places_at_once(scheduler):
    """It would catch one for each step, where every step has 128 streams."""
    for request in range(20):
        for _ in range(128):
            queue(scheduler, "one", 4, 10_000, request=f"bad {request}")
        if not request:
            run(scheduler, 1)
    good = queue(scheduler, "one", 10, 10)
    for _ in range(6):
        scheduler.ran(STEP_SECONDS + sum(count for _, count in step(scheduler)) * DECODE_SECONDS)
    assert good.num_output_tokens
    assert len({sequence.caller for sequence in scheduler.running}) == 21


def test_those_that_get_places_have_blocks():
    """It would catch blocks that are free once and promised to each of several prompts."""
    scheduler = make_scheduler(200, block_size=16, max_num_seqs=128, budget=2048)
    scheduler.shares = Shares()
    for _ in range(128):
        queue(scheduler, "one", 4, 10_000, request="bad")
    run(scheduler, 1)
    for _ in range(5):
        queue(scheduler, "one", 1000, 10)
    step(scheduler)
    assert len({sequence.caller for sequence in scheduler.running}) <= 4


def test_clients_with_a_stream_each_share_all_steps(scheduler):
    """It would catch a step that leaves somebody out although nobody is greedy."""
    streams = [queue(scheduler, str(index), 4, 1000) for index in range(20)]
    run(scheduler, 1)
    for _ in range(50):
        assert {sequence for sequence, _ in step(scheduler)} == set(streams)
        scheduler.ran(0.5)


def test_alone_a_request_has_all_steps_and_all_of_a_step(scheduler):
    for _ in range(3):
        queue(scheduler, "one", 1000, 1, request=0)
    assert sum(count for _, count in step(scheduler)) == 2048


def test_a_short_prompt_does_not_wait_for_long_ones_of_others(scheduler):
    for index in range(20):
        for _ in range(25):
            queue(scheduler, f"bad {index}", 1900, 100)
    run(scheduler, 3)
    good = queue(scheduler, "good", 10, 10)
    _, seconds = run(scheduler, until=lambda: good.num_output_tokens)
    assert seconds < 2 * CHUNK_SECONDS


def test_nor_for_long_ones_of_the_same_client_but_they_get_their_turn(scheduler):
    long = [queue(scheduler, "one", 1900, 1) for _ in range(100)]
    run(scheduler, 3)
    good = queue(scheduler, "one", 10, 10)
    _, seconds = run(scheduler, until=lambda: good.num_output_tokens)
    assert seconds < 2 * CHUNK_SECONDS
    first = next(one for one in long if not one.num_computed_tokens)
    for _ in range(1000):
        queue(scheduler, "one", 10, 1)
        step(scheduler)
        scheduler.ran(STEP_SECONDS)
        if first.finished:
            return
    pytest.fail("short prompts keep a long one out for ever")


def test_a_client_of_which_nothing_runs_gets_a_place_of_one_that_has_many(scheduler):
    """It would catch 128 endless streams of one client that keep everybody else out."""
    for _ in range(500):
        queue(scheduler, "bad", 4, 10_000)
    run(scheduler, 3)
    assert len(scheduler.running) == scheduler.max_num_seqs
    good = queue(scheduler, "good", 10, 10)
    run(scheduler, 3, until=lambda: good.num_output_tokens)
    assert good.num_output_tokens
    assert scheduler.num_preemptions == 1


def test_so_does_one_for_which_no_block_is_left():
    scheduler = make_scheduler(40, block_size=16, max_num_seqs=128, budget=2048)
    scheduler.shares = Shares()
    for _ in range(40):
        queue(scheduler, "bad", 15, 10_000)
    run(scheduler, 1)
    good = queue(scheduler, "good", 64, 10)
    run(scheduler, 1, until=lambda: good.num_output_tokens)
    assert good.num_output_tokens


def test_whoever_has_had_little_comes_before_who_has_had_much(scheduler):
    scheduler.max_num_seqs = 4
    for _ in range(100):
        queue(scheduler, "bad", 16, 100)
    run(scheduler, 1)
    mine = [queue(scheduler, "good", 16, 100) for _ in range(4)]
    run(scheduler, until=lambda: all(sequence.finished for sequence in mine))
    assert len([one for one in scheduler.waiting if one.caller.client == "bad"]) > 80


def test_an_urgent_prompt_waits_for_no_share(scheduler):
    queue(scheduler, "one", 4, 10_000)
    for _ in range(20):
        queue(scheduler, "one", 1900, 1)
    run(scheduler, 3)
    urgent = queue(scheduler, "two", 1900, 1, priority=-1)
    step(scheduler)
    assert urgent.num_output_tokens == 1


def test_nobody_waits_for_those_that_have_just_ended(scheduler):
    """It would catch a step of nothing, which ends the engine: texts to embed, and the last stream ends."""
    good = queue(scheduler, "good", 4, 40)
    run(scheduler, until=lambda: good.num_output_tokens > 10)
    for _ in range(300):
        queue(scheduler, "good", 200, 0)
    run(scheduler)
    assert good.finished


@pytest.mark.parametrize("seed", range(30))
def test_random_loads_of_several_clients_finish(seed):
    rng = random.Random(seed)  # noqa: S311 - test data
    longest, block_size = 40, rng.choice([1, 4, 8])
    budget, max_num_seqs = rng.choice([1, 3, 17, 200]), rng.choice([1, 2, 10])
    num_blocks = -(-longest // block_size) + rng.randrange(8)
    scheduler = make_scheduler(
        num_blocks, block_size=block_size, max_num_seqs=max_num_seqs, budget=budget, caching=seed % 2 == 0
    )
    scheduler.shares = Shares()
    arriving = [(rng.choice("abc"), rng.randrange(1, longest), rng.randrange(3)) for _ in range(40)]
    sequences = []
    for _ in range(20_000):
        if arriving and rng.random() < 0.3:
            client, prompt, priority = arriving.pop()
            most = rng.choice([0, rng.randrange(longest - prompt + 1)])
            for _ in range(rng.choice([1, 1, 5])):
                request = f"of {len(arriving)}"
                one = queue(scheduler, client, prompt, most, priority=priority, request=request)
                sequences.append(one)
        counts = step(scheduler)
        scheduler.ran(rng.random() ** 4)
        assert sum(count for _, count in counts) <= budget
        assert len(scheduler.running) <= max_num_seqs
        assert counts or not (scheduler.running or scheduler.waiting), "there is work, and none was scheduled"
        if rng.random() < 0.05 and (there := [*scheduler.waiting, *scheduler.running]):  # somebody leaves
            left = rng.choice(there)
            scheduler.finish([left])
            sequences = [one for one in sequences if one is not left]
        if not (arriving or scheduler.running or scheduler.waiting):
            break
    assert all(sequence.num_output_tokens == max(1, sequence.max_tokens) for sequence in sequences)
    assert scheduler.blocks.num_free_blocks == num_blocks
    assert not scheduler._served._accounts
