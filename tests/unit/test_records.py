"""Derived records are stored once and read as written; their methods are compiled when called."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from operator import eq
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from pydantic import TypeAdapter

from golden import RUNS
from hpcbench import records
from hpcbench.kinds.collective.derive import CollectiveDeriver
from hpcbench.kinds.registry import kinds
from hpcbench.plan.case import plan_to_json
from hpcbench.plan.workload import UnknownWorkload
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import CaseColumn, Deriver, deriver_of
from hpcbench.reduce.metric import ABSENT, metric, metrics_over_passes, values_over_passes
from hpcbench.reduce.records import with_records
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import CaseResult, CaseSamples, Results
from hpcbench.reduce.results_file import ResultsWriter, new_results, open_results
from hpcbench.report.summary import case_rows
from hpcbench.statistics.overlap import OverPasses
from hpcbench.views.presenter import Presenter, presenter_of
from results_factory import all_ok, sweep

Records = Mapping[str, Any]
Install = Callable[[type[Deriver]], None]


def read(path: Path) -> Results:
    with open_results(path) as file:
        return file.results


@pytest.fixture
def stored() -> Iterator[tuple[Results, h5py.File]]:
    """Return results without records, and a file that has them."""
    with h5py.File("records", "w", driver="core", backing_store=False) as file:
        results = all_ok(sweep())
        ResultsWriter(file).finish(results)
        yield replace(results, derived={}), file


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replace the deriver of collectives."""
    def replace_deriver(deriver: type[Deriver]) -> None:
        monkeypatch.setattr("hpcbench.reduce.kind_facts.deriver_of", lambda spec: deriver())

    return replace_deriver


class Observing(CollectiveDeriver):
    """Puts into each record how many samples there were, as its stamps show."""

    version = 99

    def observe(self, item: CaseResult, samples: CaseSamples) -> dict[str, Any]:
        return {"busbw_factor": float(samples.start_ns.shape[1])}


class Blind(CollectiveDeriver):
    """Raises when it sees stamps."""

    def observe(self, item: CaseResult, samples: CaseSamples) -> dict[str, Any]:
        raise RuntimeError("no eyes")


class Stating(CollectiveDeriver):
    """States a column of its own."""

    columns = (CaseColumn("weight_kg", "kg", "weight of the cable"),)
    weight: Any = 2

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        return {item.case.case_id: {"weight_kg": self.weight} for item in items}


@pytest.mark.parametrize(("changes", "reason"), [
    ({"columns": (CaseColumn("status", "1", "taken"),)}, "cannot have the name 'status'"),
    ({"columns": (CaseColumn("timing", "1", "taken"),)}, "cannot have the name 'timing'"),
    ({"columns": (CaseColumn("a/b", "1", "no name"),)}, "cannot have the name 'a/b'"),
    ({"columns": (CaseColumn("weight_kg", "g", "text"), CaseColumn("n", "1", "taken"))},
     "cannot have the name 'n'"),
])
def test_a_kind_that_cannot_state_its_columns_costs_these_only(
    tmp_path: Path, install: Install, changes: dict[str, Any], reason: str,
) -> None:
    folder = tmp_path / "collective"
    shutil.copytree(RUNS["collective"], folder, ignore=shutil.ignore_patterns("results.h5"))
    install(Stating)
    reduce_folder(folder)
    with h5py.File(folder / "results.h5") as file:
        assert set(file["cases/weight_kg"][:]) == {2.0}
        assert file["cases/weight_kg"].attrs["description"] == "collective: weight of the cable"
    install(type("Bad", (Stating,), changes))
    reduce_folder(folder)
    with h5py.File(folder / "results.h5") as file:
        (why,) = file["cases"].attrs["without_columns"]
        assert why.startswith("collective: ") and reason in why
        assert "weight_kg" not in file["cases"] and "median_s" in file["cases"]


def test_records_hold_what_follows_from_stamps_reduced_or_read(
    tmp_path: Path, install: Install,
) -> None:
    folder = tmp_path / "collective"
    shutil.copytree(RUNS["collective"], folder, ignore=shutil.ignore_patterns("results.h5"))
    reduce_folder(folder)
    install(Observing)
    derived_again = read(folder).derived
    assert reduce_folder(folder).derived == derived_again == read(folder).derived
    with open_results(folder) as file:
        for item in file.results.cases:
            samples = file.samples(item.case.case_id)
            if item.statistics is not None and samples is not None:
                record = file.results.record_of(item)
                assert record is not None
                assert record["busbw_factor"] == samples.start_ns.shape[1]


def test_a_kind_that_cannot_read_stamps_costs_its_own_records_only(
    tmp_path: Path, install: Install,
) -> None:
    folder = tmp_path / "collective"
    shutil.copytree(RUNS["collective"], folder, ignore=shutil.ignore_patterns("results.h5"))
    install(Blind)
    results = reduce_folder(folder)
    assert results.derived == {}
    assert "RuntimeError: no eyes" in results.missing_kinds["collective"]


class Silent(CollectiveDeriver):
    """Derives nothing, which shows whether it was asked."""

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        return {}


class Newer(Silent):
    """Has other formulas."""

    version = CollectiveDeriver.version + 1


class Changed(Silent):
    """Has a number more."""

    columns = (*CollectiveDeriver.columns, metric("weight_kg", "weight of the cable", "kg"))


def test_stored_records_are_not_derived_again(
    stored: tuple[Results, h5py.File], install: Install,
) -> None:
    install(Silent)
    found = with_records(*stored).derived["collective"]
    assert all(values["algbw_bytes_per_s"] for values in found.values())
    assert len(found) == len(stored[0].cases)


@pytest.mark.parametrize("deriver", [Newer, Changed])
def test_records_of_another_version_or_form_are_derived_again(
    stored: tuple[Results, h5py.File], install: Install, deriver: type[Deriver],
) -> None:
    install(deriver)
    found = with_records(*stored).derived["collective"]
    assert {value for values in found.values() for value in values.values()} == {None}


@pytest.mark.parametrize("column", [None, np.zeros(99, np.int64), np.zeros(1)])
def test_columns_that_cannot_be_read_are_derived_again(
    stored: tuple[Results, h5py.File], column: npt.NDArray[Any] | None,
) -> None:
    results, file = stored
    del file["cases/busbw_factor"]
    if column is not None:
        file["cases/busbw_factor"] = column
    assert with_records(results, file).derived == with_records(results).derived


class Endless(CollectiveDeriver):
    """Derives what no file can hold."""

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        return {item.case.case_id: {"busbw_factor": math.inf} for item in items}


class Unstorable(CollectiveDeriver):
    """Derives a document with a number that JSON does not have."""

    columns = metrics_over_passes("gain", "over the last one", "1")

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        return {item.case.case_id: {"gain_passes": OverPasses(1.0, 1.0, math.inf, 5)}
                for item in items}


class Heavy(CollectiveDeriver):
    """Derives a text where a number is declared."""

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        return {item.case.case_id: {"busbw_factor": "heavy"} for item in items}


class Broken(CollectiveDeriver):
    """Cannot derive anything."""

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        raise KeyError("lost")


@pytest.mark.parametrize(("deriver", "reason"), [
    (Endless, "ValueError"), (Unstorable, "ValueError"), (Heavy, "TypeError"),
    (Broken, "'lost'")])
def test_a_kind_that_cannot_derive_costs_its_records_only(
    stored: tuple[Results, h5py.File], install: Install, deriver: type[Deriver], reason: str,
) -> None:
    install(deriver)
    results = with_records(stored[0])
    assert results.cases == stored[0].cases
    assert results.derived == {}
    assert reason in results.missing_kinds["collective"]


def test_results_of_a_kind_that_is_not_installed_open(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RUNS["mixed"], folder, ignore=shutil.ignore_patterns("results.h5"))
    known = reduce_folder(folder)
    plan = json.loads((folder / "plan.json").read_text())
    for case in plan["cases"]:
        case["kind"] = "absent" if case["kind"] == "primitive" else case["kind"]
    (folder / "plan.json").write_text(json.dumps(plan))
    reduce_folder(folder)
    found = read(folder)
    assert [(item.case.case_id, item.status, item.statistics) for item in found.cases] == [
        (item.case.case_id, item.status, item.statistics) for item in known.cases]
    lost = [item for item in found.cases if item.case.kind == "absent"]
    assert lost
    assert all(isinstance(item.case.workload, UnknownWorkload) for item in lost)
    assert all(item.case.label and found.record_of(item) is None for item in lost)
    assert "not installed" in found.missing_kinds["absent"]
    assert set(found.derived) == {"collective", "training"}
    stored = {case["case_id"]: case for case in plan_to_json(found.plan)["cases"]}
    assert all(stored[case["case_id"]]["workload"] == case["workload"]
               for case in plan["cases"] if case["kind"] == "absent")


class Written(CollectiveDeriver):
    """Has a number over passes, which is no scalar."""

    columns = (*CollectiveDeriver.columns, *metrics_over_passes("gain", "over the last one", "1"))

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        return {item.case.case_id: values_over_passes("gain", passes) for item, passes in zip(
            items, (OverPasses(2.0, 1.0, 3.0, 5), OverPasses(2.0, 1.0, 3.0, 5, tells=False)),
            strict=False)}


def test_what_is_no_scalar_is_a_json_column_that_is_read_back(
    install: Install, tmp_path: Path,
) -> None:
    install(Written)
    results = all_ok(sweep())
    with new_results(tmp_path / "results.h5") as writer:
        writer.finish(results)
    derived = read(tmp_path / "results.h5").derived["collective"]
    assert derived == results.derived["collective"]
    first, second, third, *_ = derived.values()
    assert first["gain"] == 2.0 and first["gain_passes"] == OverPasses(2.0, 1.0, 3.0, 5)
    assert second["gain"] is None and second["gain_passes"].median == 2.0
    assert third["gain"] is third["gain_passes"] is None
    assert "gain_passes" not in results.kind_columns.values[results.cases[0].case.case_id]


def test_units_of_columns_are_those_that_their_names_end_with() -> None:
    for spec in kinds().values():
        for column in deriver_of(spec).columns:
            name = column.name.partition("_of_peak")[0]
            assert column.units == metric(name, "").units or column.units not in (
                "s", "bytes", "bytes/s"), column


@pytest.mark.parametrize("lost", ["collective", "primitive"])
def test_columns_of_a_kind_that_is_not_installed_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str,
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RUNS["mixed"], folder, ignore=shutil.ignore_patterns("results.h5"))
    whole = reduce_folder(folder)
    before, rows_before = whole.kind_columns, case_rows(whole)
    installed = {kind: spec for kind, spec in kinds().items() if kind != lost}
    for module in ("reduce.records", "report.summary"):
        monkeypatch.setattr(f"hpcbench.{module}.kinds", lambda: installed)
    monkeypatch.setattr("hpcbench.report.summary.presenter_of", lambda kind: (
        Presenter() if kind == lost else presenter_of(kind)))
    with open_results(folder) as file:
        after, items = file.results.kind_columns, file.results.cases
        summary = case_rows(file.results)
        assert lost not in file.results.derived
    told = [(row[name], value) for row, stored in zip(rows_before, summary, strict=True)
            for name, value in stored.items() if row["kind"] == lost and name != "options"
            and value is not None]
    assert len(told) > 50 and all(map(eq, *zip(*told, strict=True)))
    assert {(one.name, one.units, one.type, one.apart) for one in after.columns} == {
        (one.name, one.units, one.type, one.apart) for one in before.columns}
    absent = {one.name: ABSENT[one.type] for one in before.columns}
    for case_id in (item.case.case_id for item in items):
        rows = [absent | dict(known.values[case_id]) for known in (before, after)]
        assert repr(rows[0]) == repr(rows[1])  # NaN is NaN


@dataclass(frozen=True, slots=True)
class Point:
    """A place."""

    x: int
    names: list[str] = field(default_factory=list, compare=False)
    y: int = field(default=2, kw_only=True)
    origin: ClassVar[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", abs(self.x))


@dataclass(frozen=True, slots=True)
class Named(Point):
    """A record with a base."""

    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs(Point):
    """A record of another package."""

    size: int = 1


def test_values_are_kept_compared_and_shown() -> None:
    point = Point(-1, y=3)
    assert (point.x, point.names, point.y) == (1, [], 3)
    assert point == Point(1, ["a"], y=3) != Point(1)
    assert {point: 1}[Point(1, y=3)] == 1
    assert repr(point) == "Point(x=1, names=[], y=3)"
    assert Point(1) != Named(1) and Named(1, name="a").name == "a"
    assert Theirs(1, size=4) == Theirs(-1, size=4)
    with pytest.raises(TypeError, match=r"Point\.__init__\(\) missing 1 required"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Point(1, [], 3)  # type: ignore[call-arg]


@pytest.mark.parametrize("copied", [
    copy.copy, copy.deepcopy, dataclasses.replace, lambda one: pickle.loads(pickle.dumps(one)),
    lambda one: TypeAdapter(Point).validate_python(TypeAdapter(Point).dump_python(one))])
def test_a_copy_is_equal(copied: Callable[[Point], Point]) -> None:
    assert copied(Point(5, ["b"])) == Point(5, ["b"])
    assert copied(Point(5, ["b"])).names == ["b"]


@pytest.mark.parametrize("name", ["x", "new"])
def test_nothing_can_be_set_or_deleted(name: str) -> None:
    for change in (lambda one: setattr(one, name, 1), lambda one: delattr(one, name)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change(Point(1))


def test_only_what_is_called_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, str]] = []
    compile_one = records._compiled

    def noted(record: Any, name: str) -> Any:
        compiled.append((record.__name__, name))
        return compile_one(record, name)

    monkeypatch.setattr(records, "_compiled", noted)

    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int

    assert not compiled
    assert Fresh(1) == Fresh(1)
    assert compiled == [("Fresh", "__init__"), ("Fresh", "__eq__")]
