"""Every flag of vLLM's commands is known: it works, is neutral, or is refused with a reason of its own."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import typer.main

from armllm.cli import ClickException, app
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
        found = found.commands[part]
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
