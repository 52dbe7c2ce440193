"""Which inner loops tools/cycles.py counts, and on which cores."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Core:
    """What llvm-mca doesn't say: dispatch width (the core's optimization guide), bits of an SVE vector."""

    name: str
    dispatch: int
    sve_bits: int
    fmla: int
    """Peak multiply-accumulates per cycle of FMLA on floats; BFDOT has twice, BFMMLA four times that."""
    load: int
    """Bytes that vectors of Advanced SIMD can load in a cycle from the first-level cache."""
    sve_load: int = 0

    def loads(self, target: str) -> int:
        """Return the bytes that a loop of the target can load in a cycle."""
        return self.sve_load if target.startswith("sve") else self.load


CORES = (
    Core(name="neoverse-n1", dispatch=4, sve_bits=0, fmla=8, load=32),
    Core(name="neoverse-n2", dispatch=5, sve_bits=128, fmla=8, load=32),
    Core(name="neoverse-v1", dispatch=8, sve_bits=256, fmla=16, load=48, sve_load=64),
    Core(name="neoverse-v2", dispatch=8, sve_bits=128, fmla=16, load=48),
    Core(name="a64fx", dispatch=4, sve_bits=512, fmla=32, load=32, sve_load=128),
)

# Attention of one row waits for loads, on the target that computes it on a core. Not fp16: FMLAL takes eight
# bytes and is the limit there (docs/reference/cycles.md).
ONE_ROW = (
    ("bf16", "attention_split_bf16", ("neoverse-v1", "neoverse-v2")),
    ("i8mm", "int8_split", ("neoverse-v1", "neoverse-v2")),
    ("sve", "attention_split_f32", ("neoverse-v1",)),
    ("neon", "attention_split_f32", ("neoverse-v2",)),
)
ONE_ROW_SHARE = 0.9
# Bytes of weights per cycle that a single row reads at least, by target.
ONE_ROW_WEIGHTS = {"sve512": 16.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """A marked loop to report: ``marker`` in the function ``entry`` of a target."""

    target: str
    entry: str
    marker: str
    rows: int = 0
    """Rows of the register tile, in attention those of the query. 0: the loop goes through elements."""
    length: int = 0
    """Quantized products: elements of each row and column that an iteration takes. 0: another loop."""
    bits: int = 0
    columns: int = 0
    """Quantized products: how many columns the tile meets."""
    digits: int = 1
    """Attention on an int8 cache: how many digits a row has, each of which is multiplied."""
    cores: tuple[str, ...] = ("neoverse-n1", "neoverse-n2", "neoverse-v1", "neoverse-v2")

    @property
    def title(self) -> str:
        rows = f", {self.rows} rows" if self.rows > 1 else ", 1 row" if self.rows else ""
        length = f" of {self.length}" if self.length and self.marker == "group" else ""
        return f"{self.entry}: {self.marker}{length}{rows}"

    @property
    def mark(self) -> int:
        """The number in the mark of the loop, 0 for any."""
        return self.rows * 1000 + self.length if self.length else self.rows


ARMV9 = ("neoverse-n2", "neoverse-v1", "neoverse-v2")
STORAGES = (
    ("neon", "f32", ("neoverse-n1", "neoverse-n2", "neoverse-v2")),
    ("neon", "bf16", ("neoverse-n1",)),
    ("bf16", "bf16", ARMV9),
    ("neon", "f16", ("neoverse-n1", "neoverse-n2", "neoverse-v2")),
    ("sve", "f32", ("neoverse-v1",)),
    ("sve", "f16", ("neoverse-v1",)),
)
"""Of ops in each storage type: the target, the type, and the cores that take this target."""
LOOPS = (
    *(
        Loop(
            target=target,
            entry=f"w{bits}a8_tile",
            marker=marker,
            rows=rows,
            length=length,
            bits=bits,
            columns=panel * (together if rows == 1 else 1),
            cores=cores,
        )
        for target, bits, panel, together, cores, groups, channel in (
            ("dotprod", 4, 8, 4, ("neoverse-n1",), (6, 4, 2, 1), 12),
            ("dotprod", 8, 4, 4, ("neoverse-n1",), (12, 4, 2, 1), 16),
            ("i8mm", 4, 4, 4, ARMV9, (12, 4, 2, 1), 16),
            ("i8mm", 8, 4, 2, ARMV9, (12, 4, 2, 1), 16),
        )
        for marker, length, tiles in (
            ("group", 32, groups),
            ("group", 64, (groups[0], 1)),
            ("group", 128, (groups[0], 1)),
            ("channel", 16, (channel, 1)),
        )
        for rows in tiles
    ),
    *(
        Loop(
            target="sve512",
            entry=f"w{bits}a8_tile",
            marker=marker,
            rows=rows,
            length=32,
            bits=bits,
            columns=16 * panels,
            cores=("a64fx",),
        )
        for bits in (4, 8)
        for marker, rows, panels in (
            ("group", 8, 1),
            ("group", 4, 1),
            ("group", 1, 8),
            ("group_of_two", 1, 2),
            ("channel", 8, 1),
            ("channel", 1, 8),
        )
    ),
    *(
        Loop(target=target, entry=f"dense_multiply_{storage}", marker="dense", rows=rows, cores=cores)
        for target, storage, tiles, cores in (
            ("neon", "f32", (4, 1), ("neoverse-n1",)),
            ("neon", "bf16", (4, 1), ("neoverse-n1",)),
            ("sve512", "f32", (4, 2, 1), ("a64fx",)),
            ("sve512", "f16", (4, 2, 1), ("a64fx",)),
            ("sve512", "bf16", (4, 2, 1), ("a64fx",)),
            ("bf16", "bf16", (8, 2), ARMV9),
        )
        for rows in tiles
    ),
    *(
        Loop(target="bf16", entry="panel_multiply_bf16", marker="panels", rows=rows, cores=ARMV9)
        for rows in (6, 4, 2)
    ),
    *(
        Loop(
            target="neon",
            entry=f"panel_multiply_{storage}",
            marker="panels",
            rows=rows,
            cores=("neoverse-n1",) if rows > 1 else ("neoverse-n1", "a64fx"),
        )
        for storage in ("f32", "f16", "bf16")
        for rows in (4, 1)
    ),
    *(
        Loop(target="neon", entry="panel_multiply_f32", marker="panels", rows=rows, cores=ARMV9)
        for rows in (4, 1)
    ),
    *(
        Loop(target="sve512", entry=f"panel_multiply_{storage}", marker="panels", rows=rows, cores=("a64fx",))
        for storage in ("f32", "f16", "bf16")
        for rows in (4, 2, 1)
    ),
    *(
        Loop(target=target, entry=f"decode_fp8_{storage}", marker="decode", cores=cores)
        for target, storage, cores in (
            ("neon", "f32", ("neoverse-n1", "neoverse-n2", "neoverse-v2")),
            ("neon", "bf16", ("neoverse-n1",)),
            ("bf16", "bf16", ARMV9),
            ("sve", "f32", ("neoverse-v1", "a64fx")),
            ("sve", "bf16", ("a64fx",)),
        )
    ),
    *(
        Loop(target="neon", entry=f"attention_split_{storage}", marker=marker, rows=rows)
        for storage, rows in (("f32", 8), ("f32", 1), ("f16", 1), ("bf16", 1))
        for marker in ("logits", "values")
    ),
    *(
        Loop(target="fhm", entry="attention_split_f16", marker=marker, rows=rows, cores=ARMV9)
        for rows in (8, 1)
        for marker in ("logits", "values")
    ),
    *(
        Loop(target="bf16", entry="attention_split_bf16", marker=marker, rows=rows, cores=ARMV9)
        for rows in (12, 8, 2)
        for marker in ("logits", "values")
    ),
    *(
        Loop(target=target, entry="int8_split", marker=marker, rows=rows, digits=digits, cores=cores)
        for target, pairs, cores in (
            ("neon", (1,), ("neoverse-n1",)),
            ("dotprod", (3, 1), ("neoverse-n1",)),
            ("i8mm", (3, 1), ARMV9),
        )
        for pair in pairs
        for marker, rows, digits in (("logits", 2 * pair, 1), ("values", pair, 2))
    ),
    Loop(target="i8mm", entry="int8_split", marker="digits", cores=ARMV9),
    Loop(target="neon", entry="attention_split_f32", marker="exponentials"),
    *(
        Loop(target="sve", entry="attention_split_f32", marker=marker, rows=rows, cores=(core,))
        for core, markers in (("neoverse-v1", ("logits", "values")), ("a64fx", ("logits16", "values")))
        for rows in (8, 1)
        for marker in markers
    ),
    Loop(
        target="sve",
        entry="attention_split_f32",
        marker="exponentials",
        cores=(*ARMV9, "a64fx"),
    ),
    *(
        Loop(target=target, entry=f"{op}_{storage}", marker=marker, cores=cores)
        for target, storage, cores in (
            ("neon", "f32", Loop.cores),
            ("neon", "bf16", ("neoverse-n1",)),
            ("bf16", "bf16", ARMV9),
            ("neon", "f16", Loop.cores),
            ("sve", "f32", ("neoverse-v1",)),
            ("sve", "bf16", ("neoverse-v1",)),
        )
        for op, marker in (
            ("rms_norm", "sum_of_squares"),
            ("rms_norm", "scale_row"),
            ("silu_and_mul", "apply_and_mul"),
            ("gelu", "apply"),
        )
    ),
    *(
        Loop(target=target, entry=f"lora_{marker}_{storage}", marker=marker, rows=rows, cores=cores)
        for target, storage, cores in STORAGES
        for marker in ("shrink", "expand")
        for rows in ((4, 2, 1) if target == "bf16" else (2, 1))
    ),
    *(
        Loop(target=target, entry=f"causal_conv_{storage}", marker="convolve", cores=cores)
        for target, storage, cores in STORAGES
    ),
    *(
        Loop(target=target, entry="state_scan_f32", marker=marker, cores=cores)
        for target, cores in (("neon", Loop.cores), ("sve", ("neoverse-v1", "a64fx")))
        for marker in ("find", "pass", "pass_ahead")
    ),
    *(
        Loop(target=target, entry="look_up_panel", marker="look_up", cores=(core,))
        for target, core in (
            ("dotprod", "neoverse-n1"),
            ("i8mm", "neoverse-n2"),
            ("i8mm", "neoverse-v1"),
            ("i8mm", "neoverse-v2"),
            ("sve512", "a64fx"),
        )
    ),
    *(
        Loop(target=target, entry=f"chunk_{marker}_f32", marker=marker, cores=cores)
        for target, cores in (("neon", Loop.cores), ("sve", ("neoverse-v1", "a64fx")))
        for marker in ("maxima", "weights")
    ),
)
