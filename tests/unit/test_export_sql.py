"""The question in SQL of docs/other-tools.md, about fifty runs whose answer is known."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcbench.interop.formats.export.cases import ExportedRun, ExportRequest, exported_run
from hpcbench.interop.formats.export.tables import as_csv, as_parquet
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.results_file import ResultsFile
from launcher import ROOT
from results_factory import make_results, model_time_s, not_ok, ok, sweep

PAGE = (ROOT / "docs/other-tools.md").read_text(encoding="utf-8")
(QUESTION,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
FIRST = datetime(2026, 9, 1, 2, tzinfo=timezone.utc)
NIGHTS, BROKEN_AT = 50, 30
CASES = tuple(
    replace(case, workload=replace(case.workload, in_place=True))
    for case in sweep(collectives=("all_reduce",), sizes=(4096, 2**20), world_sizes=(2,)))
BROKEN = CASES[2]


def night_result(case: Case, night: int) -> CaseResult:
    """Return the case in one night: BROKEN since a new torch."""
    if case is BROKEN and night >= BROKEN_AT:
        return not_ok(case, "wrong", "3 wrong elements on rank 1", blamed_rank=1, n_wrong=3)
    return ok(case, model_time_s(case) * (1 + 0.001 * (night % 5)))


def fifty_runs() -> Iterator[ExportedRun]:
    for night in range(NIGHTS):
        results = make_results(
            tuple(night_result(case, night) for case in CASES), run_id=f"night-{night}",
            nodes=(f"node{night % 2 + 1}",), versions={
                "torch": "2.12.0" if night < BROKEN_AT else "2.13.0", "mpi": "MPICH 5.0.2"},
            started_at=(FIRST + timedelta(days=night)).strftime("%Y-%m-%dT%H:%M:%S%z"))
        source = SimpleNamespace(results=results, clock_models=dict)
        yield exported_run(cast("ResultsFile", source))


def columns_read(query: str) -> set[str]:
    """Return the names in a query that it does not make itself: no functions, no aliases."""
    plain = re.sub(r"'[^']*'", "", query)
    made = re.findall(r"\bAS (\w+)|(\w+) AS \(", plain)
    own = {name for names in made for name in names if name}
    return set(re.findall(r"(?<![\w.])[a-z]\w*\b(?!\()", re.sub(r"\b(\w+)\.", "", plain))) - own


def test_the_columns_of_the_question_are_in_the_tables() -> None:
    runs = [*fifty_runs()]
    names = as_csv(runs, ExportRequest()).content.decode().split("\n")[0].split(",")
    read = columns_read(QUESTION)
    assert {"started_at", "status"} <= read <= set(names), read - set(names)
    assert set(re.findall(r"`(\w+)`", PAGE.partition("behind `run_id`")[2].partition(";")[0])) <= {
        *names}


def test_the_file_has_them_too_with_what_a_run_is(tmp_path: Path) -> None:
    parquet = pytest.importorskip(
        "pyarrow.parquet", reason="pyarrow is not installed")
    (tmp_path / "runs.parquet").write_bytes(as_parquet([*fifty_runs()], ExportRequest()).content)
    table = parquet.read_table(tmp_path / "runs.parquet")
    assert columns_read(QUESTION) <= set(table.column_names)
    first = table.to_pylist()[0]
    assert (first["hosts"], first["torch"], first["mpi"], first["nccl"]) == (
        "node1", "2.12.0", "MPICH 5.0.2", None)
    assert table.num_rows == NIGHTS * len(CASES)


@pytest.fixture
def answer(tmp_path: Path) -> list[tuple[Any, ...]]:
    """What DuckDB answers to the question, run where the file lies."""
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    (tmp_path / "runs.parquet").write_bytes(as_parquet([*fifty_runs()], ExportRequest()).content)
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        rows: list[tuple[Any, ...]] = duckdb.sql(QUESTION).fetchall()
        return rows
    finally:
        os.chdir(before)


def test_duckdb_finds_what_was_planted(answer: list[tuple[Any, ...]]) -> None:
    assert [row[:3:2] for row in answer] == [
        (4096, "mpi"), (4096, "gloo"), (2**20, "mpi"), (2**20, "mpi")]


def test_the_page_shows_this_answer(answer: list[tuple[Any, ...]]) -> None:
    (shown,) = re.findall(r"```text\n[^,]*,.*\n((?:.+\n)+)```", PAGE)
    assert [row.split(",") for row in shown.splitlines()] == [
        [str(value) for value in row] for row in answer]
