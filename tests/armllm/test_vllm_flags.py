"""Every flag of vLLM's commands is known: it works, is neutral, or is refused with a reason of its own."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import typer.main

from armllm.cli import ClickException, app, main
from armllm.errors import RequestError
from armllm.smoke.passages import MODEL

COMMANDS = {
    "serve": (["serve"], [str(MODEL)]),
    "bench-serve": (["bench", "serve"], []),
    "throughput": (["bench", "throughput"], ["--model", str(MODEL)]),
    "latency": (["bench", "latency"], ["--model", str(MODEL)]),
    "run-batch": (["run-batch"], ["-i", "in", "-o", "out", "--model", str(MODEL)]),
    "chat": (["chat"], []),
    "complete": (["complete"], []),
}
FLAGS = [
    line.split(maxsplit=2)
    for line in Path(__file__).with_name("vllm_flags.txt").read_text().splitlines()
    if not line.startswith("#")
]


@functools.cache
def click_command(name):
    found = typer.main.get_command(app)
    for part in COMMANDS[name][0]:
        found = found.get_command(None, part)
    return found


def answer(command, *arguments):
    """What the command says of the arguments; empty: it takes them."""
    try:
        with click_command(command).make_context(command, [*COMMANDS[command][1], *arguments]):
            return ""
    except (RequestError, ClickException) as error:
        return getattr(error, "message", None) or str(error)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_known_and_its_default_is_accepted(command):
    """It would catch a flag of a newer release, and a guide that writes a default."""
    flags = [(flag, kind) for commands, flag, kind in FLAGS if command in commands.split(",")]
    assert len(flags) > 5
    for flag, kind in flags:
        default = kind.removeprefix("=").strip()
        if kind == "switch":
            said = answer(command, flag)
            assert not said or " can only be " in said or " must be " in said, (flag, said)
        elif default:
            assert not answer(command, flag, default), (flag, default)
        else:
            assert "No such option" not in answer(command, flag, "7"), flag


def test_both_ways_to_write_no_mean_the_same():
    """vLLM 0.33 pairs --enable-x with --disable-x, where older ones have --no-enable-x."""
    assert not answer("serve", "--disable-prefix-caching")
    assert not answer("serve", "--enable-uvicorn-access-log")
    assert not answer("serve", "--disable_expert_parallel")
    assert not answer("serve", "--enable-sliding-window")
    for flag in ("--disable-chunked-prefill", "--no-enable-chunked-prefill"):
        assert "--enable-chunked-prefill can only be True here, not False" in answer("serve", flag)
    assert "--disable-sliding-window can only be False" in answer("serve", "--disable-sliding-window")
    assert "No such option: --disable-florp" in answer("serve", "--disable-florp")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("serve", ["--dtype=bfloat16"]),
        ("serve", ["-tp=2", "--distributed-executor-backend", "mp"]),
        ("serve", ["--tensor-parallel-size", "2", "-dp=1", "-pp=1", "--block-size", "128", "-O3"]),
        ("serve", ["--max-num-batched-tokens", "2k", "--max-num-seqs=128", "--max-model-len", "auto"]),
        ("serve", ["--trust-remote-code", "--disable-log-requests", "--enforce-eager", "--swap-space=4"]),
        ("latency", ["--load-format", "dummy", "--input-len=32", "--output-len", "4", "--batch-size=1"]),
        ("throughput", ["--backend", "vllm", "--dataset-name=random", "--num-prompts", "10"]),
        ("bench-serve", ["--backend=vllm", "--endpoint", "/v1/completions", "--request-rate", "inf"]),
        ("run-batch", ["--enable-lora", "--lora-modules", "a=b", "c=d", "--max-loras", "2"]),
    ],
)
def test_command_lines_of_vllms_guides_are_taken(command, arguments):
    assert not answer(command, *arguments)


def test_values_of_short_flags_arrive():
    """It would catch ``-tp=2`` that is read as 1."""
    with click_command("serve").make_context("serve", ["model", "-tp=2", "-pp=4", "-dp=3"]) as context:
        assert context.params["tensor_parallel_size"] == 2
        assert context.params["pipeline_parallel_size"] == 4
        assert context.params["data_parallel_size"] == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["launch", "render"], "`armllm serve` has all parts"),
        (["snapshot", "create"], "an engine is not stored"),
        (["bench", "sweep", "serve"], "`armllm bench suite` runs a file of cases"),
        (["bench", "startup"], "armllm:load_seconds"),
        (["florp"], "No such command"),
    ],
)
def test_commands_that_only_vllm_has_say_why(capsys, line, words):
    assert main(line) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1
