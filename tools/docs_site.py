"""What mkdocs needs beyond its plugins: generated reference pages, and links that leave docs/.

mkdocs.yml names this file as a hook, and mkdocs calls the ``on_`` functions. A link to a file of the
repository works where the repository is browsed. The site has no such file, so it shows the path instead.
"""

from __future__ import annotations

import logging
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

from armbuild.wheel import settings_reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r"^#+ `([^`]+)`\n\n(.+?\.)(?= |\n)", re.MULTILINE)  # a command, its first sentence
CUT_LINE = re.compile(r"^#+ `(?P<group>[^`]+)`$|^\* `(?P<command>[\w-]+)`: .*\.\.\.$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<path>(?:\.\./)+[^)#]+)(?:#[^)]*)?\)")

SETTINGS = "<!-- armbuild settings -->"

log = logging.getLogger(
    "mkdocs.hooks.docs_site"
)  # with --strict, a warning of a mkdocs logger fails the build


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages on each kind of change to the part "Contributing"."""
    pages = sorted((ROOT / "docs" / "contributing").glob("add-*.md"))
    part = next(part["Contributing"] for part in config.nav or () if "Contributing" in part)
    part.extend(f"contributing/{page.name}" for page in pages)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each program, written by Typer from the options that the program has."""
    for name in ("armbuild", "armllm"):
        files.append(File.generated(config, f"reference/{name}.md", content=command_page(name)))
    return files


def command_page(name: str) -> str:
    """Return the page of a program, in Markdown. Typer cuts lists of commands; here they have sentences."""
    command = [sys.executable, "-m", "typer", f"{name}.cli", "utils", "docs", "--name", name]
    page = subprocess.run(command, cwd=ROOT / "src", check=True, capture_output=True, text=True).stdout
    sentences = dict(SECTION.findall(page))
    group = name

    def whole(line: re.Match[str]) -> str:
        nonlocal group
        group = line["group"] or group
        if line["group"]:
            return line[0]
        return f"* `{line['command']}`: {sentences[f'{group} ' + line['command']]}"

    return CUT_LINE.sub(whole, page)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace links that leave docs/ by the path of their file, and a placeholder by generated tables.

    Warn where a link has no file.
    """

    def path_of(link: re.Match[str]) -> str:
        target = posixpath.normpath(
            posixpath.join("docs", posixpath.dirname(page.file.src_uri), link["path"])
        )
        if target.startswith("docs/"):
            return link[0]
        if not (ROOT / target).exists():
            log.warning("%s links to %s, which is not there", page.file.src_uri, target)
        text = link["text"].strip("`")
        return f"`{target}`" if target.endswith(text) else f"{link['text']} (`{target}`)"

    return LINK.sub(path_of, markdown.replace(SETTINGS, settings_reference.reference()))
