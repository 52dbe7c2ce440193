#!/usr/bin/env python3
"""Published sdists, built for AArch64 as a stranger would build them, and the page that shows the results.

    python tools/build_published.py msgspec --import msgspec._core --cpu neoverse-n1

Hands everything to `armbuild wheel`, notes the result in tools/published.json, in place of an older one of
the same project, and writes docs/reference/published.md anew. `--page` only writes the page.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[1]
DATA, PAGE = Path(__file__).with_name("published.json"), ROOT / "docs/reference/published.md"
LIKE_ALL = ("--import", "--cpu", "--compile-cache", "--python", "--command", "--requires")
"""Options that say how a wheel was tested: the table has them in other columns, or not at all."""
HEAD = """\
# Published projects

These sdists of the Python package index were built on an x86-64 machine, each in its newest version if no
older one is named. The command was `armbuild wheel PROJECT --import MODULE --cpu CORE`, with the options
shown. {built} of {all} became wheels, {plain} of them without any option. Each wheel was repaired, audited,
and imported on the emulated core. For the last column the project's own tests ran there, too, by `--command`.
`python tools/build_published.py` builds one and writes this page.

The CPU time is that of all steps, with the import under QEMU. It was measured once, on a busy machine. A
time that is not shown was not noted. Rust's registry was not reachable: of the projects in Rust, only those
with their crates inside, or that build with [crates of Debian](../wheel.md#rust), became wheels.

| project | version | back end | options | CPU, s | proven on | date | own tests on the core |
| --- | --- | --- | --- | ---: | --- | --- | --- |
"""
FAILED = """
## What did not build

| project | what stopped it | what to try | date |
| --- | --- | --- | --- |
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What came of one project, and when. failure: empty for a wheel; advice: what to do about a failure.

    tests: the command that ran the project's own tests, and the last line that it printed.
    """

    project: str
    version: str = ""
    backend: str = ""
    options: str = ""
    cpu_seconds: float | None = None
    proven_on: str = ""
    failure: str = ""
    advice: str = ""
    date: str = ""
    tests: str = ""


def read() -> list[Entry]:
    """Return what is noted, by project."""
    return [Entry(**item) for item in json.loads(DATA.read_text())]


def write(entries: list[Entry]) -> None:
    """Write the notes, and the page that shows them."""
    ordered = sorted(entries, key=lambda entry: canonicalize_name(entry.project))
    lines = ",\n ".join(
        json.dumps({key: value for key, value in asdict(entry).items() if value not in ("", None)})
        for entry in ordered
    )
    DATA.write_text(f"[\n {lines}\n]\n")
    PAGE.write_text(page(ordered))


def page(entries: list[Entry]) -> str:
    """Return the page."""
    built = [entry for entry in entries if not entry.failure]
    failed = [entry for entry in entries if entry.failure]
    plain = sum(not entry.options for entry in built)
    text = HEAD.format(built=len(built), all=len(entries), plain=plain)
    for entry in built:
        options = f"`{entry.options}`" if entry.options else ""
        seconds = "" if entry.cpu_seconds is None else f"{entry.cpu_seconds:.1f}"
        cells = (entry.project, entry.version, entry.backend, options, seconds, entry.proven_on, entry.date)
        text += f"| {' | '.join((*cells, entry.tests))} |\n"
    if failed:
        text += FAILED
    for entry in failed:
        name = f"{entry.project} {entry.version}".strip()
        text += f"| {name} | {entry.failure} | {entry.advice} | {entry.date} |\n"
    return text


def note(arguments: list[str], document: dict[str, Any], stderr: str) -> Entry:
    """Return what came of `armbuild wheel ARGUMENTS`, given what it printed."""
    project, joined = Requirement(arguments[0]).name, _joined(arguments[1:])
    options = [
        re.sub(r"(--source=[\w.-]+=|--patch=)\S*/", r"\1", word)  # the file's name is enough
        for word in joined
        if not word.startswith(LIKE_ALL)
    ]
    (wheel,) = document.get("wheels") or [{}]
    if not wheel.get("ok"):
        error = str(wheel.get("error") or document.get("error") or stderr)
        cause, _, rest = error.partition("\n")
        return Entry(project=project, failure=_cell(cause), advice=_cell(rest.partition("\n")[0]))
    statement = json.loads(Path(wheel["provenance"]).read_text())
    built = statement["predicate"]["buildDefinition"]
    results = (wheel["smoke"] or {}).get("results", ())
    command = next((word.removeprefix("--command=") for word in joined if word.startswith("--command=")), "")
    return Entry(
        project=project,
        version=str(parse_wheel_filename(Path(wheel["path"]).name)[1]),
        backend=_family(built["internalParameters"]["backend"], wheel["compiler"]),
        options=shlex.join(options),
        cpu_seconds=wheel["cpu_seconds"],
        proven_on=", ".join(result["cpu"] for result in results),
        tests=f"`{command}`: {_cell(results[0]['said'])}" if command and results else "",
    )


def _joined(arguments: list[str]) -> list[str]:
    """Return the arguments with each option's value joined to it: `--with NAME` becomes `--with=NAME`."""
    joined: list[str] = []
    for word in arguments:
        if joined and "=" not in joined[-1] and not word.startswith("-"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _cell(text: str) -> str:
    return re.sub(r"\(?log: .*|(?<!\S)/\S*/", "", text).replace("|", "/").strip()


def _family(backend: str, compiler: str) -> str:
    module = backend.partition(":")[0]
    known = {"mesonpy": "meson-python", "poetry": "poetry-core", "scikit_build_core": "scikit-build-core"}
    name = next((plain for start, plain in known.items() if module.startswith(start)), module.split(".")[0])
    return f"{name}, GCC" if "g++" in compiler else f"{name}, Rust" if "rustc" in compiler else name


def build(arguments: list[str]) -> Entry:
    """Build one project and return what came of it."""
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "armbuild",
                "wheel",
                *arguments,
                "--lane=cross",
                "--json",
                f"--output={out}",
            ],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "CI": ""},
        )
        try:
            document = json.loads(done.stdout)
        except ValueError:
            document = {}
        return note(arguments, document, done.stderr)


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ["--page"]:
        write(read())
        return 0
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    found = replace(build(arguments), date=dt.datetime.now(dt.timezone.utc).date().isoformat())
    write(  # read now: another may have ended meanwhile
        [entry for entry in read() if canonicalize_name(entry.project) != canonicalize_name(found.project)]
        + [found]
    )
    print(found)
    return 1 if found.failure else 0


if __name__ == "__main__":
    sys.exit(main())
