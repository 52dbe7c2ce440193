"""The engine without a server: how long a batch takes, and how much it does in all."""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from armllm.bench.summary import percentile
from armllm.errors import RequestError
from armllm.progress import progress
from armllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from armllm.api.llm import LLM
    from armllm.bench.dataset import BenchRequest
    from armllm.outputs import RequestOutput


def measure_latency(
    llm: LLM, requests: Sequence[BenchRequest], *, warmups: int, repeats: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Seconds for one batch, over ``repeats`` runs after ``warmups``; keys as vLLM's.

    Raises RequestError for answers that the model's length would cut: it is not their time that is taken.
    """
    length = llm.llm_engine.runner.max_model_len
    longest = max((len(request.prompt_token_ids) + request.output_len for request in requests), default=0)
    if longest > length:
        raise RequestError(
            f"prompt and answer together have {longest} tokens, and the model has {length}:"
            " lower --input-len or --output-len"
        )
    if warmups < 0 or repeats < 1:
        raise RequestError("--num-iters must be at least 1 and --num-iters-warmup at least 0")
    seconds = []
    for number in range(warmups + repeats):
        elapsed, _ = _run(llm, requests)
        if number >= warmups:
            seconds.append(elapsed)
        progress(f"{number + 1}/{warmups + repeats}: {elapsed:.3f} s")
    return {
        "avg_latency": statistics.fmean(seconds),
        "latencies": seconds,
        "percentiles": {str(rank): percentile(seconds, rank) for rank in (10, 25, 50, 75, 90, 99)},
    }


def measure_throughput(llm: LLM, requests: Sequence[BenchRequest]) -> dict[str, Any]:
    """All requests at once, as fast as the engine schedules them; keys as vLLM's.

    Tokens are counted in the answers: a sequence that reaches the model's length ends before ``output_len``.
    """
    elapsed, answers = _run(llm, requests, show=progress.visible and sys.stderr.isatty())
    inputs = sum(len(answer.prompt_token_ids) for answer in answers)
    outputs = sum(len(completion.token_ids) for answer in answers for completion in answer.outputs)
    return {
        "elapsed_time": elapsed,
        "num_requests": len(requests),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "total_num_tokens": inputs + outputs,
        "requests_per_second": len(requests) / elapsed,
        "tokens_per_second": (inputs + outputs) / elapsed,
        "output_tokens_per_second": outputs / elapsed,
    }


def _run(
    llm: LLM, requests: Sequence[BenchRequest], *, show: bool = False
) -> tuple[float, list[RequestOutput]]:
    """Return the seconds that the batch took, and its answers."""
    params = [
        SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=request.output_len, detokenize=False)
        for request in requests
    ]
    prompts = [{"prompt_token_ids": request.prompt_token_ids} for request in requests]
    started = time.perf_counter()
    answers = llm.generate(prompts, params, use_tqdm=show)
    return time.perf_counter() - started, answers
