"""The check that the checks of a plug-in's kind were made (docs/checks.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbench.kinds.registry import kinds
from hpcbench.reduce.checks import Violation
from hpcbench.reduce.kind_facts import Deriver
from hpcbench.reduce.reduce import reduce_folder
from synthetic import make_plan, write_synthetic_run


class LateFault(Deriver):
    """Raises when its first problem is asked for."""

    def problems(self, *facts: object) -> Iterator[Violation]:
        yield from [{}["time"]]


class EarlyFault(Deriver):
    """Cannot be made."""

    def __init__(self) -> None:
        raise KeyError("time")


@pytest.mark.parametrize("deriver", [LateFault, EarlyFault])
def test_hb153_checks_of_a_plug_in_that_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deriver: type[Deriver],
) -> None:
    faulty = replace(kinds()["collective"], deriver_path=f"{__name__}:{deriver.__name__}")
    monkeypatch.setattr("hpcbench.reduce.outcome.kinds", lambda: {"collective": faulty})
    write_synthetic_run(tmp_path / "run", make_plan(n_cases=1, world_size=2, iterations=20))
    results = reduce_folder(tmp_path / "run")
    assert [item.status for item in results.cases] == ["ok"]
    (told,) = (item for item in results.findings if item.code == "HB153")
    assert told.scope == "note"
    assert "the checks of kind collective raised KeyError: 'time'" in told.message


def test_checks_of_a_kind_of_hpcbench_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raises(*facts: object) -> None:
        raise KeyError("time")

    monkeypatch.setattr(
        "hpcbench.kinds.collective.derive.CollectiveDeriver.problems", raises)
    write_synthetic_run(tmp_path / "run", make_plan(n_cases=1, world_size=2, iterations=20))
    with pytest.raises(KeyError, match="time"):
        reduce_folder(tmp_path / "run")
