"""Print the time that sampling takes: the kernel beside the same choice in torch, with one thread.

    python tools/profile_sampler.py

Torch sorts each row and draws from the cumulative sums, which is what samplers of LLM engines do without a
kernel. Logits are as flat as a model's at a place where it is unsure: a normal distribution of deviation 3.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from armllm import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top_k 20, top_p 0.8": {"top_k": 20, "top_p": 0.8},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
}
ROUNDS = 7


def metadata_of(rows: int, top_k: int = 0, top_p: float = 1, min_p: float = 0) -> kernels.SamplingMetadata:
    """The same for all rows."""
    return kernels.SamplingMetadata(
        temperatures=torch.full((rows,), 0.7),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p, dtype=torch.float64),
        min_p=torch.full((rows,), min_p, dtype=torch.float64),
        uniforms=torch.full((rows,), 0.4, dtype=torch.float64),
    )


def sorted_sample(token_ids: torch.Tensor, logits: torch.Tensor, metadata: kernels.SamplingMetadata) -> None:
    """The same in torch, all rows at once."""
    scaled = logits / metadata.temperatures.unsqueeze(1)
    falling, order = scaled.sort(descending=True)
    probabilities = falling.softmax(-1)
    top_k = torch.where(metadata.top_k > 0, metadata.top_k, logits.shape[1])
    left = torch.arange(logits.shape[1]) < top_k.unsqueeze(1)
    left &= probabilities >= metadata.min_p.unsqueeze(1) * probabilities[:, :1]
    nucleus = probabilities * left
    before = nucleus.cumsum(-1) - nucleus
    nucleus = torch.where(before < metadata.top_p.unsqueeze(1) * nucleus.sum(-1, keepdim=True), nucleus, 0)
    sums = nucleus.cumsum(-1)
    place = (sums <= metadata.uniforms.unsqueeze(1) * sums[:, -1:]).sum(-1, keepdim=True)
    token_ids.copy_(order.gather(1, place).squeeze(1))


def milliseconds(
    function: Callable[..., None], logits: torch.Tensor, metadata: kernels.SamplingMetadata
) -> float:
    """The median CPU time of a call."""
    token_ids, times = torch.empty(len(logits), dtype=torch.int64), []
    for _ in range(ROUNDS):
        started = time.thread_time()
        function(token_ids, logits, metadata)
        times.append(time.thread_time() - started)
    return 1000 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab-size", type=int, default=151_936)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernels.set_num_threads(1)
    print("| rows | choice | kernel, ms | torch, ms |\n| ---: | --- | ---: | ---: |")
    with torch.inference_mode():
        for rows in (1, 32):
            logits = 3 * torch.randn(rows, arguments.vocab_size, generator=torch.Generator().manual_seed(1))
            for name, way in WAYS.items():
                metadata = metadata_of(rows, **way)
                kernel, plain = (
                    milliseconds(function, logits, metadata) for function in (kernels.sample, sorted_sample)
                )
                print(f"| {rows} | {name} | {kernel:.2f} | {plain:.1f} |", flush=True)


if __name__ == "__main__":
    main()
