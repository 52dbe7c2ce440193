"""Layers with a state per sequence: beside plain torch, in any cuts and company, and what is refused."""

from __future__ import annotations

import pytest
import torch

from armllm import kernels
from armllm.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# heads, key heads, key_dim, value_dim
SHAPES = [(4, 2, 128, 128), (3, 1, 17, 33), (2, 2, 64, 16), (2, 1, 1, 1), (1, 1, 5, 100)]
LENGTHS = [1, 21, 0, 3, 8]


def sequences(lengths=LENGTHS, *, slots=6):
    torch.manual_seed(len(lengths))
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    return {"slots": torch.randperm(slots)[: len(lengths)], "query_start_loc": starts}


def problem(shape, dtype, *, rule="gated_delta_rule", slots=6):
    """A scan's arguments; query, key and value are parts of one matrix, as a layer has them."""
    heads, key_heads, key_dim, value_dim = shape
    tokens = sum(LENGTHS)
    torch.manual_seed(key_dim)
    sizes = [key_heads * key_dim, key_heads * key_dim, heads * value_dim]
    query, key, value = torch.randn(tokens, sum(sizes)).to(dtype).split(sizes, 1)
    query, key = (part.unflatten(1, (key_heads, key_dim)) for part in (query, key))
    value = value.unflatten(1, (heads, value_dim))
    states = torch.zeros(slots, heads, -(-value_dim // 16), key_dim, 16)
    states.view(slots, heads, -1, key_dim, 16).normal_()
    past = torch.arange(states.shape[2] * 16).view(-1, 1, 16) >= value_dim
    common = {
        "log_decay": -torch.rand(tokens, heads),
        "states": states.masked_fill_(past, 0.0).view(slots, -1),
        **sequences(slots=slots),
    }
    if rule == "selective_scan":
        own = {"x": value, "reads": query, "writes": key, "step": torch.rand(tokens, heads)}
        return {**own, "skip": torch.randn(heads), **common}
    return {"query": query, "key": key, "value": value, "strength": torch.rand(tokens, heads), **common}


def with_sequences(arguments, states):
    """The arguments as a function takes them."""
    names = ("states", "slots", "query_start_loc")
    own = {name: value for name, value in arguments.items() if name not in names}
    slots, starts = arguments["slots"], arguments["query_start_loc"]
    return own | {"sequences": kernels.SequenceStates(states, slots, starts)}


def run(rule, arguments, ops=kernels):
    """What it writes, and the states after it."""
    states = arguments["states"].clone()
    value = arguments["value" if "value" in arguments else "x"]
    out = torch.empty(value.shape, dtype=torch.float32)
    getattr(ops, rule)(out, **with_sequences(arguments, states))
    return out, states


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", ["gated_delta_rule", "selective_scan"])
def test_a_scan_computes_what_plain_torch_does(rule, shape, dtype):
    """Catches a head's key in another's place, a column behind the last one, a state of another slot."""
    arguments = problem(shape, dtype, rule=rule)
    for actual, wanted in zip(run(rule, arguments), run(rule, arguments, reference), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())


def part_of(arguments, first, last):
    """Some tokens of the second sequence alone."""
    per_token = {name for name, value in arguments.items() if len(value) == sum(LENGTHS)}
    begin = LENGTHS[0]
    return {
        name: value[begin + first : begin + last] if name in per_token else value
        for name, value in arguments.items()
    } | {"slots": arguments["slots"][1:2], "query_start_loc": torch.tensor([0, last - first]).int()}


@pytest.mark.parametrize("rule", ["gated_delta_rule", "selective_scan"])
def test_a_prompt_has_the_same_bits_in_any_cuts_and_company(rule):
    """So a preempted sequence repeats its answer, and a decode continues a prompt exactly."""
    arguments = problem((4, 2, 32, 40), torch.bfloat16, rule=rule)
    out, states = run(rule, arguments)
    state, pieces = arguments["states"], []
    for first, last in ((0, 1), (1, 9), (9, 12), (12, LENGTHS[1])):
        piece, state = run(rule, part_of(arguments, first, last) | {"states": state})
        pieces.append(piece)
    assert torch.equal(torch.cat(pieces), out[LENGTHS[0] : LENGTHS[0] + LENGTHS[1]])
    slot = arguments["slots"][1]
    assert torch.equal(state[slot], states[slot])


def convolution(dtype, *, channels=300, width=4):
    tokens = sum(LENGTHS)
    torch.manual_seed(width)
    return {
        "x": torch.randn(tokens, channels + 7).to(dtype)[:, :channels],
        "taps": torch.randn(width, channels),
        "bias": torch.randn(channels),
        "states": torch.randn(6, width - 1, channels).to(dtype),
        **sequences(),
    }


def convolve(arguments, ops=kernels):
    states, x = arguments["states"].clone(), arguments["x"]
    out = torch.empty(x.shape, dtype=x.dtype)
    ops.causal_conv(out, **with_sequences(arguments, states))
    return out, states


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "activated"), [(2, True), (4, True), (5, True), (16, True), (3, False)])
def test_a_convolution_computes_what_plain_torch_does(width, activated, dtype):
    """Prompts shorter than the taps keep a part of what was remembered."""
    arguments = convolution(dtype, width=width) | {"activated": activated}
    out, states = convolve(arguments)
    wanted, moved = convolve(arguments, reference)
    torch.testing.assert_close(out, wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    assert torch.equal(states, moved)


def test_a_convolution_has_the_same_bits_in_any_cuts():
    arguments = convolution(torch.bfloat16)
    out, states = convolve(arguments)
    state, pieces = arguments["states"], []
    for first, last in ((0, 1), (1, 3), (3, LENGTHS[1])):
        piece, state = convolve(part_of(arguments, first, last) | {"states": state})
        pieces.append(piece)
    assert torch.equal(torch.cat(pieces), out[LENGTHS[0] : LENGTHS[0] + LENGTHS[1]])
    assert torch.equal(state[arguments["slots"][1]], states[arguments["slots"][1]])


WRONG = [
    ("slots", torch.tensor([0, 1, 2, 3, 6]), r"slots\[4\] is 6, but states has 6 slots"),
    ("slots", torch.tensor([0, 1, 2, -1, 3]), r"slots\[3\] is -1"),
    ("slots", torch.tensor([0, 1, 2, 1, 3]), "slots has 1 twice"),
    ("query_start_loc", torch.tensor([1, 1, 22, 22, 25, 33]).int(), r"query_start_loc\[0\] is 1, not 0"),
    ("query_start_loc", torch.tensor([0, 5, 4, 22, 25, 33]).int(), r"query_start_loc\[2\] is 4, less"),
    (
        "query_start_loc",
        torch.tensor([0, 1, 22, 22, 25, 34]).int(),
        r"query_start_loc\[5\] is 34, but (x|query) has 33",
    ),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_sequences_that_do_not_fit_are_refused_before_anything_is_written(name, value, message):
    for call, arguments in (
        (convolve, convolution(torch.float32)),
        (lambda given: run("gated_delta_rule", given), problem((2, 1, 8, 8), torch.float32)),
    ):
        before = arguments["states"].clone()
        with pytest.raises(ValueError, match=message):
            call(arguments | {name: value})
        assert torch.equal(arguments["states"], before)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("key", torch.zeros(33, 2, 513), "key has"),
        ("states", torch.zeros(6, 64), "states has shape"),
        ("log_decay", torch.zeros(33, 4).double(), "log_decay"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(name, value, message):
    with pytest.raises(ValueError, match=message):
        run("gated_delta_rule", problem((4, 2, 8, 16), torch.float32) | {name: value})


def test_heads_that_share_no_key_evenly_are_refused():
    arguments = problem((4, 2, 8, 16), torch.float32)
    three = {name: arguments[name][:, :3].contiguous() for name in ("value", "log_decay", "strength")}
    with pytest.raises(ValueError, match="value has 3 heads, expected a multiple of query's 2"):
        run("gated_delta_rule", arguments | three)


def test_keys_and_taps_beyond_the_kernels_are_refused():
    large = torch.zeros(33, 1, 513)
    with pytest.raises(ValueError, match="key has key_dim 513, expected at most 512"):
        run("gated_delta_rule", problem((1, 1, 8, 16), torch.float32) | {"query": large, "key": large})
    with pytest.raises(ValueError, match="taps has 17 rows, expected 2 to 16"):
        convolve(convolution(torch.float32, width=17))
