#!/usr/bin/env python3
"""vLLM with and without the kernels of armllm, which take turns on one thread: prints Markdown.

    python tools/bench_vllm_plugin.py VENV/bin/python MODEL --turns 2
    python tools/bench_vllm_plugin.py VENV/bin/python MODEL --parts none dense -dense all

``VENV`` has a CPU build of vLLM and armllm. Figures are CPU milliseconds, which other work changes little,
and output tokens per second: of a decode step of 1, 8 and 32 sequences, and of a prompt of 384 tokens. Each
is the median of ``--repeats`` in a process, and of ``--turns`` processes.

The last table compares greedy answers to the lines of ``--prompts`` with the first column's: how many tokens
are equal before the first that differs in an answer, and how far log-probabilities lie apart until there. Its
last row names the functions of armllm that vLLM called. It is an error if parts are wanted and vLLM did not
call their functions, or called any with ``none``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from armllm.vllm_plugin import wanted_parts

PROGRAM = """
import json, statistics, sys, time
from vllm import LLM, SamplingParams

def measure(llm, count, length, tokens, repeats):
    rows = [[5 + (37 * i + 11 * j) % 3000 for j in range(length)] for i in range(count)]
    prompts = [{"prompt_token_ids": row} for row in rows]
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    cpu, speed = [], []
    for _ in range(repeats):
        llm.reset_prefix_cache()
        start, begin = time.process_time(), time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        cpu.append((time.process_time() - start) / tokens * 1000)
        speed.append(count * tokens / (time.perf_counter() - begin))
    return statistics.median(cpu), statistics.median(speed)

def answer(llm, prompts):
    sampling = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0, logprobs=20)
    answers = [request.outputs[0] for request in llm.generate(prompts, sampling, use_tqdm=False)]
    return [
        [
            (token, {known: entry.logprob for known, entry in step.items()})
            for token, step in zip(one.token_ids, one.logprobs)
        ]
        for one in answers
    ]

def called(llm):
    names = set()
    def note(frame, event, function):
        if event == "c_call" and str(getattr(function, "__module__", "")).startswith("armllm."):
            names.add(function.__name__)
    sys.setprofile(note)
    try:
        measure(llm, 1, 32, 4, 1)
    finally:
        sys.setprofile(None)
    return sorted(names)

def main():
    repeats, eager, dtype, prompts = json.loads(sys.argv[2])
    llm = LLM(sys.argv[1], dtype=dtype, max_model_len=512, enforce_eager=eager)
    measure(llm, 1, 32, 4, 1)
    plugin = sys.modules.get("armllm.vllm_plugin")
    reasons = plugin and {status.part: status.reason for status in plugin.activate()}
    names = called(llm)
    cases = ((1, 32, 24), (8, 32, 24), (32, 32, 24), (1, 384, 1))
    figures = [measure(llm, *case, repeats) for case in cases]
    answers = answer(llm, prompts)
    print("RESULT", json.dumps({"reasons": reasons, "called": names, "figures": figures, "answers": answers}))

if __name__ == "__main__":
    main()
"""
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
}
CASES = ("step of 1 sequence", "step of 8 sequences", "step of 32 sequences", "prompt of 384 tokens")
AGREEMENT = ("equal tokens", "log-probabilities differ by at most")
# Prompts where no file has others.
PROMPTS = [{"prompt_token_ids": [5 + (37 * i + 11 * j) % 3000 for j in range(8 + 8 * i)]} for i in range(5)]
# The end of a traceback, with the name of a process before it or none.
ERROR = re.compile(r"^(?:\[\w+\]: |\(.+?\) )?((?:\w+\.)*\w+(?:Error|Exception)\b.*)$", re.MULTILINE)
# The functions that a part calls, any of them.
FUNCTIONS = {
    "int4": {"matmul_w4a8", "matmul_w8a8"},
    "int8": {"matmul_w8a8"},
    "dense": {"linear", "panel_linear"},
    "moe": {"moe"},
    "attention": {"paged_attention"},
    "norm": {"rms_norm", "fused_add_rms_norm"},
    "layer_norm": {"layer_norm"},
    "activation": {"silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "gelu", "gelu_tanh", "quick_gelu"},
    "rotary": {"rotary_embedding"},
}


@dataclasses.dataclass(frozen=True)
class Result:
    """What one process measured. reasons: why each part is not active; None if vLLM did not load the plugin.

    called: functions of armllm. figures: of each case CPU milliseconds and tokens per second. answers: for
    each prompt tokens, each with the log-probabilities of the likeliest.
    """

    reasons: dict[str, str] | None
    called: list[str]
    figures: list[tuple[float, float]]
    answers: list[list[tuple[int, dict[str, float]]]]


def problem(parts: str, result: Result) -> str:
    """Why these are not figures of what ``parts``, a value of ARMLLM_VLLM, asks for; or ""."""
    if parts == "none":
        return f"vLLM called {', '.join(result.called)} of armllm" if result.called else ""
    if result.reasons is None:
        return "vLLM did not load the plugin: is armllm installed in this environment, and not as a link?"
    for part in parts.split(","):
        if part in FUNCTIONS and not FUNCTIONS[part].intersection(result.called):
            why = result.reasons.get(part) or "this model does not need it"
            return f"vLLM did not use the part {part}: {why}"
    if not result.called:
        reasons = (f"{part}: {reason}" for part, reason in result.reasons.items() if reason)
        return f"vLLM called nothing of armllm: {'; '.join(reasons) or 'this model needs no part'}"
    return ""


def agreement(one: Result, other: Result) -> tuple[str, str]:
    """How many tokens are equal, and how far their log-probabilities lie apart, in the words of the table.

    In each answer it ends with the first token that differs: after it, contexts do.
    """
    equal, apart = 0, 0.0
    for answer, second in zip(one.answers, other.answers, strict=True):
        for (token, known), (token_2, known_2) in zip(answer, second, strict=True):
            shared = known.keys() & known_2.keys()
            apart = max([apart, *(abs(known[each] - known_2[each]) for each in shared)])
            if token != token_2:
                apart = apart if {str(token), str(token_2)} <= shared else math.inf
                break
            equal += 1
    return f"{equal} of {sum(map(len, one.answers))}", f"{apart:.4f}"


def run(arguments: argparse.Namespace, parts: str) -> Result:
    """Measure in a new process; where it fails, exit with its error and a file that has the rest."""
    settings = [arguments.repeats, arguments.enforce_eager, arguments.dtype, arguments.prompts]
    what = f"ARMLLM_VLLM={parts} of {arguments.python}"
    try:
        done = subprocess.run(
            [arguments.python, "-c", PROGRAM, arguments.model, json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=os.environ | ENVIRONMENT | {"ARMLLM_VLLM": parts},
        )
    except OSError as error:
        sys.exit(f"{arguments.python}: {error.strerror}; name the interpreter of an environment with vLLM")
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        with tempfile.NamedTemporaryFile("w", prefix="bench-vllm-", suffix=".log", delete=False) as log:
            log.write(done.stdout)
        errors = ERROR.findall(done.stdout) or [f"ended with status {done.returncode}"]
        sys.exit(f"{what}: {errors[-1]:.300}\nits output: {log.name}")
    result = Result(**json.loads(found[0].removeprefix("RESULT ")))
    if wrong := problem(parts, result):
        sys.exit(f"{what}: {wrong}")
    return result


def parts_of(text: str) -> str:
    """The same text, if it is a value of ARMLLM_VLLM."""
    try:
        wanted_parts(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text.strip()


def model_of(text: str) -> str:
    """The same text, if it names a folder with a config.json."""
    if not Path(text, "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} has no config.json; name the folder of a checkpoint")
    return text


def lines_of(text: str) -> list[str]:
    """The lines of a file that have text."""
    try:
        lines = [line for line in Path(text).read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    if not lines:
        raise argparse.ArgumentTypeError(f"{text} has no lines; write a prompt on each")
    return lines


def count_of(text: str) -> int:
    """A number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def arguments_of(argv: list[str]) -> argparse.Namespace:
    """Read the command line. argparse takes ``-dense`` for an option, unless a space is before it."""
    argv = [f" {text}" if re.match("-(?!h$)[a-z]", text) else text for text in argv]
    parser = argparse.ArgumentParser(description="Measure vLLM with and without the kernels of armllm.")
    parser.add_argument("python", help="interpreter of an environment with vLLM and armllm")
    parser.add_argument("model", type=model_of, help="checkpoint folder")
    parser.add_argument(
        "--parts",
        nargs="+",
        type=parts_of,
        default=["none", "all"],
        metavar="PARTS",
        help="values of ARMLLM_VLLM",
    )
    parser.add_argument("--dtype", default="bfloat16", help="vLLM's option (default: bfloat16)")
    parser.add_argument(
        "--prompts",
        type=lines_of,
        default=PROMPTS,
        metavar="FILE",
        help="a prompt in each line, for the comparison of tokens (default: five rows of tokens)",
    )
    parser.add_argument("--enforce-eager", action="store_true", help="vLLM without torch's compiler")
    parser.add_argument(
        "--repeats", type=count_of, default=3, metavar="N", help="how often a process measures"
    )
    parser.add_argument("--turns", type=count_of, default=1, metavar="N", help="processes for each of PARTS")
    return parser.parse_args(argv)


def head_of(name: str, parts: list[str]) -> str:
    """The first two lines of a table."""
    return f"| {name} | {' | '.join(parts)} |\n| --- |{' ---: |' * len(parts)}"


def main() -> None:
    """Measure one after the other, and print tables."""
    arguments = arguments_of(sys.argv[1:])
    turns = [[run(arguments, parts) for parts in arguments.parts] for _ in range(arguments.turns)]
    for column, unit in enumerate(("CPU ms", "tokens/s")):
        print(head_of(unit, arguments.parts))
        for row, name in enumerate(CASES):
            measured = zip(*([result.figures[row][column] for result in turn] for turn in turns), strict=True)
            print(f"| {name} | {' | '.join(f'{statistics.median(each):.1f}' for each in measured)} |")
    print(head_of("answers", arguments.parts))
    shown = [agreement(turns[0][0], result) for result in turns[0]]
    for name, cells in zip(AGREEMENT, zip(*shown, strict=True), strict=True):
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"| called | {' | '.join(', '.join(result.called) or '-' for result in turns[0])} |")


if __name__ == "__main__":
    main()
