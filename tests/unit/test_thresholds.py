"""Limits of the sweep file and --fail-below: what they mean, and how a run ends by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from golden import RESULTS
from hpcbench.answers.check import check_own_limits, code_of, final_code, refuse_limits
from hpcbench.config.load import load_config
from hpcbench.config.section import limit_below
from hpcbench.errors import ConfigError, ExitCode
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results
from hpcbench.report.console import print_results
from hpcbench.report.results_lines import limit_lines
from hpcbench.report.summary import case_rows, summary_document


@pytest.fixture(scope="module")
def results() -> Results:
    with open_results(RESULTS["collective"]) as file:
        skipped = {item.case.case_id for item in file.results.cases if item.status == "skipped"}
        return replace(file.results, findings=(), cases=tuple(
            item for item in file.results.cases if item.case.case_id not in skipped))


def limited(results: Results, **config: Any) -> Results:
    return replace(results, plan=replace(results.plan, config=results.plan.config | config))


def test_the_short_form_is_a_limit() -> None:
    limit = limit_below("all_reduce:4MiB:busbw=1.2GB/s")
    assert (limit.metric, limit.min, limit.unit) == ("busbw_bytes_per_s", 1.2, "GB/s")
    assert limit.select == {"label": "all_reduce *", "requested_bytes": 4 * 2**20}
    assert limit_below("*fsdp*:tokens_per_s=5").select == {"label": "*fsdp*"}


@pytest.mark.parametrize(("text", "said"), [
    ("all_reduce", "write NAME[:SIZE]:METRIC=VALUE[UNIT]"),
    ("all_reduce:4MiB:busbw=fast", "write NAME[:SIZE]:METRIC=VALUE[UNIT]"),
    ("all_reduce:4MiB:busbw=1.2Gb/s", 'unit "Gb/s" is not known'),
    ("all_reduce:4XB:busbw=1.2GB/s", "is not a size"),
    ("all_reduce:median_s=3us", "is no rate"),
    ("all_reduce:64KiB:busbw=20", "give its unit: bytes/s, GB/s, MB/s"),
    ("*fsdp*:rank_flops_per_s=20", "give its unit: FLOP/s, TFLOP/s, GFLOP/s"),
])
def test_bad_syntax_is_one_line_before_anything_runs(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(None, [("fail_below", [text])])
    assert said in str(raised.value) and len(str(raised.value).splitlines()) == 1


def test_an_unknown_column_or_unit_is_refused_with_the_plan(results: Results) -> None:
    for text in ("all_reduce:bussbw_bytes_per_s=1", "all_reduce:busbw=1TFLOP/s"):
        with pytest.raises(ConfigError, match="limits of the sweep: limits"):
            refuse_limits(limited(results, fail_below=[text]).plan)
    refuse_limits(results.plan)


def test_a_violation_ends_the_run_with_1_and_a_line(
    results: Results, capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    assert final_code(results) == ExitCode.OK and check_own_limits(results) is None
    failing = limited(results, fail_below=["all_reduce:16KiB:busbw=1000GB/s"])
    checked = check_own_limits(failing)
    assert checked is not None and checked.outcome == "slow" and code_of(checked) == 10
    assert final_code(failing) == ExitCode.FINDINGS
    print_results(failing, tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "HPCBENCH_CHECK" in line]
    assert len(lines) == len(checked.reasons) and "limit min 1000 GB/s" in lines[0]
    plain = summary_document(failing, case_rows(failing))["check"]
    assert (plain["code"], plain["outcome"]) == (10, "slow")


def test_limits_of_the_file_hold_or_select_nothing(results: Results) -> None:
    holding = limited(results, limits=[
        {"metric": "median_s", "select": {"label": "all_gather *"}, "max": 100}])
    assert final_code(holding) == ExitCode.OK
    (line,) = limit_lines(holding)
    assert "1 limit" in line.text and "at most 100 s" in line.text
    of_earlier = check_own_limits(limited(results, fail_below=["all_reduce:busbw=20"]))
    assert of_earlier is not None and "at least 20 bytes/s" in of_earlier.limits[0]
    assert summary_document(holding, case_rows(holding))["check"]["code"] == 0
    nothing = limited(results, fail_below=["all_reduce:3MiB:busbw=1GB/s"])
    checked = check_own_limits(nothing)
    assert checked is not None and checked.outcome == "missing"
    assert final_code(nothing) == ExitCode.FINDINGS
