"""Kinds of other packages that raise: each costs what it was asked for, and the reason is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpcbench.kinds.registry import KindSpec, kinds
from hpcbench.plan.case import Planner, case_from_json, case_to_json
from hpcbench.plan.workload import Label, UnknownWorkload, Workload
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import print_listing
from hpcbench.report.summary import case_rows, summary_document
from hpcbench.trace.source import plan_from_text, plan_to_text
from hpcbench.views.chart import Look
from hpcbench.views.presenter import Presenter, presenter_of
from hpcbench.views.table import Column, Group, Row, Table
from results_factory import make_case, make_plan, make_results, ok

if TYPE_CHECKING:
    from decimal import Decimal

Capture = pytest.CaptureFixture[str]
STORED = {"milliseconds": 5, "dtype": "uint8", "groups": 1}
SLEEP = UnknownWorkload(STORED, "sleep")
CASE = replace(make_case(), kind="sleep", block="naps", workload=SLEEP)


@dataclass(frozen=True)
class Opaque(Workload):
    """A workload with a type that is known to a type checker only."""

    length: Decimal
    dtype: str = "uint8"
    groups: int = 1

    def label(self, world_size: int) -> Label:
        return Label("opaque", ["opaque"])


class BadPlanner(Planner):
    """Rebuilds opaque workloads, and raises for others."""

    lengths = cases = None  # type: ignore[assignment]

    def workload_from_json(self, data: Mapping[str, Any]) -> Opaque:
        return Opaque(data["length"])


class BadPresenter(Presenter[Any, Any]):
    """Raises wherever it is asked, some of it late."""

    fields = ("milliseconds",)

    def _late(self, *values: object) -> Iterator[Any]:
        yield Table("half", (Column("a", "a"),), (Group("", (Row(("b",)),)),))
        raise ZeroDivisionError("late")

    def _early(self, *values: object) -> Any:
        raise ZeroDivisionError("early")

    listing = overviews = _late
    tables = dry_run_lines = words = row = sections = heat_map_case = _early


class Stillborn(Presenter[Any, Any]):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ZeroDivisionError("at once")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install kind sleep with the sides above."""
    sleep = replace(kinds()["collective"], name="sleep", aliases=(),
                    planner_path=f"{__name__}:BadPlanner",
                    presenter_path=f"{__name__}:BadPresenter")
    known = {**kinds(), "sleep": sleep}
    for module in ("kinds.registry", "plan.case", "report.summary", "report.plan_lines",
                   "views.presenter"):
        monkeypatch.setattr(f"hpcbench.{module}.kinds", lambda: known)
    presenter_of.cache_clear()
    yield
    presenter_of.cache_clear()


def test_a_workload_of_a_kind_that_is_not_installed_is_named_by_its_kind() -> None:
    case = case_from_json(case_to_json(CASE))
    assert case.workload == SLEEP
    assert case.label.startswith("sleep ") and "milliseconds=5" in case.label


@pytest.mark.usefixtures("install")
def test_a_workload_that_its_plug_in_cannot_rebuild_stays_as_it_is_stored() -> None:
    plan = plan_from_text(plan_to_text(make_plan((CASE,))), Path("plan.json"))
    assert plan.cases == (CASE,)


@pytest.mark.usefixtures("install")
def test_types_of_a_plug_in_that_cannot_be_resolved_are_not_checked() -> None:
    text = plan_to_text(make_plan((replace(CASE, workload=Opaque("1.5")),)))  # type: ignore[arg-type]
    assert plan_from_text(text, Path("plan.json")).cases[0].workload.name == "opaque"


def test_a_built_in_kind_raises_for_a_workload_that_it_cannot_rebuild() -> None:
    with pytest.raises((TypeError, KeyError)):
        case_from_json({**case_to_json(CASE), "kind": "collective"})


@pytest.mark.usefixtures("install")
def test_a_presenter_that_raises_costs_its_own_tables(capsys: Capture, tmp_path: Path) -> None:
    slept = ok(replace(CASE, index=1, case_id="0" * 12), 2e-3)
    results = make_results((ok(make_case(), 1e-3), slept))
    rows = case_rows(results)
    assert [row["median_s"] for row in rows] == [1e-3, 2e-3]
    assert summary_document(results, rows)["totals"]["ok"] == 2
    print_results(results, tmp_path)
    told = capsys.readouterr().out
    assert "sleep milliseconds=5" in told and "1.98..2.04" in told and "half" not in told
    assert "kind sleep: its presenter's row raised ZeroDivisionError: early" in told


@pytest.mark.usefixtures("install")
def test_a_listing_that_raises_is_reported(capsys: Capture) -> None:
    print_listing(None, probe=False)
    told = capsys.readouterr().out
    assert "kind sleep: its presenter's listing raised ZeroDivisionError: late" in told
    assert "timing modes" in told


@pytest.mark.usefixtures("install")
def test_every_answer_is_that_of_any_kind() -> None:
    presenter, item = presenter_of("sleep"), ok(CASE, 1e-3)
    assert presenter.fields == ("milliseconds",)
    assert list(presenter.overviews([item], {})) == []
    assert presenter.words([SLEEP]) == ((), ["uint8"], ())
    assert list(presenter.dry_run_lines(SLEEP, None)) == []
    assert presenter.plan_table("naps", [CASE], listed=True, hardware={}) is None
    assert presenter.heat_map_case(CASE) is None
    assert presenter.row(item, None) == presenter.sections([], [item], {}) == {}


def test_a_presenter_that_cannot_be_made_states_why() -> None:
    presenter = KindSpec("naps").guarded("presenter", f"{__name__}:Stillborn", Presenter)
    assert "Stillborn cannot be loaded: ZeroDivisionError: at once" in presenter.problem
    assert presenter.tables("naps", [], {}) is None


class Coloured(Presenter[Any, Any]):
    """Its parts of a sample look alike in all charts."""

    part_looks = {"nap": Look("nap", "#123456")}


def test_styles_of_parts_are_taken_over_from_a_plug_in() -> None:
    presenter = KindSpec("naps").guarded("presenter", f"{__name__}:Coloured", Presenter)
    assert presenter.part_looks == Coloured.part_looks
    assert presenter.ranks_word == "ranks"
