"""Count the instructions of one layer of experts, all in one call and one product after the other.

    tools/count_moe.py                          the sizes of the smoke model with experts
    tools/count_moe.py --form int8 --tokens 4   other weights, other numbers of tokens (may be repeated)

On this machine and one thread, Python and torch included: the process is single-stepped (ptrace), which takes
a minute per million instructions. Needs ziglang.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from armllm.layers.moe import Experts

HIDDEN, WIDTH, EXPERTS, PER_TOKEN = 128, 64, 6, 2
STEPPER = r"""
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
/* Runs a program; between its SIGUSR1 and SIGUSR2 it counts instructions, and prints how many there were. */
int main(int argc, char** argv) {
  const pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    execvp(argv[1], argv + 1);
    _exit(127);
  }
  int status = 0, stepping = 0, deliver = 0;
  long long count = 0;
  waitpid(child, &status, 0);
  for (;;) {
    ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, child, 0, deliver);
    deliver = 0;
    if (waitpid(child, &status, 0) < 0 || WIFEXITED(status) || WIFSIGNALED(status)) break;
    const int stopped = WSTOPSIG(status);
    if (stopped == SIGTRAP) {
      count += stepping;
    } else if (stopped == SIGUSR1) {
      stepping = 1;
      count = 0;
    } else if (stopped == SIGUSR2) {
      stepping = 0;
      printf("%lld\n", count);
      fflush(stdout);
    } else {
      deliver = stopped;
    }
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
"""


def layers(form: str) -> tuple[Experts, Experts]:
    """The same experts, separate and fused, with random weights."""
    import torch  # noqa: PLC0415 - the process that counts needs none of it

    from armllm import kernels  # noqa: PLC0415
    from armllm.checkpoint.scheme import scheme_for  # noqa: PLC0415
    from armllm.layers.activation import gated  # noqa: PLC0415
    from armllm.layers.linear import QuantizedLinear, dense  # noqa: PLC0415
    from armllm.layers.moe import FusedExperts, SeparateExperts  # noqa: PLC0415
    from armllm.quant.rounding import from_float  # noqa: PLC0415

    torch.manual_seed(0)
    matrices = [
        [torch.randn(rows, inputs) / inputs**0.5 for _ in range(EXPERTS)]
        for rows, inputs in ((2 * WIDTH, HIDDEN), (HIDDEN, WIDTH))
    ]
    if form == "bfloat16":
        up, down = ([matrix.bfloat16() for matrix in one] for one in matrices)
        separate = SeparateExperts([dense(w) for w in up], [dense(w) for w in down], activation=gated("silu"))
        return separate, FusedExperts(kernels.join_experts(up, down), "silu")
    ups, downs = (
        [QuantizedLinear(from_float(matrix, scheme_for(form, matrix.shape[1]))) for matrix in one]
        for one in matrices
    )
    joined = kernels.join_experts([one.weight for one in ups], [one.weight for one in downs])
    return SeparateExperts(list(ups), list(downs), activation=gated("silu")), FusedExperts(joined, "silu")


def call(form: str, tokens: int) -> None:
    """Call both layers between signals, each after an empty pair of them."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    x = torch.randn(tokens, HIDDEN).bfloat16()
    weights, ids = torch.rand(tokens, EXPERTS).topk(PER_TOKEN)
    me = os.getpid()
    with torch.inference_mode():
        for layer in layers(form):
            for _ in range(3):
                layer(x, ids, weights)
            os.kill(me, signal.SIGUSR1)
            os.kill(me, signal.SIGUSR2)
            os.kill(me, signal.SIGUSR1)
            layer(x, ids, weights)
            os.kill(me, signal.SIGUSR2)


def main() -> None:
    """Compile the stepper, run this file under it, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--form", action="append", metavar="NAME", help="bfloat16 or a quantization")
    parser.add_argument("--tokens", action="append", type=int, metavar="N", help="tokens of a call")
    parser.add_argument("--call", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    forms, sizes = options.form or ["int4-g32", "bfloat16"], options.tokens or [1, 8, 64]
    if options.call:
        call(forms[0], sizes[0])
        return
    with tempfile.TemporaryDirectory(prefix="count-moe-") as temporary:
        source, stepper = Path(temporary) / "step.c", Path(temporary) / "step"
        source.write_text(STEPPER, encoding="utf-8")
        subprocess.run([sys.executable, "-m", "ziglang", "cc", "-O1", source, "-o", stepper], check=True)
        print("| weights | tokens | separate | fused | ratio |\n| --- | ---: | ---: | ---: | ---: |")
        for form in forms:
            for tokens in sizes:
                command = [stepper, sys.executable, __file__, "--call", "--form", form, "--tokens", tokens]
                done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
                before, separate, after, fused = (int(line) for line in done.stdout.split())
                separate, fused = separate - before, fused - after
                counts = f"{separate / 1e3:.0f} | {fused / 1e3:.0f} | {fused / separate:.2f}"
                print(f"| {form} | {tokens} | {counts} |", flush=True)


if __name__ == "__main__":
    main()
