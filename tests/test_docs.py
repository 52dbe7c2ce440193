"""Every command printed in the README and in docs/ runs, and prints what is printed there.

A ``console`` block is a script: its ``$`` lines are run, in order, in a copy of the tree, and each line of
output shown must come out again, whatever its numbers; a line with an ellipsis is passed over. A comment
before a block changes that: ``<!-- test: slow -->`` (a marker of this suite), ``<!-- test: status 1 -->`` (of
its last command), ``<!-- not run: reason -->``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from armbuild.wheel import settings
from fill_tables import read

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- (?P<how>(?:test|not run): [^>]*) -->\n+)?```console\n(?P<body>.*?)```", re.DOTALL
)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    how: str
    body: str

    @property
    def commands(self) -> list[str]:
        return [line[2:] for line in self.body.splitlines() if line.startswith("$ ")]

    @property
    def output(self) -> list[str]:
        lines = [line for line in self.body.splitlines() if not line.startswith("$ ")]
        return [line for line in lines if line.strip() and "…" not in line]

    @property
    def status(self) -> int:
        return int(self.how.split()[-1]) if "status" in self.how else 0


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("body"))
            found.append(Block(page, line, match["how"] or "test:", match["body"]))
    return found


def runnable() -> list[pytest.ParameterSet]:
    cases = []
    for block in blocks():
        if block.how.startswith("not run"):
            continue
        names = [name for name in ("slow", "emulated", "network") if name in block.how]
        marks = [getattr(pytest.mark, name) for name in names]
        cases.append(pytest.param(block, marks=marks, id=f"{block.page.name}:{block.line}"))
    return cases


def normalized(line: str) -> str:
    """The line without what differs from run to run: numbers, column widths, rules of tables."""
    return re.sub(r"[\s─━-]+", " ", re.sub(r"\d+(\.\d+)?", "0", line)).strip()


@pytest.mark.parametrize("block", runnable())
def test_printed_command_does_what_the_page_says(block: Block, tmp_path: Path) -> None:
    checkout = tmp_path / "armllm"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    script = "\n".join(["set -eo pipefail", *block.commands])
    done = subprocess.run(
        ["bash", "-c", script], cwd=checkout, env=environment, check=False, capture_output=True, text=True
    )
    printed = done.stdout + done.stderr
    assert done.returncode == block.status, printed
    actual = {normalized(line) for line in printed.splitlines()}
    missing = [line for line in block.output if normalized(line) not in actual]
    assert not missing, f"not printed any more: {missing}\n--- printed:\n{printed}"


def test_every_block_not_run_says_why() -> None:
    for block in blocks():
        if block.how.startswith("not run"):
            assert len(block.how.removeprefix("not run:").split()) >= 3, f"{block.page.name}:{block.line}"


def test_the_readme_sets_up_with_exactly_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    scripts = re.findall(r"^\$ (bash ci/\S+)", text, re.MULTILINE)
    assert scripts == ["bash ci/wheel.sh", "bash ci/test.sh"]
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("exec bash ci/test.sh")


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """It would catch a link or an anchor that is gone, a page without a place, an API name that moved."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Documentation built" in done.stderr  # --quiet would hide the warnings from --strict too
    for page, names in {
        "reference/armbuild.html": ["armbuild wheel", "--baseline", "armbuild settings"],
        "reference/armllm.html": ["armllm serve", "--max-num-seqs"],
        "reference/settings.html": [setting.option for setting in settings.ALL],
        "reference/api.html": ["SamplingParams", "temperature", "paged_attention", "from_target"],
    }.items():
        text = re.sub(r"<[^>]*>", "", (tmp_path / page).read_text())
        assert [name for name in names if name not in text] == [], page
    links = re.compile(r"""(?:src|<link[^>]*href)=["'](https?:[^"']*)""")
    for page in tmp_path.rglob("*.html"):
        assert links.findall(page.read_text()) == [], f"{page.name} needs the network"


def test_links_of_the_pages_beside_docs_lead_somewhere() -> None:
    """mkdocs checks the links of docs/; these pages are not on the site."""
    for page in ROOT.glob("*.md"):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        assert [link for link in links if not (ROOT / link).exists()] == [], page.name


@pytest.mark.parametrize("tool", ["draw_docs", "fill_tables"])
def test_pictures_and_tables_show_the_data(tool: str) -> None:
    """It would catch a change of kernels.toml or of docs/data that a picture or a table does not show."""
    command = [sys.executable, f"tools/{tool}.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_summary_of_performance_has_the_figures_of_the_data() -> None:
    """It would catch a new measurement that the first rows of the page do not show."""
    page = (DOCS / "performance.md").read_text()
    loads = {"8 clients": ("served", "8"), "32 clients": ("served", "32"), "4 clients": ("served", "4")}
    loads["8 prompts"] = ("offline", "8")
    for label, (how, clients) in loads.items():
        shown = next(line for line in page.splitlines() if line.startswith("|") and label in line)
        for row in read("engines.csv"):
            if (row["machine"], row["weights"], row["how"], row["clients"]) == (
                "Zen 5",
                "90 M",
                how,
                clients,
            ):
                speed = float(row["tokens/s"])
                assert re.search(rf"\b({speed:.0f}|{speed:.1f})\b", shown), (label, row["engine"], speed)


def test_cycles_of_the_performance_page_are_those_of_the_reference() -> None:
    """It would catch a loop that became faster or slower, and a page that does not say so."""
    page, cycles = ((DOCS / name).read_text() for name in ("performance.md", "reference/cycles.md"))
    loops = {
        "bf16 products, panels": r"panel_multiply_bf16: panels, [46] rows",
        "bf16 attention to many tokens": "attention_split_bf16: logits, 8 rows",
        "int8 products, a scale per channel, 16 rows": "w8a8_tile: channel, 16 rows",
        "int4 products, groups of 32, from 64 rows on": r"w[48]a8_tile: group of 32, (?:6|12) rows",
        "bf16, panels of one or two rows": r"panel_multiply_bf16: panels, (?:1 row|2 rows)",
        "int8, a scale per channel": "w8a8_tile: channel, 1 row",
        "int4, groups of 32": "w4a8_tile: group of 32, 1 row",
    }
    for label, loop in loops.items():
        shown = next(line for line in page.splitlines() if line.startswith(f"| {label} |"))
        for core, cell in zip(("n1", "n2", "v1", "v2"), shown.split("|")[2:6], strict=True):
            rows = re.findall(rf"^\| {loop} \| \w+ \| neoverse-{core} \|.*$", cycles, re.MULTILINE)
            rate, _, share = cell.strip().rstrip(")").partition(" (")
            expected = [f"{rate} MAC", f"| {share} |"] if share else [f"{rate} bytes of weights"]
            assert not rate or any(all(part in row for part in expected) for row in rows), (label, core, rows)


def test_files_named_by_the_architecture_exist() -> None:
    """It would catch a page that describes a tree of the past."""
    page = (DOCS / "architecture.md").read_text()
    names = [name for name in re.findall(r"`([\w./]+)`", page) if "/" in name and not name.startswith("/")]
    assert len(names) > 40
    roots = [ROOT, *(ROOT / "src" / folder for folder in ("", "armllm", "armbuild"))]
    built = {"armllm/build_info.json"}  # by the build
    gone = [name for name in names if not any((root / name).exists() for root in roots)]
    assert sorted({*gone} - built) == []


def test_settings_page_names_every_variable() -> None:
    """It would catch a variable that the code reads and no page explains."""
    read = re.compile(r'(?:environ(?:ment)?(?:\.get\(|\[)|getenv\(|positive\()"(ARM(?:LLM|BUILD)_\w+)"')
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "csrc").rglob("*.cpp")]
    named = {name for path in sources for name in read.findall(path.read_text())}
    text = (ROOT / "src/armllm/environment.py").read_text()
    named |= {f"ARMLLM_{name}" for name in re.findall(r'_read\("(\w+)"', text)} | settings.OTHER_VARIABLES
    assert len(named) > 12
    page = (DOCS / "reference" / "settings.md").read_text()
    assert sorted(name for name in named if f"`{name}`" not in page) == []
