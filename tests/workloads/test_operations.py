"""The classes that plans name as texts."""

from __future__ import annotations

from importlib import import_module

from hpcbench.kinds.primitive.plan.implementations import IMPLEMENTATIONS, PRIMITIVES
from hpcbench.kinds.primitive.run.implementations import in_turn


def test_every_implementation_has_the_classes_that_its_row_names() -> None:
    """In a plan they are texts, and what only loads with a case must load, too."""
    paths = {path for spec in IMPLEMENTATIONS if "triton" not in spec.modules
             for path in spec.runners.values()} | {spec.inputs for spec in PRIMITIVES}
    for module, _, name in (path.partition(":") for path in paths):
        assert isinstance(getattr(import_module(module), name), type), name
    assert import_module(f"{in_turn.__package__}.functional_collectives")
