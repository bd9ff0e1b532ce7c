"""docs/checks.md has each code of the source once, and each code has a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (HB\d{3}) \| (.+) \| ([a-z, ]+) \|")
SCOPES = {"run", "rank", "case", "warning"}


def rows() -> list[tuple[str, set[str]]]:
    """Return the code and the scopes of each row of the table."""
    text = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    found = [ROW.fullmatch(line) for line in text.splitlines() if line.startswith("| HB")]
    assert all(found)
    return [(row[1], set(row[3].split(", "))) for row in found if row]


def named(folder: str, pattern: str, names: str) -> set[str]:
    """Return all that a pattern finds in the files of a folder."""
    return {code.upper() for file in (ROOT / folder).rglob(names)
            for code in re.findall(pattern, file.read_text(encoding="utf-8"))}


def test_the_table_has_every_code_of_the_source_once() -> None:
    codes = [code for code, _ in rows()]
    assert codes == sorted(set(codes))
    assert set(codes) == named("hpcbench", r"\"(HB\d{3})\"", "*.py")
    assert all(scopes <= SCOPES for _, scopes in rows())


def test_every_code_has_a_test() -> None:
    tested = named("tests/unit", r"(?:def test_|\")(hb\d{3}|HB\d{3})[_\"]", "test_checks_*.py")
    assert tested == {code for code, _ in rows()}
