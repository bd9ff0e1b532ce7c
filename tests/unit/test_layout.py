"""The package keeps its order: what may import what, what shared code may name, lengths.

`python tests/unit/test_layout.py` prints what breaks a rule today.
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
from package_source import libraries_of, modules, room_of, rooms

RULES: Mapping[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "import": imports.forbidden_imports, "wall": imports.walls_broken,
    "library": imports.misplaced_libraries,
    "kind": content.kinds_spelled, "field": content.fields_used,
    "arithmetic": content.arithmetic, "function": content.long_functions,
    "parameters": content.long_parameter_lists, "file": content.long_files,
    "circle": imports.import_circles, "meaning": content.names_with_two_meanings,
}
"""Each yields what breaks it, by a stable name, and where that is."""


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    broken = [f"{what} ({where})" for what, where in RULES[rule]()]
    assert not broken, f"{len(broken)} against rule {rule}:\n" + "\n".join(broken)


def test_every_folder_has_a_row() -> None:
    """A new folder or module says what it may import, or nobody knows where it belongs."""
    rows = {imports.unit_of(name).replace(f"kinds.{room_of(name)}", "kinds.*")
            for name in modules()}
    assert rows <= set(imports.MAY_IMPORT), sorted(rows - set(imports.MAY_IMPORT))


def test_the_core_is_small() -> None:
    """What a reader has to know: all but the parts behind walls, and of the kinds one."""
    walled = (*imports.PARTS, "compat", *(f"kinds.{room}" for room in rooms()
                                          if room != "collective"))
    core = [module for name, module in modules().items() if not f"{name}.".startswith(
        tuple(f"hpcbench.{part}." for part in walled))]
    assert sum(len(module.text.splitlines()) for module in core) <= content.MOST_CORE_LINES


def test_every_exception_is_still_needed() -> None:
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
    assert not imports.is_allowed("trace", "measurement")
    assert imports.is_allowed("measurement", "trace")


if __name__ == "__main__":
    for name, rule in RULES.items():
        for what in sorted(dict(rule())):
            print(f"{name} | {what}")
