"""The automaton finds what a search for each string finds, however the text is cut into pieces."""

from __future__ import annotations

import random

import pytest

from armllm.engine.stop_strings import START, StopStrings


def by_search(text, strings):
    """(end, string) of the first string that is complete; the longest of those that end together."""
    found = [(start + len(one), start, one) for one in strings if (start := text.find(one)) >= 0]
    if not found:
        return None
    end, _, string = min(found)
    return end, string


def begun(text, strings):
    """The longest end of a text that is the beginning of a string, and not all of it."""
    return max(
        length for one in strings for length in range(len(one)) if not length or text.endswith(one[:length])
    )


def search(text, strings, rng):
    """The same by the automaton, with the text in pieces."""
    automaton = StopStrings(strings)
    state, done = START, 0
    while done < len(text):
        size = rng.randint(1, 4)
        state, found = automaton.advance(state, text[done : done + size])
        if found is not None:
            return (done + found[0], found[1]), None
        done += size
    return None, automaton.num_begun(state)


@pytest.mark.parametrize("seed", range(20))
def test_strings_are_found_as_by_a_search_for_each(seed):
    rng = random.Random(seed)  # noqa: S311 - test data

    def word(most):
        return "".join(rng.choice("ab") for _ in range(rng.randint(1, most)))

    for _ in range(100):
        strings = [word(6) for _ in range(rng.randint(1, 5))]
        text = word(30)
        found, held_back = search(text, strings, rng)
        assert found == by_search(text, strings)
        if found is None:
            assert held_back == begun(text, strings)


def test_a_string_that_ends_where_it_may_not_is_passed_over():
    automaton = StopStrings(["ab", "bc", "abab"])
    state = automaton.skip(START, "xab")
    assert automaton.num_begun(state) in (1, 2)
    assert automaton.advance(state, "c") == (automaton.advance(START, "bc")[0], (1, "bc"))
    state = automaton.skip(START, "ab")
    assert automaton.advance(state, "ab")[1] == (2, "abab")


def test_a_step_does_not_look_at_every_string():
    """The work is counted in characters that are looked up, not in seconds."""
    lookups = 0

    class Counted(dict):
        def __contains__(self, key):
            nonlocal lookups
            lookups += 1
            return super().__contains__(key)

    automaton = StopStrings([f"{index:05d}" + "a" * 10 for index in range(1000)])
    automaton._next = [Counted(one) for one in automaton._next]
    state = START
    for _ in range(100):
        state, _ = automaton.advance(state, "0001")
    assert lookups < 100 * 4 * 3
