"""From single requests to the figures that are compared; names are vLLM's."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(slots=True)
class Outcome:
    """One request as its client saw it; times in seconds.

    started: on any clock. ttft: until the first token. intervals: between the events after it. latency: until
    the end. ``error`` is set where there was no answer.
    """

    prompt_tokens: int
    output_tokens: int = 0
    ttft: float = 0.0
    intervals: list[float] = dataclasses.field(default_factory=list)
    latency: float = 0.0
    error: str | None = None
    started: float = 0.0

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first; None for answers of one token."""
        if self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)


def percentile(values: Sequence[float], rank: float) -> float:
    """The value below which ``rank`` percent lie, with linear interpolation."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * rank / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def peak_tokens_per_second(outcomes: Sequence[Outcome]) -> float:
    """The most tokens in one whole second since the first request; an event has its share of the answer."""
    begin = min((outcome.started for outcome in outcomes), default=0.0)
    seconds: defaultdict[int, float] = defaultdict(float)
    for outcome in outcomes:
        times = itertools.accumulate(outcome.intervals, initial=outcome.started + outcome.ttft)
        share = outcome.output_tokens / (len(outcome.intervals) + 1)
        for time in times:
            seconds[int(time - begin)] += share
    return max(seconds.values(), default=0.0)


def peak_concurrency(outcomes: Sequence[Outcome]) -> int:
    """The most requests that ran at the same time."""
    changes = [(outcome.started, 1) for outcome in outcomes]
    changes += [(outcome.started + outcome.latency, -1) for outcome in outcomes]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)


METRICS = ("ttft", "tpot", "itl", "e2el")


def summarize(
    outcomes: Sequence[Outcome],
    seconds: float,
    rate: float,
    *,
    metrics: Sequence[str] = METRICS,
    percentiles: Sequence[float] = (99,),
    max_concurrency: int | None = None,
) -> dict[str, Any]:
    """Figures of one run at one request rate (requests per second; inf is all at once).

    max_concurrency: how many requests were allowed to run at a time; None: all.
    Of each of ``metrics`` the mean, the median and the ``percentiles`` (0 to 100), in milliseconds; None
    where nothing could be measured, as between the events of answers that come in one.
    """
    good = [outcome for outcome in outcomes if outcome.error is None]
    inputs = sum(outcome.prompt_tokens for outcome in good)
    outputs = sum(outcome.output_tokens for outcome in good)
    result: dict[str, Any] = {
        "request_rate": rate if rate != float("inf") else "inf",
        "max_concurrency": max_concurrency,
        "duration": seconds,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / seconds,
        "output_throughput": outputs / seconds,
        "max_output_tokens_per_s": peak_tokens_per_second(good),
        "max_concurrent_requests": peak_concurrency(good),
        "total_token_throughput": (inputs + outputs) / seconds,
    }
    series = {
        "ttft": [outcome.ttft for outcome in good],
        "tpot": [outcome.tpot for outcome in good if outcome.tpot is not None],
        "itl": [interval for outcome in good for interval in outcome.intervals],
        "e2el": [outcome.latency for outcome in good],
    }
    for name in metrics:
        milliseconds = [1000 * value for value in series[name]]
        result[f"mean_{name}_ms"] = statistics.fmean(milliseconds) if milliseconds else None
        result[f"median_{name}_ms"] = statistics.median(milliseconds) if milliseconds else None
        for rank in percentiles:
            result[f"p{rank:g}_{name}_ms"] = percentile(milliseconds, rank) if milliseconds else None
    return result


WIDTH = 50
HEADINGS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


def _line(label: str, value: float | str | None) -> str:
    text = "none" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<40} {text:<9}".rstrip()


def as_text(result: dict[str, Any]) -> str:
    """The figures for people and for scripts that read vLLM's report: its lines, in its order."""
    limit, rate = result["max_concurrency"], result["request_rate"]
    lines = [
        " Serving Benchmark Result ".center(WIDTH, "="),
        _line("Successful requests:", result["completed"]),
        _line("Failed requests:", result["failed"]),
        *([_line("Maximum request concurrency:", limit)] if limit is not None else []),
        *([_line("Request rate configured (RPS):", rate)] if rate != "inf" else []),
        _line("Benchmark duration (s):", result["duration"]),
        _line("Total input tokens:", result["total_input_tokens"]),
        _line("Total generated tokens:", result["total_output_tokens"]),
        _line("Request throughput (req/s):", result["request_throughput"]),
        _line("Output token throughput (tok/s):", result["output_throughput"]),
        _line("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"]),
        _line("Peak concurrent requests:", float(result["max_concurrent_requests"])),
        _line("Total token throughput (tok/s):", result["total_token_throughput"]),
    ]
    for name, (short, heading) in HEADINGS.items():
        end = f"_{name}_ms"
        found = [(key.removesuffix(end), value) for key, value in result.items() if key.endswith(end)]
        if found:
            lines.append(heading.center(WIDTH, "-"))
            lines += [
                _line(f"{kind.capitalize()} {short} (ms):", milliseconds) for kind, milliseconds in found
            ]
    return "\n".join([*lines, "=" * WIDTH])
