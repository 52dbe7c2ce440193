"""Curves over request rates: how much throughput costs in waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

POINTS_PER_INCH = 72
CURVES = {"ttft": "mean time to first token (ms)", "tpot": "mean time per output token (ms)"}


def draw_plot(results: Sequence[dict[str, Any]], prefix: Path, title: str) -> list[Path]:
    """Write PREFIX-ttft and PREFIX-tpot as .png and .svg, from what `summarize` gives; return the paths."""
    written = []
    for name, label in CURVES.items():
        points = [result for result in results if result[f"mean_{name}_ms"] is not None]
        if not points:
            continue
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.add_subplot()
        x = [result[f"mean_{name}_ms"] for result in points]
        y = [result["output_throughput"] for result in points]
        axes.plot(x, y, marker="o")
        labels = [
            axes.annotate(
                _rate(result["request_rate"]),
                (across, up),
                xytext=(10, 0),
                textcoords="offset points",
                va="center",
                bbox={"color": "white", "alpha": 0.8, "pad": 0},  # the line may go through it
                arrowprops={"arrowstyle": "-", "linewidth": 0.5},
            )
            for result, across, up in zip(points, x, y, strict=True)
        ]
        axes.set_xlabel(label)
        axes.set_ylabel("output tokens/s")
        axes.set_xlim(0, 1.25 * max(x))  # with room for the last label
        axes.set_ylim(0, 1.08 * max(y) or None)
        axes.set_title(title)
        axes.grid(alpha=0.3)
        _spread(figure, sorted(labels, key=lambda label: label.xy[1]))
        for ending in ("png", "svg"):
            path = prefix.with_name(f"{prefix.name}-{name}.{ending}")
            figure.savefig(path, dpi=150)
            written.append(path)
    return written


def _spread(figure: Figure, labels: Sequence[Annotation]) -> None:
    """Raise each label, the lowest first, above those that it would cover."""
    figure.draw_without_rendering()  # places them
    placed: list[Bbox] = []
    for label in labels:
        box = Text.get_window_extent(label)  # without the line to the point
        raised = 0.0  # in pixels
        while other := next((one for one in placed if one.overlaps(box)), None):
            step = other.y1 - box.y0 + 2
            raised, box = raised + step, box.translated(0, step)
        placed.append(box)
        label.xyann = (10, raised * POINTS_PER_INCH / figure.dpi)


def _rate(rate: float | str) -> str:
    if rate == "inf":
        return "all at once"
    return "1 request/s" if rate == 1 else f"{rate:g} requests/s"
