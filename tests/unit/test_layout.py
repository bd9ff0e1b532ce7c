"""The package keeps its order: what may import what, what shared code may name, lengths.

`python tests/unit/test_layout.py` prints what breaks a rule today. What is known and still to be
mended is in layout_pending.txt; the tests fail on anything else, and on lines that are mended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import layout_content as content
import layout_imports as imports
from launcher import ROOT
from package_source import PACKAGE, libraries_of, modules, room_of, rooms

PENDING = Path(__file__).with_name("layout_pending.txt")
RULES: Mapping[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "import": imports.forbidden_imports, "library": imports.misplaced_libraries,
    "kind": content.kinds_spelled, "field": content.fields_used,
    "arithmetic": content.arithmetic, "function": content.long_functions,
    "parameters": content.long_parameter_lists, "file": content.long_files,
    "room": content.full_rooms,
}
"""Each yields what breaks it, by a stable name, and where that is."""


def pending() -> Mapping[str, frozenset[str]]:
    """Return what is known to break each rule: lines of ``rule | what``."""
    lines = [line.partition(" | ") for line in PENDING.read_text().splitlines()
             if line and not line.startswith("#")] if PENDING.exists() else []
    return {rule: frozenset(what for name, _, what in lines if name == rule) for rule in RULES}


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    found, known = dict(RULES[rule]()), pending()[rule]
    new = [f"{what} ({where})" for what, where in found.items() if what not in known]
    mended = sorted(known - set(found))
    assert not new, f"{len(new)} against rule {rule}:\n" + "\n".join(new)
    assert not mended, f"no longer there, delete from {PENDING.name}:\n" + "\n".join(mended)


def test_every_folder_has_a_row() -> None:
    """A new folder or module says what it may import, or nobody knows where it belongs."""
    rows = {imports.unit_of(name).replace(f"kinds.{room_of(name)}", "kinds.*")
            for name in modules()}
    assert rows <= set(imports.MAY_IMPORT), sorted(rows - set(imports.MAY_IMPORT))


def test_every_exception_is_still_needed() -> None:
    lazily = {f"{module.name.removeprefix(PACKAGE + '.')} -> {imports.unit_of(one.target)}"
              for module, one in imports.package_imports() if one.lazy}
    assert set(imports.LAZILY) <= lazily, set(imports.LAZILY) - lazily
    there = {f"{module.file}: {node.name}" for module in modules().values()
             for node in module.functions() if content.parameters(node) > content.MOST_PARAMETERS}
    assert set(content.LONG_LISTS) <= there, set(content.LONG_LISTS) - there
    for spelled in content.SPELLED:
        file, _, word = spelled.partition(": ")
        assert word.strip("'") in (ROOT / file).read_text(), spelled


def test_the_rules_see_what_they_are_for() -> None:
    """A rule that finds nothing because it looks at nothing would pass for ever."""
    assert {"collective", "primitive", "training"} <= set(rooms())
    assert {"size_bytes", "implementation", "strategy"} <= content.own_fields()
    assert "torch" in libraries_of("hpcbench.kinds.training.run.runner")
    assert "matplotlib" in libraries_of("hpcbench.report.plots.style")
    assert not imports.is_allowed("kinds.training.plan", "kinds.primitive.plan")
    assert not imports.is_allowed("kinds.training.plan", "kinds.training.run")
    assert not imports.is_allowed("plan", "kinds.training.plan")
    assert imports.is_allowed("kinds.training.run", "kinds.training.plan")
    assert not imports.is_allowed("trace", "measure") and imports.is_allowed("measure", "trace")


if __name__ == "__main__":
    for name, rule in RULES.items():
        for what in sorted(dict(rule())):
            print(f"{name} | {what}")
