"""Lists of the pages are those of the code: keys, commands, flags, columns; links lead on."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from doc_commands import PAGES
from hpcbench.cli import COMMANDS
from hpcbench.config.schema import BLOCKS, Config, keys_of
from launcher import ROOT

DOCS = ROOT / "docs"
filled: Callable[[str], str] = runpy.run_path(str(ROOT / "scripts/reference.py"))["filled"]
INDEX = (DOCS / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_lists_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == filled(text), "run: python scripts/reference.py"


@pytest.mark.parametrize("names", [keys_of(Config), *map(keys_of, BLOCKS.values())])
def test_every_key_is_on_the_page(names: list[str]) -> None:
    text = (DOCS / "config.md").read_text(encoding="utf-8")
    assert not [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}\b", text)]


def test_every_command_is_on_the_page() -> None:
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    block = text.partition("```text\n")[2].partition("```")[0]
    assert re.findall(r"^([\w-]+) ", block, re.MULTILINE) == list(COMMANDS)


def test_the_index_has_every_page() -> None:
    pages = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert pages - set(re.findall(r"\(([\w-]+\.md)\)", INDEX)) == set()


def headings(page: Path) -> set[str]:
    """Return what links may name behind ``#``, as GitHub makes it of headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text(encoding="utf-8"))
    for name, heading in links:
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not heading or heading in headings(target), f"{name}#{heading}"
