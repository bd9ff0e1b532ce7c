"""Cases that are the same program are named as such: in the record, the table and the chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from figure_texts import charts_of_kind
from hpcbench.kinds.training.derive.fingerprints import same_programs
from hpcbench.reduce.results import CaseResult
from hpcbench.report.console import print_results
from hpcbench.report.summary import write_summary
from results_factory import make_results
from training_results import trained, training_case


def of_buckets(*sizes_mib: int, **changes: Any) -> list[CaseResult]:
    return [trained(training_case("data", index=index, options=(
        ("bucket_mb", mib), ("bucket_view", False), ("comm_hook", "none")), **changes))
        for index, mib in enumerate(sizes_mib)]


def test_buckets_that_all_hold_the_whole_model_are_one_program() -> None:
    items = of_buckets(25, 50, 100)
    first = items[0].case.case_id
    assert same_programs(items) == {item.case.case_id: first for item in items[1:]}


def test_other_buckets_are_other_programs() -> None:
    """Of 64 layers no such bucket holds all."""
    assert same_programs(of_buckets(1, 2, 4, layers=64)) == {}


@pytest.mark.parametrize("other", [
    {"batch_size": 8}, {"dtype": "bf16"}, {"optimizer": "sgd"}, {"communication": "off"}])
def test_what_differs_otherwise_is_another_program(other: dict[str, Any]) -> None:
    one, = of_buckets(25)
    assert same_programs([one, *of_buckets(50, **other)]) == {}


def test_other_options_are_other_programs() -> None:
    one, = of_buckets(25)
    view = trained(training_case("data", index=1, options=(
        ("bucket_mb", 25), ("bucket_view", True), ("comm_hook", "none"))))
    assert same_programs([one, view]) == {}


def test_table_chart_and_summary_name_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    items = of_buckets(25, 50, 100)
    results = make_results(tuple(items))
    print_results(results, tmp_path)
    assert ("data bucket_mb=25: the same program as data bucket_mb=50, data bucket_mb=100; what "
            "they differ by is noise") in " ".join(capsys.readouterr().out.split())
    charts = [chart for chart in charts_of_kind("training", items) if "step" in chart.title]
    assert any("the same program as" in note for chart in charts for note in chart.notes)
    write_summary(results, tmp_path)
    rows = json.loads((tmp_path / "summary.json").read_text())["results"]["training"]["data"]
    assert [row["same_program_as"] for row in rows] == [None, *[rows[0]["case_id"]] * 2]
