"""Runs side by side: the figures of result files in a table and in one plot, relative to the first run."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from armllm.checkpoint import json_file
from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

HIGHER = {
    "requests_per_second": "requests/s",
    "request_throughput": "requests/s",
    "output_tokens_per_second": "output tokens/s",
    "output_throughput": "output tokens/s",
    "tokens_per_second": "total tokens/s",
    "total_token_throughput": "total tokens/s",
}
MINOR = re.compile(r"p\d|median|total tokens|requests/s|mean (?:ITL|E2EL)")  # the table has them
SERIES = re.compile(r"(mean|median|p[\d.]+)_(ttft|tpot|itl|e2el)_ms")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A row: one figure of every run, None where one does not have it. higher: whether more is better."""

    label: str
    values: list[float | None]
    higher: bool

    def ratio(self, run: int) -> float | None:
        """The value of a run divided by the first run's."""
        first, value = self.values[0], self.values[run]
        return value / first if first and value is not None else None


def compare_results(paths: Sequence[Path]) -> list[Figure]:
    """The figures of result files of `armllm bench`; RequestError if one is none, or if they share none."""
    runs = [dict(_figures(path)) for path in paths]
    labels = list(dict.fromkeys(label for run in runs for label in run))
    if not set(runs[0]).intersection(*runs[1:]):
        raise RequestError(f"{', '.join(map(str, paths))} have no figure in common")
    return [
        Figure(
            label,
            [run[label][0] if label in run else None for run in runs],
            next(run[label][1] for run in runs if label in run),
        )
        for label in labels
    ]


def _figures(path: Path) -> Iterator[tuple[str, tuple[float, bool]]]:
    """Label, value and whether more is better."""
    try:
        document = json_file.parse(path.read_bytes())
        results = document.get("results", [document])
        found = [figure for result in results for figure in _of_result(result)]
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, AttributeError):
        found = []
    if not found:
        raise RequestError(
            f"{path} is no result of `armllm bench`: write one with --output-json or --save-result"
        )
    yield from found


def _of_result(result: dict[str, Any]) -> Iterator[tuple[str, tuple[float, bool]]]:
    rate = result.get("request_rate")
    at = "" if rate is None else ", all at once" if rate == "inf" else f" at {rate:g} req/s"
    for key, value in result.items():
        if key in HIGHER and _is_number(value):
            yield f"{HIGHER[key]}{at}", (value, True)
        elif (match := SERIES.fullmatch(key)) and _is_number(value):
            yield f"{match[1]} {match[2].upper()} (ms){at}", (value, False)
    if _is_number(result.get("avg_latency")):
        yield "mean latency (s)", (result["avg_latency"], False)
        for rank, value in result.get("percentiles", {}).items():
            yield f"p{rank} latency (s)", (value, False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def as_table(figures: Sequence[Figure], names: Sequence[str]) -> str:
    """A line per figure; behind each later run the change from the first, with ``+`` for better."""
    rows = [["", *names]]
    for figure in figures:
        cells = [figure.label]
        for run, value in enumerate(figure.values):
            ratio = figure.ratio(run) if run else None
            change = (
                "" if ratio is None else f" ({100 * (ratio - 1):+.1f}%, {_verdict(ratio, figure.higher)})"
            )
            cells.append(("none" if value is None else f"{value:.4g}") + change)
        rows.append(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _verdict(ratio: float, higher: bool) -> str:
    if abs(ratio - 1) < 0.0005:
        return "same"
    return "better" if (ratio > 1) == higher else "worse"


def draw_comparison(figures: Sequence[Figure], names: Sequence[str], path: Path) -> None:
    """Bars of every later run relative to the first, as .png, .svg or .pdf; figures that all runs have.

    It leaves out `MINOR`, so that a reader sees at once what changed.
    """
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415 - the table needs no matplotlib

    shown = [
        one
        for one in figures
        if None not in [one.ratio(run) for run in range(len(names))] and not MINOR.match(one.label)
    ]
    if not shown:
        raise RequestError(
            "no figure that all runs have is above zero in the first: there is nothing to plot"
        )
    canvas = Canvas(figsize=(9, 1.4 + len(shown) * (0.2 + 0.22 * (len(names) - 1))), layout="constrained")
    axes = canvas.add_subplot()
    height = 0.8 / (len(names) - 1)
    for run in range(1, len(names)):
        ratios = [100 * (one.ratio(run) or 0.0) for one in shown]
        rows = [row + (run - len(names) / 2) * height for row in range(len(shown))]
        bars = axes.barh(rows, ratios, height, label=names[run])
        values = [
            f"{one.values[run]:.4g}, {_verdict(ratio / 100, one.higher)}"
            for one, ratio in zip(shown, ratios, strict=True)
        ]
        axes.bar_label(bars, values, label_type="center", fontsize=8, color="white", weight="bold")
    axes.axvline(100, color="black", linewidth=1, zorder=3, label=f"{names[0]} = 100 %")
    axes.set_yticks(
        range(len(shown)), [f"{one.label}\n{one.values[0]:.4g} in {names[0]}" for one in shown], fontsize=8
    )
    axes.margins(y=0.02)
    axes.invert_yaxis()
    axes.set_xlabel(f"percent of {names[0]}")
    canvas.legend(loc="outside upper center", ncols=min(3, len(names)))
    try:
        canvas.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise RequestError(f"--plot {path}: {str(error).splitlines()[0]}") from None
