"""Every page keeps the rules of tools/prose.py, and each rule finds what it is for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import prose
from docs_site import command_page

if TYPE_CHECKING:
    from pathlib import Path

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
    assert [each for each in found if not re.search("characters in a line|'lane'", each.text)] == []


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
