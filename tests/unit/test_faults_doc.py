"""docs/faults.md names every fault that there is to make, and each has tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import yaml

from hpcbench.config.axes import FAULTS
from hpcbench.plan.case import STATUSES
from unit.test_checks_doc import rows as checks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
MADE = TEXT.partition("## Not made here")[0]
TESTS = Path(__file__).with_name("fault_tests.yaml")


@cache
def made() -> dict[str, list[str]]:
    """Return the tests of each fault, as paths and names below tests/."""
    found: dict[str, list[str]] = yaml.safe_load(TESTS.read_text(encoding="utf-8"))
    return found


def rows() -> dict[str, list[str]]:
    """Return the cells of each row of the page by its fault, without kinds in brackets."""
    found = [line[2:-2].split(" | ") for line in MADE.splitlines()
             if line.startswith("| ") and not line.startswith("| fault")]
    return {re.sub(r" \(`.*", "", cells[0]): cells for cells in found}


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_row_has_its_cells_and_tests() -> None:
    assert list(rows()) == list(made())
    assert all(len(cells) == 3 and all(map(str.strip, cells)) for cells in rows().values())


def test_every_test_that_is_named_exists() -> None:
    for fault, tests in made().items():
        assert tests, fault
        for test in tests:
            path, name = test.split("::")
            assert name in functions_of(ROOT / "tests" / path), (fault, name)


def test_every_kind_status_and_code_of_a_fault_is_there() -> None:
    first_cells = "".join(cells[0] for cells in rows().values())
    kinds = set(re.findall(r"`(\w+)`", first_cells))
    assert kinds == set(FAULTS)
    assert {status for status in STATUSES if f"`{status}`" in TEXT} == set(STATUSES)
    named = set(re.findall(r"HB\d{3}", TEXT))
    costly = {code for code, scopes in checks() if scopes != {"warning"}}
    assert costly <= named <= {code for code, _ in checks()}, costly - named
