"""`hpcbench check`: outcomes, exit codes, limits and what is learned from clean runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from golden import RESULTS
from hpcbench.analysis.check import check_limits, interval_of
from hpcbench.analysis.gate import STYLES, UNREADABLE
from hpcbench.analysis.learn import launches_needed
from hpcbench.analysis.limits import checked_limits
from hpcbench.config.limit import Limit
from hpcbench.errors import ConfigError
from hpcbench.reduce.case_columns import CaseColumn
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results
from launcher import ROOT

FILE = RESULTS["collective"]


@pytest.fixture(scope="module")
def results() -> Results:
    with open_results(FILE) as file:
        return file.results


def outcome(results: Results, **limit: Any) -> str:
    return check_limits(results, [Limit.model_validate(limit)]).outcome


def changed(results: Results, case_id: str, **fields: Any) -> Results:
    return replace(results, cases=tuple(
        replace(item, **fields) if item.case.case_id == case_id else item
        for item in results.cases))


def test_outcomes(results: Results) -> None:
    item = next(item for item in results.cases if item.statistics)
    stats, select = item.statistics, {"case_id": item.case.case_id}
    assert stats is not None
    sound = changed(results, item.case.case_id, statistics=replace(
        stats, ci_low_s=0.9 * stats.median_s, ci_high_s=1.1 * stats.median_s, ci_reliable=True))
    limit = {"metric": "median_s", "select": select}
    assert outcome(sound, **limit, max=1.2 * stats.median_s) == "good"
    assert outcome(sound, **limit, max=1.05 * stats.median_s) == "cannot_tell"
    assert outcome(sound, **limit, max=0.8 * stats.median_s) == "slow"
    assert outcome(sound, **limit, min=0.8 * stats.median_s) == "good"
    assert outcome(sound, **limit, min=1.2 * stats.median_s) == "slow"
    for status, word in (("wrong", "wrong"), ("failed", "crashed"), ("timeout", "crashed"),
                         ("not_run", "missing"), ("skipped", "missing")):
        assert outcome(changed(sound, item.case.case_id, status=status), **limit, max=9) == word
    assert outcome(changed(sound, item.case.case_id, n_wrong=None), **limit,
                   max=9) == "cannot_tell"
    assert outcome(sound, metric="median_s", select={"case_id": "nobody"}, max=9) == "missing"
    lost = replace(sound, run=replace(sound.run, ranks_present=(0,)))
    assert outcome(lost, **limit, max=9) == "missing"


def test_a_rate_is_least_where_the_time_is_most(results: Results) -> None:
    item = next(item for item in results.cases if item.statistics and
                item.case.workload.name == "all_reduce")
    stats = item.statistics
    assert stats is not None
    sound = changed(results, item.case.case_id, statistics=replace(
        stats, ci_low_s=0.5 * stats.median_s, ci_high_s=2 * stats.median_s, ci_reliable=True))
    rate = item.case.workload.to_json()["size_bytes"] / stats.median_s
    limit = {"metric": "algbw_bytes_per_s", "select": {"case_id": item.case.case_id}}
    assert outcome(sound, **limit, min=0.49 * rate) == "good"
    assert outcome(sound, **limit, min=0.51 * rate) == "cannot_tell"
    assert outcome(sound, **limit, min=2.01 * rate / 1e9, unit="GB/s") == "slow"


def test_a_rate_beside_the_median_has_no_interval_of_it(results: Results) -> None:
    """The rate of the worst link is of one pair: the median of all says nothing of it."""
    column = CaseColumn("least_link_bytes_per_s", "bytes/s", "", apart=True)
    stats = next(item.statistics for item in results.cases if item.statistics)
    wide = replace(stats, ci_low_s=0.5 * stats.median_s, ci_high_s=2 * stats.median_s,
                   ci_reliable=True)
    assert interval_of(wide, column, 100.0) == (100.0, 100.0)
    assert interval_of(wide, replace(column, apart=False), 100.0) == pytest.approx((50.0, 200.0))


def test_the_worst_outcome_counts_and_every_reason_is_said_once(results: Results) -> None:
    item = next(item for item in results.cases if item.statistics)
    bad = changed(results, item.case.case_id, status="wrong", reason="1 of 4 elements")
    limits = [Limit(metric="median_s", max=1e-9), Limit(metric="median_s", max=1e-9)]
    found = check_limits(bad, limits)
    assert found.outcome == "wrong" and found.reasons[0].outcome == "wrong"
    assert len(set(found.reasons)) == len(found.reasons)


@pytest.mark.parametrize(("raw", "said"), [
    ([], 'must be a mapping with one key, "limits"'),
    ({"limits": []}, "limits is empty"),
    ({"limits": [{"metric": "median_s"}]}, "a limit has min, max, or both"),
    ({"limits": [{"metric": "median_s", "max": 1, "maximum": 2}]}, "limits[0].maximum"),
    ({"limits": [{"metric": "median_s", "max": 1, "unit": "parsec"}]}, "is not known; allowed"),
    ({"limits": [{"metric": "median_s", "max": 1, "min": 2}]}, "is more than max"),
    ({"limits": [{"metric": "median_s", "max": float("nan")}]}, "limits[0].max"),
])
def test_a_bad_limit_is_said(raw: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_limits(raw, "limits.yaml")
    assert said in str(caught.value) and str(caught.value).startswith("limits.yaml: ")


@pytest.mark.parametrize(("limit", "said"), [
    ({"metric": "medain_s", "max": 1}, 'did you mean "median_s"'),
    ({"metric": "median_s", "max": 1, "select": {"bakend": "gloo"}}, 'did you mean "backend"'),
    ({"metric": "median_s", "max": 1, "unit": "GB/s"}, "is in s, not in GB/s"),
    ({"metric": "label", "max": 1}, "is text"),
])
def test_an_unknown_column_is_said(results: Results, limit: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        outcome(results, **limit)


def test_how_many_launches_a_share_takes() -> None:
    assert [launches_needed(share) for share in (0.5, 0.75, 0.9, 0.95)] == [5, 11, 29, 59]


def test_every_style_has_a_code_for_every_outcome() -> None:
    assert all(codes.keys() == STYLES["ci"].keys() for codes in STYLES.values())
    assert UNREADABLE.keys() == STYLES.keys()


def hpcbench(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run([sys.executable, "-m", "hpcbench", "check", *words], cwd=ROOT, env=env,
                          text=True, capture_output=True, timeout=60, check=False)


def test_the_command(tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text(yaml.safe_dump({"limits": [
        {"metric": "median_s", "select": {"collective": "all_reduce"}, "max": 1, "unit": "us"}]}))
    words = (str(FILE), "--limits", str(limits))
    first, again = hpcbench(*words), hpcbench(*words)
    assert first.returncode == 13 or first.stdout.startswith("HPCBENCH_CHECK "), first
    assert "HPCBENCH_CHECK SLOW all_reduce" in first.stdout and first.stdout == again.stdout
    document = json.loads(hpcbench(*words, "--json").stdout)
    assert document["schema"] == "hpcbench.check" and document["reasons"]
    assert hpcbench(*words, "--exit-style", "nagios").returncode == 3, "skips are missing"


@pytest.mark.parametrize(("words", "code", "said"), [
    (("{file}",), 2, "give one of --limits"),
    (("{file}", "--limits", "/nowhere"), 2, "/nowhere: No such file"),
    (("/nowhere", "--limits", "/nowhere", "--exit-style", "slurm"), 0, "UNREADABLE"),
    (("/nowhere", "--limits", "/nowhere", "--exit-style", "nagios"), 3, "UNREADABLE"),
    (("{file}", "--learn"), 2, "name it with -o"),
    (("{file}", "--learn", "-o", "/tmp/never-written.yaml"), 2, "launches of every case"),
    (("{file}", "--exit-style", "x", "--learn"), 2, "allowed are ci, slurm, nagios"),
])
def test_bad_input_is_one_line(words: tuple[str, ...], code: int, said: str) -> None:
    done = hpcbench(*(word.format(file=FILE) for word in words))
    assert done.returncode == code and said in done.stderr, done
    assert len(done.stderr.splitlines()) == 1 and not Path("/tmp/never-written.yaml").exists()


def test_a_run_beside_itself_cannot_tell_with_one_launch() -> None:
    done = hpcbench(str(FILE), "--baseline", str(FILE))
    assert done.returncode in (12, 14) and "CANNOT_TELL" in done.stdout, done
