"""Every page keeps the rules of tools/prose.py, and each rule finds what it is for."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

import prose
from docs_site import command_page

if TYPE_CHECKING:
    from pathlib import Path

OF_PAGES = re.compile("characters in a line|'lane'")  # findings that count for pages only

# What the rules were made for: nobody understands it at once.
QUOTED = (
    "Others want them in an order of their own, torch's on x86-64 with AVX-512 in oneDNN's, the engine's,"
    " where oneDNN has no products in the dtype, in panels."
)


@pytest.mark.parametrize("page", prose.pages(), ids=lambda page: str(page.relative_to(prose.ROOT)))
def test_page_keeps_the_rules(page: Path) -> None:
    assert prose.check(page.read_text()) == []


@pytest.mark.parametrize("program", ["armbuild", "armllm"])
def test_help_keeps_the_rules(program: str) -> None:
    """The options' help, which the site shows; lines are as long as an option's help."""
    found = prose.check(command_page(program))
    assert [each for each in found if not OF_PAGES.search(each.text)] == []


def test_messages_keep_the_rules() -> None:
    """The texts of errors that the sources raise: "what: where; what to do" has its parts as sentences.

    "not proven" is a verdict of `armbuild wheel`.
    """
    found = set()
    for path in (prose.ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = message(node.exc.args[0])
                findings = prose.check(re.sub(r"--[\w-]+|not proven", "X", re.sub(r"[:;]\s", ". ", text)))
                found |= {
                    (path.name, node.lineno, one.text) for one in findings if not OF_PAGES.search(one.text)
                }
    assert sorted(found) == []


def message(node: ast.expr) -> str:
    """Return the text of a message, with X for what it names."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (" ".join(["word"] * 26) + ".", "26 words"),
        (QUOTED, "the end of a sentence belongs before the clause"),
        (QUOTED, "3 possessives without a noun"),
        ("armllm runs. " + " ".join(["word"] * 26), "26 words"),
        ("A file that a tool that a user who waits has, which is new, reads.", "4 clauses"),
        ("It is built, is moved and is removed.", "3 passive verbs"),
        ("long " * 24, "characters in a line"),
        ("## How To Build", "write 'to', not 'To'"),
        ("The page is told.", "'told'"),
        ("It compiles everything anew.", "`again`"),
        ("A file of its own.", "separate"),
        ("The container lane is slow.", "link its first use"),
        ("- An item\n- The wheel is proven here", "`test` or `check`"),
    ],
)  # fmt: skip
def test_rule_finds(text: str, finding: str) -> None:
    assert any(finding in found.text for found in prose.check(text))


@pytest.mark.parametrize(
    "text",
    [
        " ".join(["word"] * 17) + "\n" + " ".join(["word"] * 8) + ". armllm begins a short sentence.",
        "Flags are vLLM's. The server's page, when it is open, shows them.",
        "## Build a wheel for Arm with `Some Code`",
        "```console\n$ echo told " + "x" * 150 + "\n```",
        "| told | " + "x" * 150 + " |",
        "<!-- not run: told\nanew -->",
        "See [the page](https://example.org/" + "x" * 150 + ").",
        "A [lane](wheel.md#lanes) is one way to compile. The container lane is slow.",
        "A Hugging Face checkpoint in `kept` form.",
    ],
)
def test_rule_passes(text: str) -> None:
    assert prose.check(text) == []


def test_finding_names_the_line() -> None:
    page = "# Title\n\n```text\ntold\n```\n\nFine.\nFine again, told.\n\nIt is kept.\n"
    assert [found.line for found in prose.check(page)] == [7, 10]
