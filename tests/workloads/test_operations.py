"""What a job imports: only what the kinds of its cases need."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from hpcbench.kinds.primitive.plan.implementations import IMPLEMENTATIONS, PRIMITIVES
from hpcbench.kinds.primitive.run.implementations import in_turn

TRAININGS = "hpcbench.kinds.training.run.runner"
SLOW = "torch.distributed.tensor"
"""With what it imports it takes 1.2 s of CPU time on every rank, where torch takes 1.9 s."""


@pytest.fixture(scope="module")
def imported() -> list[str]:
    """Return whether modules of trainings are imported with other kinds, and then with them."""
    code = ("import sys, hpcbench.worker; from hpcbench.measurement.runner import runner_of\n"
            "for kinds in ['collective', 'primitive'], ['training']:\n"
            "    [runner_of(name) for name in kinds]\n"
            f"    print({TRAININGS!r} in sys.modules, {SLOW!r} in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=120, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(("at", "expected"), [(0, False), (1, True)], ids=["others", "trainings"])
def test_kinds_that_no_case_has_are_not_imported(
    imported: list[str], at: int, expected: bool,
) -> None:
    assert imported[at].split() == [str(expected)] * 2


def test_every_implementation_has_the_classes_that_its_row_names() -> None:
    """In a plan they are texts, and what only loads with a case must load, too."""
    paths = {path for spec in IMPLEMENTATIONS if "triton" not in spec.modules
             for path in spec.runners.values()} | {spec.inputs for spec in PRIMITIVES}
    for module, _, name in (path.partition(":") for path in paths):
        assert isinstance(getattr(import_module(module), name), type), name
    assert import_module(f"{in_turn.__package__}.functional_collectives")
