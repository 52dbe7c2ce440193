"""The command line of ``python -m armllm.smoke``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from armllm.checkpoint.scheme import SCHEMES
from armllm.smoke.passages import MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = ("float32", "bfloat16")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def positives(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def dtypes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(DTYPES)}")
    return names


def schemes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SCHEMES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(SCHEMES)}")
    return names


def refuse(reason: str, *, as_json: bool) -> None:
    """Print why nothing ran."""
    if as_json:
        print(json.dumps({"schema": 1, "ok": False, "reason": reason, "runs": []}))
    print(f"armllm.smoke: {reason}", file=sys.stderr)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m armllm.smoke",
        description="Compare every op with plain torch, and generate known texts with small trained models.",
        epilog="Without options: the longest text alone, then six requests in a batch with chunked prefill"
        " and preemption, in both dtypes; then the shortest text with weights of 8 and 4 bits, and with a KV"
        " cache of 8; then a model with experts, in 16, 8 and 4 bits.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, progress on stderr")
    parser.add_argument(
        "--dtype",
        type=dtypes,
        default=list(DTYPES),
        metavar="D[,D]",
        help="float32, bfloat16 (default: both)",
    )
    parser.add_argument(
        "--quantization",
        type=schemes,
        metavar="S[,S]",
        help=f"round the weights: {', '.join(SCHEMES)} (default: some of them, for the shortest text)",
    )
    parser.add_argument("--prompts", metavar="NAME[,NAME]", help="only these texts, in this order")
    parser.add_argument(
        "--batch", type=positives, metavar="N[,N]", help="batches of these sizes instead of the usual cases"
    )
    parser.add_argument("--max-num-batched-tokens", type=positive, metavar="N", help="tokens per step")
    parser.add_argument("--max-num-seqs", type=positive, metavar="N", help="sequences per step")
    parser.add_argument(
        "--kv-cache-dtype",
        choices=("auto", "int8"),
        help="type of the KV cache (default: auto, and int8 for the shortest text)",
    )
    parser.add_argument("--block-size", type=positive, metavar="N", help="tokens per block of the KV cache")
    parser.add_argument(
        "--num-gpu-blocks-override", type=positive, metavar="N", help="blocks in the KV cache"
    )
    parser.add_argument(
        "--model", type=Path, default=MODEL, metavar="DIR", help="a folder like the one in the package"
    )
    parser.add_argument(
        "--emulated",
        action="store_true",
        help="keep torch's matrix products to code that QEMU runs at its normal speed",
    )
    return parser.parse_args(arguments)
