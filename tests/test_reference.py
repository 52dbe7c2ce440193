"""The pages say of options, names and limits what the programs have."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

import armllm
from armllm.engine import grammar, structured
from armllm.models import ENCODERS, FAMILIES
from armllm.server import arrivals, connection, limits, refusals
from armllm.server.openapi import ENDPOINTS
from armllm.server.protocol import base
from docs_site import command_page

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@functools.cache
def sections(program: str) -> dict[str, str]:
    """Of each command of a program its part of the reference, the whole program's too."""
    parts = re.split(r"^#+ `([^`]+)`$", command_page(program), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("program", ["armbuild", "armllm"])
def test_options_of_a_command_exist(program: str) -> None:
    """It would catch a page that shows an option which was renamed, or a command which is gone."""
    wrong = set()
    for path in PAGES:
        text = re.sub(r"\\\n\s*", " ", path.read_text())
        shown = re.findall(rf"`({program} [^`]+)`", text) + re.findall(
            rf"^\$ ({program} .+)$", text, re.MULTILINE
        )
        for line in shown:
            words = line.split(" -- ")[0].split(" | ")[0].split()
            command = next(
                (name for n in (3, 2) if (name := " ".join(words[:n])) in sections(program)), program
            )
            if command == program and re.fullmatch(r"[a-z][a-z-]*", words[1]):
                wrong.add((path.name, line))
            known = sections(program)[command] + sections(program)[program]
            wrong |= {(path.name, line, one) for one in OPTION.findall(line) if one not in known}
    assert sorted(wrong) == []


def test_options_of_a_tool_exist() -> None:
    """It would catch a command that measures, and that nobody can repeat."""
    wrong = set()
    for path in PAGES:
        for tool, rest in re.findall(r"`python (tools/\w+\.py)([^`]*)`", path.read_text()):
            source = (ROOT / tool).read_text()
            wrong |= {(path.name, tool, one) for one in OPTION.findall(rest) if f'"{one}"' not in source}
    assert sorted(wrong) == []


def test_model_families_are_on_their_pages() -> None:
    named = {f"`{name}`" for name in FAMILIES}
    assert sorted(name for name in named if name not in page("reference/families.md")) == []
    beginnings = {re.sub(r"(Model|For\w+)$", "", name) for name in ENCODERS}
    assert sorted(name for name in beginnings if f"`{name}`" not in page("models.md")) == []


def test_endpoints_are_on_their_page() -> None:
    paths = {path.replace("{model:path}", "NAME") for one in ENDPOINTS for path in one.paths}
    assert sorted(path for path in paths if f"`{path}`" not in page("reference/http.md")) == []


def test_names_of_the_package_are_on_the_page_of_the_api() -> None:
    """``PromptType`` and the versions have nothing to show."""
    shown = re.findall(r"^::: [\w.]*?(\w+)$", page("reference/api.md"), re.MULTILINE)
    assert {*armllm.__all__} - {*shown} <= {"PromptType", "__version__", "__version_tuple__"}


def test_schemas_are_linked() -> None:
    links = re.findall(r"\.\./schema/(\w+\.json)", page("reference/settings.md"))
    assert sorted(links) == sorted(path.name for path in (ROOT / "docs" / "schema").iterdir())


@pytest.mark.parametrize(
    "claim",
    [
        f"{limits.BASE_BODY_BYTES >> 20} MiB and {limits.BODY_BYTES_PER_TOKEN} bytes for each token",
        f"at most {limits.MOST_BODY_BYTES >> 20} MiB",
        f"{limits.BASE_VALUES:,} and {limits.VALUES_PER_TOKEN} for each token",
        f"{limits.BODIES_AT_ONCE} times the largest body",
        f"| fields of an object | {base.MAX_FIELDS} |",
        f"| prompts times choices | {base.MAX_PROMPTS}; `n` is at most {base.MAX_CHOICES} |",
        f"| messages, items of `input` | {base.MAX_MESSAGES} |",
        f"{limits.PROMPT_LOGPROBS:,} in a request",
        f"{base.MAX_ENTRIES} entries",
        f"{base.MAX_CHARACTERS:,} characters",
        f"{base.MAX_TOKEN_IDS:,} entries",
        f"{connection.HEADER_BYTES >> 10} KiB, within {connection.HEADER_SECONDS:.0f} s",
        f"| body | within {connection.BODY_SECONDS:.0f} s |",
        f"reads nothing for {connection.WRITE_SECONDS:.0f} s",
        f"behind the one that is answered | {connection.MAX_PIPELINED} |",
        f"| connections | {limits.MAX_CONNECTIONS}, or {limits.RESERVED_FILES} less",
        f"{refusals.AT_ONCE} at once, then {refusals.PER_SECOND:.0f} each",
        f"up to {refusals.MOST_SECONDS:.0f} s",
        f"Each {refusals.BYTES >> 10} KiB of a refused body",
        f"A /{refusals.IPV6_NETWORK_BITS} network",
        f"At most {refusals.MOST_WAITING} answers wait",
        f"for at most {arrivals.HELD_SECONDS:g} s",
        f"at most {grammar.CPU_SECONDS + 1} s of CPU time and {grammar.MOST_BYTES >> 30} GiB",
        f"at most {structured.SOURCE_BYTES >> 10} Ki characters",
        f"generates {grammar.TRIED_TOKENS} tokens by the grammar, in at most {grammar.TRIAL_SECONDS:g} s",
        f"may take {structured.SECONDS_AT_ONCE:.0f} s, and {2e3 * structured.SECONDS_PER_USE:.0f} ms more",
        f"up to {structured.CACHED_BYTES >> 20} MiB of compiled grammars",
        f"is refused again for {structured.REFUSED_SECONDS:.0f} s",
        f"Bodies of {limits.HEAVY_BYTES >> 10} KiB, texts of {limits.HEAVY_TEXT >> 10} KiB",
    ],
)  # fmt: skip
def test_limit_of_a_request_is_what_the_page_says(claim: str) -> None:
    """It would catch a limit that changed without its page."""
    assert claim in " ".join(page("reference/http.md").split())
