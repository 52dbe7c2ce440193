"""Check the prose of Markdown pages against a short set of rules: `python tools/prose.py [PAGE...]`.

The rules keep the pages readable for people who read English as a second language:

- a sentence has at most 25 words, two passive verbs and three clauses that hang on others
- a sentence does not end with the place or way of a verb that stands before another clause
- a possessive has its noun: at most one in a sentence stands for a thing named before ("torch's, oneDNN's")
- a line has fewer than 120 characters; tables, code and lines with an address may be longer
- a heading is in sentence case: only its first word and names begin with a capital letter
- a word of `BANNED` has a plainer one, which the finding names
- a page explains "lane" where it first uses the word: by a link, or by words in parentheses

tests/test_prose.py applies the rules to the help of both programs and to messages of errors, nothing to
docstrings. Vale has such rules too, but its Python package downloads a program when it first runs. The tests
must not need that. proselint looks for worn phrases and textstat computes grades; neither has these rules.

Exit status: 0 when no rule is broken, 1 otherwise, with one line for each finding.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
MAX_WORDS, MAX_PASSIVES, MAX_CLAUSES, MAX_POSSESSIVES, MAX_COLUMNS = 25, 2, 3, 1, 119

BANNED = {
    r"told": "say who says or writes what",
    r"tells? of": "`describes`",
    r"prov(?:e|es|ed|en|ing)\b(?! wrong)|proofs?": "`test` or `check`",
    r"recit(?:e|es|ed|al|ation|ations|ing)": "`generates the text`",
    r"faces?": "`function`, `binding` or `API`",
    r"kept": "`stored`, `cached` or `stays`",
    r"worlds?": "`environment`",
    r"(?:of|in) (?:its|their|our|his|an?\b[\w ]{0,20}of (?:its|their)) own": "`separate`, or leave it out",
    r"in a sentence": "`in one line`, or leave it out",
    r"anew": "`again`",
    r"hitherto|thereof|whereof|therein|thereby|whence|thence|heretofore": "a plain word",
    r"strangers?": "`other projects` or `untrusted`",
    r"goes by|go by": "`uses` or `follows`",
    r"be it|nor do(?:es)?|nor is|nor are|lest|for want of|in lieu of": "two plain sentences",
    r"house|kit": "`project`, `toolchain`",
    r"e\.g\.|i\.e\.|etc\.|viz\.": "`for example`, `that is`, `and so on`",
    r"simply|obviously|of course|just": "nothing: leave it out",
    r"utili[sz]e[sd]?|utili[sz]ing": "`use`",
    r"in order to": "`to`",
    r"(?:un|re|de)?quantis\w+": "`quantize`, as the programs do",
}
# Names that have a capital letter inside a heading too.
NAMES = re.compile(
    r"Arm|Armv\d|Neoverse|Graviton|Python|Debian|Linux|Docker|Podman|Kubernetes|Helm|Jenkins|Buildkite"
    r"|Prometheus|Llama|Hugging|Face|Markdown|Typer|Pythons|Dockerfile|Zen|I"
)
LANE = re.compile(r"\blanes?\b")
LANE_EXPLAINED = re.compile(r"\[[^\]]*\blanes?\b[^\]]*\]\(|\blanes?\**,? \(|(?:SIMD|vector) lanes?")
PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being)\s+(?:\w+ly\s+|not\s+|never\s+|also\s+|then\s+)?"
    r"(?:\w{2,}ed|built|made|done|given|known|shown|written|taken|found|held|read|sent|set|put|cut|left|run|lost"
    r"|seen|drawn|chosen|split|brought|kept|told|bound|meant|paid|spent)\b",
    re.IGNORECASE,
)
# "They are stored, where the core has no vectors, in panels": the verb and its place are torn apart.
TORN = re.compile(
    r", (?:where|when|if|as|since|because|unless|while)\b[^,]*,"
    r" (?:in|on|by|for|with|at|from|to|into)(?: \S+){1,3}[.]$"
)
CLAUSE = re.compile(r"\b(?:that|which|whose|who|where|when|if|because|since|while|unless)\b", re.IGNORECASE)
POSSESSIVE = re.compile(  # but "the flags are vLLM's" is plain, and "it's" is none
    r"(?<!\S)(?!(?:is|are|was|were|stays?)\s)\S+\s+(?!(?:it|let|that|what)')[\w.-]+'s"
    r"(?=[,.;:]| (?:on|in|for|with|by|at|from)\b)"
)
COUNTED = [
    (PASSIVE, MAX_PASSIVES, "passive verbs"),
    (CLAUSE, MAX_CLAUSES, "clauses"),
    (POSSESSIVE, MAX_POSSESSIVES, "possessives without a noun"),
]


class Finding(NamedTuple):
    """A broken rule at a line of a page."""

    line: int
    text: str


class Block(NamedTuple):
    """A paragraph, list item or heading, from ``line`` on, without Markdown's marks. heading: a title."""

    line: int
    text: str
    heading: bool
    source: str


def blocks(page: str) -> Iterator[Block]:
    """Yield the prose of a page: no code, table, comment or front matter."""
    visible = re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), page, flags=re.DOTALL)
    start, lines, fence = 0, list[str](), ""
    for number, line in enumerate([*visible.splitlines(), ""], 1):
        bare = line.strip()
        mark = re.match(r"`{3,}|~{3,}", bare)
        if fence or mark:
            fence = "" if fence and bare.startswith(fence) else fence or (mark[0] if mark else "")
            bare = ""
        code = line.startswith("    ") and not lines
        heading, item = bare.startswith("#"), re.match(r"[-*+] |\d+\. |\[\^?\w+\]: |!!! ", bare)
        if (not bare or heading or item or code or bare.startswith(("|", "<"))) and lines:
            source = "\n".join(lines)
            yield Block(start, plain(source), heading=False, source=source)
            lines = []
        if not bare or code or bare.startswith(("|", "<")):
            continue
        if heading:
            yield Block(number, plain(bare.lstrip("# ")), heading=True, source=bare)
            continue
        if not lines:
            start = number
        lines.append(bare[item.end() :] if item else bare)


def plain(text: str) -> str:
    """Return Markdown without its marks; inline code becomes one word."""
    text = re.sub(r"`+[^`]+`+", "CODE", " ".join(text.split()))
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)
    return re.sub(r"\*\*|__|(?<!\w)[*_]|[*_](?!\w)", "", text)


def sentences(text: str) -> list[str]:
    """Split prose behind the marks that end a sentence; the next one may begin with a name such as armllm."""
    return [part for part in re.split(r"(?<=[.!?])[)\"']?\s+", text) if part]


def count_words(sentence: str) -> int:
    """Count the words of a sentence; figures and marks alone are none."""
    return sum(1 for word in sentence.split() if re.search(r"[A-Za-z]", word))


def check(page: str) -> list[Finding]:
    """Return what breaks a rule on a page of Markdown."""
    parts = list(blocks(page))
    findings = [*long_lines(page), *unexplained_lane(parts)]
    for block in parts:
        findings += heading_case(block) if block.heading else long_sentences(block)
        findings += banned(block)
    return sorted(findings)


def long_sentences(block: Block) -> Iterator[Finding]:
    """Yield the sentences with too many words, passive verbs or clauses, or in a hard order."""
    for sentence in sentences(block.text):
        start = f"{sentence[:60]}…"
        if (count := count_words(sentence)) > MAX_WORDS:
            yield Finding(block.line, f"{count} words in a sentence: {start}")
        for pattern, most, name in COUNTED:
            if (count := len(pattern.findall(sentence))) > most:
                yield Finding(block.line, f"{count} {name} in a sentence: {start}")
        if TORN.search(sentence):
            yield Finding(block.line, f"the end of a sentence belongs before the clause: {start}")


def banned(block: Block) -> Iterator[Finding]:
    """Yield the banned words, with a better one."""
    for pattern, better in BANNED.items():
        for found in re.finditer(rf"\b(?:{pattern})(?!\w)", block.text, re.IGNORECASE):
            if found[0] != "Face":  # Hugging Face
                yield Finding(block.line, f"{found[0]!r}: write {better}")


def unexplained_lane(parts: list[Block]) -> Iterator[Finding]:
    """Yield the first "lane" of a page where nothing there explains it."""
    first = next((block for block in parts if not block.heading and LANE.search(block.text)), None)
    if first and not LANE_EXPLAINED.search(first.source):
        yield Finding(first.line, "'lane': link its first use, or explain it in parentheses")


def heading_case(block: Block) -> Iterator[Finding]:
    """Yield the words of a heading that have a capital letter without being a name."""
    for word in block.text.lstrip("0123456789. ").split()[1:]:
        bare = word.strip("():,.?!\"'")
        if re.fullmatch(r"[A-Z][a-z]+", bare) and not NAMES.fullmatch(bare):
            yield Finding(block.line, f"heading in sentence case: write {bare.lower()!r}, not {bare!r}")


def long_lines(page: str) -> Iterator[Finding]:
    """Yield the lines of prose that have too many characters."""
    fence = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fence = not fence
        exempt = fence or line.startswith(("|", "    ", "<!--")) or "://" in line
        if len(line) > MAX_COLUMNS and not exempt:
            yield Finding(number, f"{len(line)} characters in a line")


def pages() -> list[Path]:
    """Return every page that a reader sees."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def main(arguments: list[str]) -> int:
    """Print the findings on the pages named, or on every page."""
    findings = 0
    for path in map(Path, arguments) if arguments else pages():
        for finding in check(path.read_text(encoding="utf-8")):
            print(f"{path}:{finding.line}: {finding.text}")
            findings += 1
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
