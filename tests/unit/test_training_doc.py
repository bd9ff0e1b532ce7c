"""docs/training.md says of models, strategies and options what is true."""

from __future__ import annotations

import json
import re

import pytest

from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.any_model import RESNETS
from hpcbench.kinds.training.plan.models import DEFINITIONS
from hpcbench.kinds.training.plan.spec import SCHEDULE_NAMES, StrategySpec, strategies
from hpcbench.operations.models import MODELS
from hpcbench.plan.expand import make_plan
from launcher import ROOT

DOC = (ROOT / "docs/training.md").read_text()


def rows(title: str) -> dict[str, list[str]]:
    """Return the cells of a section's table by each name in the first of them."""
    section = DOC.split(f"\n## {title}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in section.splitlines() if line.startswith("| `")]
    return {name: found for found in cells for name in re.findall(r"`([^`]+)`", found[0])}


def test_every_model_is_named() -> None:
    section = DOC.split("\n## Models\n")[1].split("\n## ")[0]
    assert not [name for name in (*MODELS, *RESNETS) if f"`{name}`" not in section]


@pytest.mark.parametrize("spec", strategies(), ids=lambda spec: spec.name)
def test_every_strategy_is_listed_with_its_options(spec: StrategySpec) -> None:
    table = rows("Strategies")
    assert set(table) == {each.name for each in strategies()}
    told = table[spec.name][2]
    inherited = {"hybrid": ("tensor", "pipeline")}.get(spec.name, ())
    own = {option: values for option, values in spec.options.items()
           if not any(option in other.options for other in strategies() if other.name in inherited)}
    for option, values in own.items():
        assert f"`{option}`" in told
        if not values.allowed and spec.name not in ("zero1", "hsdp"):
            assert f"`{option}` ({values.default})" in told
    for name in SCHEDULE_NAMES if spec.name == "pipeline" else ():
        assert f"`{name}`" in told
    assert all(f"`{name}`" in table["data"][2] for name in ("none", "bf16", "fp16", "powersgd"))


def test_definitions_are_named_and_examples_plan() -> None:
    assert all(f"`{name}`" in DOC for name in DEFINITIONS)
    (example,) = re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)
    plan = make_plan(check_config(json.loads(example), "docs/training.md"), 4)
    assert plan.cases
    assert not [case.skip for case in plan.cases if case.skip]
