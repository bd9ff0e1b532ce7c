"""Pages for users have short lines; code blocks and tables are exempt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from doc_commands import PAGES
from launcher import ROOT

MOST_CHARACTERS, MOST_LINES = 110, 150


def prose(text: str) -> str:
    """Return a page without fenced and indented blocks, tables and headings."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join("" if line.startswith(("|", "#", "    ")) else line
                     for line in text.splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not [line for line in prose(text).splitlines() if len(line) > MOST_CHARACTERS]


def test_the_first_page_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES
    assert not [line for line in lines if len(line) > MOST_CHARACTERS]


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
