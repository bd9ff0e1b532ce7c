"""docs/checks.md, the source and the tests must name the same checks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (HB\d{3}) \| (.+?) \| ([a-z, ]+) \| (.+?) \| (.+) \|")
SCOPES = {"run", "rank", "case", "note"}


def rows() -> list[tuple[str, set[str], list[str]]]:
    """Return (code, scopes, tests) of each row of the table."""
    text = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    found = [ROW.fullmatch(line) for line in text.splitlines() if line.startswith("| HB")]
    assert all(found)
    return [(row[1], set(row[3].split(", ")), re.findall(r"`(\w+)`", row[5]))
            for row in found if row]


def codes_in_source() -> set[str]:
    files = (ROOT / "hpcbench").rglob("*.py")
    return {code for file in files
            for code in re.findall(r"\"(HB\d{3})\"", file.read_text(encoding="utf-8"))}


def check_tests() -> set[str]:
    files = (ROOT / "tests" / "unit").glob("test_checks_*.py")
    return {name for file in files
            for name in re.findall(r"def (test_hb\w+)\(", file.read_text(encoding="utf-8"))}


def test_the_table_has_every_code_of_the_source_once() -> None:
    codes = [code for code, _, _ in rows()]
    assert codes == sorted(set(codes))
    assert set(codes) == codes_in_source()


def test_every_code_has_a_test_and_every_check_test_is_listed() -> None:
    listed = {name for _, _, tests in rows() for name in tests}
    assert listed == check_tests()
    for code, scopes, tests in rows():
        assert tests and all(name.startswith(f"test_{code.lower()}_") for name in tests)
        assert scopes <= SCOPES
