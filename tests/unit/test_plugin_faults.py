"""Plug-ins that are wrong: each is told, and costs only itself (docs/plugins.md)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpcbench import plugins
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
from launcher import ROOT
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


SPECS = ("CollectiveSpec", "ImplementationSpec", "KindSpec", "PrimitiveSpec", "Problem",
         "StrategySpec", "Traffic", "Values", "Work", "not_divided", "Planner", "Deriver",
         "Presenter", "Workload", "Case", "Block")


def typed_names() -> dict[str, str]:
    """Return what type checkers see: the module of each name."""
    found, files = {}, [Path(plugins.__file__)]
    while files:
        tree = ast.parse(files.pop().read_text(encoding="utf-8"))
        (block,) = [node for node in tree.body if isinstance(node, ast.If)]
        for node in block.body:
            assert isinstance(node, ast.ImportFrom)
            module = str(node.module)
            if [alias.name for alias in node.names] == ["*"]:
                files.append(ROOT / f"{module.replace('.', '/')}.py")
                continue
            found |= {alias.name: module for alias in node.names}
    return found


def test_type_checkers_see_the_names_that_there_are() -> None:
    assert sorted(typed_names()) == dir(plugins)
    for name, module in typed_names().items():
        assert getattr(plugins, name) is getattr(sys.modules[module], name), name


def test_plug_ins_of_the_tests_import_nothing_else_of_hpcbench() -> None:
    for path in (ROOT / "tests/data").glob("*plugin/**/*.py"):
        for line in path.read_text("utf-8").splitlines():
            if line.startswith(("from hpcbench.", "import hpcbench.")):
                assert line.startswith("from hpcbench.plugins import"), (path, line)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PrimitivSpec'"):
        plugins.PrimitivSpec  # noqa: B018


def test_specifications_need_no_torch() -> None:
    """Nor numpy, but for derivers, which compute with it."""
    names = ", ".join(name for name in SPECS if name != "Deriver")
    code = f"import sys; from hpcbench.plugins import {names}; found = 'numpy' in sys.modules; " \
           "from hpcbench.plugins import Deriver; sys.exit('torch' in sys.modules or found)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_what_packages_and_the_page_take_from_it_is_there() -> None:
    """The toys under tests/data, the packages in plugins/, and docs/plugins.md."""
    files = [ROOT / "docs/plugins.md", *(ROOT / "plugins").rglob("*.py"),
             *(ROOT / "tests/data").glob("*plugin*/**/*.py")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    taken = {name.strip() for names in re.findall(
        r"from hpcbench\.plugins import (?:\(([^)]*)\)|(.*))", text)
        for name in ",".join(names).replace("\n", ",").split(",") if name.strip()}
    taken |= set(re.findall(r"(?<![\w.-])plugins\.([A-Za-z]\w*)", text))
    assert {"Deriver", "chart", "table"} <= taken
    assert not {name for name in taken - {"py", "md"} if not hasattr(plugins, name)}
