"""Inner loops in a compiler's AArch64 assembly: found by their marks, written as the cores run them."""

from __future__ import annotations

import re

MARK = re.compile(r"\s*armllm_loop\.(\w+)\.(\d+)\.\d+:")
LABEL = re.compile(r"(\.L\w+):")
FUNCTION = re.compile(r"(_Z\w+|\w+):")
BRANCH = re.compile(r"\s+(?:b\.?\w*|cbn?z|tbn?z)\s+(?:.*,\s*)?(\.L\w+)\s*(?://.*)?$")


def find_loops(lines: list[str]) -> dict[tuple[str, str, int], list[str]]:
    """Return (function, marker, n) -> the innermost loop around the marker, the longest of several."""
    labels: dict[str, int] = {}
    back: list[tuple[int, int]] = []
    function = ""
    functions: list[str] = []
    marks: list[tuple[int, str, int]] = []
    for number, line in enumerate(lines):
        if found := LABEL.match(line):
            labels[found[1]] = number
        elif found := FUNCTION.match(line):
            function = found[1]
        elif found := MARK.match(line):
            marks.append((number, found[1], int(found[2])))
        elif (found := BRANCH.match(line)) and found[1] in labels:
            back.append((labels[found[1]], number))
        functions.append(function)
    result: dict[tuple[str, str, int], list[str]] = {}
    for number, marker, n in marks:
        around = [(end - start, start, end) for start, end in back if start < number < end]
        if not around:
            continue
        _, start, end = min(around)
        body = [line for line in lines[start + 1 : end + 1] if is_code(line)]
        key = (functions[number], marker, n)
        if len(body) > len(result.get(key, ())):
            # The compiler may have unrolled the loop: then the mark stands there several times.
            times = sum(1 for line in lines[start:end] if MARK.match(line))
            result[key] = [*body, f"// {times * n}"]
    return result


def is_code(line: str) -> bool:
    """Return whether a line of assembly is an instruction, or a label within a loop."""
    text = line.strip()
    return (bool(text) and not text.startswith((".", "//", "#", "armllm_loop."))) or bool(LABEL.match(line))


POST_INDEX = re.compile(r"(\s+\w+\s+.*\[(x\d+|sp)\]), #(-?\d+)$")


def crack(line: str) -> str:
    """Return a load or store with post-index as two instructions, which is how Neoverse cores run it.

    llvm-mca lets the address wait for the data of a store, so that iterations seem to depend on each other.
    """
    found = POST_INDEX.match(line)
    if not found:
        return line
    amount = int(found[3])
    operation = "add" if amount >= 0 else "sub"
    return f"{found[1]}\n\t{operation}\t{found[2]}, {found[2]}, #{abs(amount)}"
