"""docs/primitives.md and docs/plugins.md say what the code has: tables, options, files."""

from __future__ import annotations

import json
import re

import pytest

from hpcbench.config.load import check_config
from hpcbench.kinds.primitive.plan.implementations import load_registry
from hpcbench.kinds.primitive.plan.spec import LAYERS
from hpcbench.kinds.primitive.present import cells, reasons
from hpcbench.measurement.runner import Runner
from hpcbench.plan.case import Planner
from hpcbench.plan.workload import Workload
from hpcbench.reduce.kind_facts import Deriver
from hpcbench.views.presenter import Presenter
from launcher import ROOT

DOC = (ROOT / "docs/primitives.md").read_text()
PLUGINS = (ROOT / "docs/plugins.md").read_text()
KIND = ROOT / "tests/data/kind_plugin"
REGISTRY = load_registry()
OUR_OWN = {"implementer", "name", "record", "to_json"}
"""What kinds do not answer: it follows from hooks or fields; or it is a class, no hook."""
OURS = [name for name in cells(REGISTRY) if name in REGISTRY.implementations]


def test_every_empty_cell_has_a_reason_of_its_own() -> None:
    assert all(reason and "nobody" not in reason for (name, _), reason in reasons(REGISTRY).items()
               if name in OURS)


def test_every_primitive_order_option_and_implementation_is_described() -> None:
    rows = [line.split(" | ") for line in DOC.splitlines() if line.startswith("|")]
    for name, spec in REGISTRY.primitives.items():
        at = next(i for i, row in enumerate(rows) if row[0] == f"| `{name}`")
        own = [row[1] for row in rows[at:at + len(spec.orders)]]
        assert own == [f"`{order}`" for order in spec.orders]
        for option, values in spec.options.items():
            described(rows, option, [str(item) for item in values.allowed])
    for name in OURS:
        assert any(row[0].startswith(f"| `{name}`") for row in rows)
        for spec_of in REGISTRY.implementations[name]:
            for option, values in spec_of.options.items():
                described(rows, option, [str(item) for item in values.allowed])


def described(rows: list[list[str]], option: str, allowed: list[str]) -> None:
    found = [row for row in rows if row[0] == f"| `{option}`" and len(row) == 3]
    assert found and all(f"`{value}`" in found[0][2] for value in allowed), option


def test_layers_are_described() -> None:
    for layer in LAYERS:
        row = next(line for line in DOC.splitlines() if line.startswith(f"| `{layer}` |"))
        takers = [name for name, spec in REGISTRY.primitives.items() if layer in spec.layers]
        assert re.findall(r"`(\w+)`", row.split(" | ")[-1]) == takers


def test_examples_load() -> None:
    texts = re.findall(r"```json\n(.*?)```", DOC + PLUGINS, re.DOTALL)
    assert texts
    for text in texts:
        check_config(json.loads(text), "docs")


def test_the_page_on_plug_ins_has_every_file_of_a_kind() -> None:
    shown = set(re.findall(r"`(\w+\.(?:py|toml))`", PLUGINS))
    assert {path.name for path in KIND.rglob("*.*") if path.suffix != ".pyc"} == shown


SIDES = (Workload, Planner, Runner, Deriver, Presenter)
MOST_HOOKS = 26
"""Of a kind: it stays small."""


def hooks_of(side: type) -> set[str]:
    return {name for name, value in vars(side).items() if not name.startswith("_")
            and (callable(value) or isinstance(value, property))} - OUR_OWN


def test_a_kind_has_few_hooks() -> None:
    assert sum(len(hooks_of(side)) for side in SIDES) <= MOST_HOOKS


@pytest.mark.parametrize("side", SIDES)
def test_the_page_on_plug_ins_has_every_hook_of_a_kind(side: type) -> None:
    (row,) = re.findall(rf"^\| \[`{side.__name__}`\]\(\.\./(\S+)\) \|(.*)\|(.*)\|$",
                        PLUGINS, re.M)
    needed, others = (re.findall(r"`(\w+)`", cell) for cell in row[1:])
    assert sorted(needed + others) == sorted(hooks_of(side))
    assert set(needed) == getattr(side, "__abstractmethods__", frozenset())
    assert f"class {side.__name__}(" in (ROOT / row[0]).read_text(encoding="utf-8")
    assert all(getattr(side, name).__doc__ for name in hooks_of(side))
