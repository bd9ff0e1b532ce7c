"""docs/architecture.md and CONTRIBUTING.md are short and true; paths that any page names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import ROOT
from package_source import PACKAGE, modules

PAGE = ROOT / "docs/architecture.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PLAIN = [PAGE, ROOT / "CONTRIBUTING.md"]
MOST_LINES, MOST_CHARACTERS = 200, 110
PATH = re.compile(
    r"(?<![\w/.<>-])(?:hpcbench|tests|docs|jobs|slurm|scripts|benchmarks|plots)/[\w./-]*\w")
SHORT = re.compile(r"`((?:[a-z_]+/)+[a-z_0-9]*\.py)`")
DOTTED = re.compile(r"(?<![\w.])hpcbench(?:\.[a-z_][a-z_0-9]*)+")
NOT_MODULES = {"hpcbench.primitives", "hpcbench.collectives", "hpcbench.strategies"}
"""Groups of entry points."""


def named_paths(text: str) -> Iterator[str]:
    """Yield the paths of a page; those in backticks may begin below the package."""
    yield from PATH.findall(text)
    for path in SHORT.findall(text):
        below = f"{PACKAGE}/{path}"
        yield below if (ROOT / below).exists() else path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = {path for path in named_paths(text) if not (ROOT / path).exists()}
    assert not {path for path in missing if not path.startswith("hpcbench_")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_exist(page: Path) -> None:
    for name in DOTTED.findall(page.read_text(encoding="utf-8")):
        package = name.rpartition(".")[0]
        known = not name or name in NOT_MODULES or name in modules() or package in modules()
        assert known, name


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.name)
def test_pages_are_short_and_plain(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES
    assert not [line for line in lines if len(line) > MOST_CHARACTERS and "](" not in line]


def test_every_folder_is_described() -> None:
    text = PAGE.read_text(encoding="utf-8")
    folders = {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    described = "\n".join(row.split("|")[1] for row in text.splitlines() if row.startswith("| `"))
    assert not [folder for folder in folders if f"`{folder}/`" not in described]


def test_every_side_of_a_kind_is_described() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for side in ("planner", "runner", "deriver", "presenter"):
        assert f"| {side} |" in text


def test_every_word_of_the_glossary_is_listed_once() -> None:
    rows = PAGE.read_text(encoding="utf-8").partition("## Glossary")[2].splitlines()
    words = [word.strip() for row in rows if row.startswith("| ")
             for word in row.split("|")[1].split(",")]
    assert len(words) > 20 and len(words) == len(set(words))
