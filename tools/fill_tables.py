"""Write the tables of measurements into the pages: `python tools/fill_tables.py`; `--check` compares.

The figures are in docs/data, one CSV file for each kind. A page names a table in a comment, and the table
follows it:

    <!-- table engines.csv: machine=Zen 5; how=served -->

``name=value`` keeps the rows with this value, and leaves the column out. A column that is empty in every row
is left out too. ``rows=a,b; across=c; value=d`` makes a row for each a and b, and a column for each c.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "data"
PLACE = re.compile(r"(<!-- table (?P<file>[\w.]+)(?::(?P<options>[^>]*))? -->\n)(?:\n(?:\|.*\n)+)?")

Row = dict[str, str]


def read(name: str) -> list[Row]:
    """Return the rows of a file of docs/data."""
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def filled(page: str) -> str:
    """Return a page with all its tables written from the data."""
    return PLACE.sub(lambda place: f"{place[1]}\n{table(place['file'], place['options'] or '')}", page)


def table(file: str, written: str) -> str:
    """Return the table that a comment asks for."""
    options = dict(part.strip().split("=", 1) for part in written.split(";") if part.strip())
    rows = read(file)
    shape = {name: options.pop(name) for name in ("rows", "across", "value") if name in options}
    names = {*options, *shape.get("rows", "").split(",")} - {""} | {*shape.values()} - {shape.get("rows", "")}
    if unknown := sorted(names - {*rows[0]}):
        raise ValueError(f"docs/data/{file} has no column {unknown[0]!r}; it has {', '.join(rows[0])}")
    rows = [row for row in rows if all(row[name] == value for name, value in options.items())]
    if not rows:
        raise ValueError(f"docs/data/{file} has no row with {written.strip()}")
    if shape:
        return markdown(across(rows, shape["rows"].split(","), shape["across"], shape["value"]))
    shown = [name for name in rows[0] if name not in options and any(row[name] for row in rows)]
    return markdown([{name: row[name] for name in shown} for row in rows])


def across(rows: list[Row], keys: list[str], column: str, value: str) -> list[Row]:
    """Return a row for each key, with the values of all its rows side by side."""
    columns = dict.fromkeys(row[column] for row in rows if row[value])
    merged: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        target = merged.setdefault(key, {**{name: row[name] for name in keys}, **dict.fromkeys(columns, "")})
        if row[value]:
            target[row[column]] = row[value]
    return list(merged.values())


def markdown(rows: list[Row]) -> str:
    """Return a table in Markdown; a column of numbers is aligned at the right."""
    lines = [list(rows[0]), *([*row.values()] for row in rows)]
    numbers = [all(re.fullmatch(r"[\d.]*%?", line[i]) for line in lines[1:]) for i in range(len(lines[0]))]
    lines.insert(1, ["---:" if number else "---" for number in numbers])
    return "".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) + "\n" for line in lines)


def main() -> int:
    """Write the tables, or name the pages whose tables differ from the data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare the pages with docs/data, write nothing"
    )
    options = parser.parse_args()
    changed = 0
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (new := filled(page)) == page:
            continue
        changed += 1
        if options.check:
            print(f"{path.relative_to(ROOT)}: not the figures of docs/data; run python tools/fill_tables.py")
        else:
            path.write_text(new, encoding="utf-8")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
