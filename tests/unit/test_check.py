"""`hpcbench check`: outcomes, exit codes, limits and what is learned from clean runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bad_input_process import hpcbench as in_this_process
from golden import RESULTS
from hpcbench.answers.check import (
    MISSING,
    SLOW,
    STYLES,
    UNREADABLE,
    Reason,
    check_limits,
    check_together,
    concluded,
    interval_of,
)
from hpcbench.answers.compare_inputs import Side
from hpcbench.answers.learned_limits import launches_needed, learned, learning_doubts
from hpcbench.config.section import Limit, checked_limits
from hpcbench.errors import ConfigError, UsageError
from hpcbench.plan.case import Case
from hpcbench.reduce.kind_facts import CaseColumn
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.reduce.results_file import new_results, open_results
from hpcbench.report.answer_lines import reason_lines
from results_factory import (
    flagged,
    in_launches,
    in_passes,
    make_case,
    make_results,
    make_statistics,
    not_ok,
    ok,
)

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
    sound = changed(results, item.case.case_id, statistics=replace(
        stats, ci_low_s=0.9 * stats.median_s, ci_high_s=1.1 * stats.median_s, ci_reliable=True))
    limit = {"metric": "median_s", "select": select}
    assert outcome(sound, **limit, max=1.2 * stats.median_s) == "good"
    assert outcome(sound, **limit, max=1.05 * stats.median_s) == "cannot_tell"
    assert outcome(sound, **limit, max=0.8 * stats.median_s) == "slow"
    assert outcome(sound, **limit, min=0.8 * stats.median_s) == "good"
    assert outcome(sound, **limit, min=1.2 * stats.median_s) == "slow"
    assert outcome(changed(sound, item.case.case_id, n_wrong=None), **limit,
                   max=9) == "cannot_tell"
    assert outcome(sound, metric="median_s", select={"case_id": "nobody"}, max=9) == "missing"


@pytest.mark.parametrize(("status", "word"), [
    ("wrong", "wrong"), ("failed", "crashed"), ("timeout", "crashed"), ("not_run", "missing"),
    ("skipped", "missing")])
def test_every_status_has_an_outcome(status: str, word: str) -> None:
    """A case outside every limit counts too, unless it cannot run here."""
    well, bad = make_case(index=0), make_case(index=1)
    found = make_results((ok(well), not_ok(bad, status, "why")))
    assert outcome(found, metric="median_s", max=9) == word
    outside = "good" if status == "skipped" else word
    assert outcome(found, metric="median_s", select={"case_id": well.case_id}, max=9) == outside


def test_a_case_that_only_lacks_a_trace_is_missing() -> None:
    lost = replace(not_ok(make_case(), "failed", "HB112: no trace of rank 1"), trace_missing=True)
    assert outcome(make_results((lost,)), metric="median_s", max=9) == "missing"


def test_a_limit_of_launches_is_of_the_median_of_each() -> None:
    case = make_case()
    several = make_results((in_launches(case, [1.0] * 9, [2.0] * 9, [3.0] * 9),))
    limit = {"metric": "median_s", "of": "launches"}
    assert outcome(several, **limit, max=3.0) == "good"
    assert outcome(several, **limit, max=2.5) == "cannot_tell"
    assert outcome(several, **limit, max=0.9) == "slow"
    assert outcome(several, **limit, min=3.1) == "slow"
    shuffled = np.random.default_rng(1).permutation(np.linspace(1.0, 3.0, 41)).tolist()
    wide = make_results((in_launches(case, shuffled),))
    assert outcome(wide, **limit, max=2.0) == "good"
    assert outcome(wide, **limit, max=1.1) == "cannot_tell", "one launch decides nothing"


def pooled(limit: float, *jobs: list[list[float]]) -> list[tuple[str, str]]:
    """Return outcome and files of jobs, each of some launches of some samples, held together."""
    runs = [make_results((in_launches(make_case(), *launches),)) for launches in jobs]
    found = check_together(runs, ["abcd"[at] for at in range(len(runs))], [
        Limit(metric="median_s", of="launches", max=limit)])
    return [(one.outcome, one.file) for one in (*found.reasons, *found.held)]


def test_launches_of_several_results_are_judged_together() -> None:
    """Backend mpi has one launch a job: two jobs beyond the limit are two of two launches."""
    slow, well = [[3.0] * 9], [[1.0] * 9]
    assert pooled(2.0, slow) == [("cannot_tell", "a")], "one launch decides nothing"
    assert pooled(2.0, slow, slow) == [("slow", "a, b")]
    assert pooled(2.0, slow, well, slow) == [("cannot_tell", "a, c")]
    assert pooled(2.0, well) == pooled(2.0, [*well, *well]) == [("good", "a")]


def test_other_results_hide_no_proven_slowness() -> None:
    """They may be of another node."""
    slow, well = [[3.0] * 9] * 5, [[1.0] * 9] * 5
    assert pooled(2.0, well, slow) == [("slow", "b"), ("good", "a")]
    assert pooled(2.0, slow, well, [[3.0] * 9]) == [("slow", "a"), ("cannot_tell", "c")]


def test_a_result_that_lacks_a_case_is_missing_beside_others() -> None:
    case = make_case()
    runs = [make_results((ok(case),)), make_results((not_ok(case, "skipped", "no GPU"),)),
            make_results(())]
    found = check_together(runs, ["a", "b", "c"], [
        Limit(metric="median_s", of="launches", max=9)])
    assert [(one.outcome, one.file) for one in found.reasons] == [
        ("missing", "b"), ("missing", "c")]
    assert found.n_cases == 1


def test_the_remedy_for_one_launch_is_one_that_helps() -> None:
    """Launches of backend mpi, all in one process, count as one."""
    limit = Limit(metric="median_s", of="launches", max=2.0)
    for backend, helps in (("gloo", True), ("mpi", False)):
        run = make_results((in_launches(make_case(backend=backend), [3.0] * 9),))
        (reason,) = check_limits(run, [limit]).reasons
        assert ("--launches" in reason.sentence) is helps, backend


def test_what_cannot_be_told_has_a_remedy() -> None:
    case = make_case()
    single = replace(ok(case), statistics=make_statistics(1.0, n=1, spread=0.0))
    for item, limit in (
            (in_launches(case, *[[1.0] * 9] * 4, [3.0] * 9), {"of": "launches", "max": 2.0}),
            (ok(case, 1.0), {"max": 1.0}), (single, {"max": 2.0}),
            (replace(ok(case, 1.0), n_wrong=None), {"max": 9.0})):
        found = check_limits(make_results((item,)), [Limit(metric="median_s", **limit)])
        assert [one.outcome for one in found.reasons] == ["cannot_tell"]
        assert found.reasons[0].remedy, found


def test_printed_times_are_no_launches_of_a_case_of_ours() -> None:
    """Those of an imported table, of a case that measures the same, were pooled with them."""
    run = make_results((in_launches(make_case(), [3.0] * 9),))
    printed = replace(run, run=replace(run.run, imported=("nccl-tests",)))
    found = check_together([run, printed], ["a", "b"], [
        Limit(metric="median_s", of="launches", max=2.0)])
    assert [(one.outcome, one.file) for one in found.reasons] == [
        ("cannot_tell", "a"), ("cannot_tell", "b")]
    assert found.n_cases == 2


@pytest.mark.parametrize(("size", "word"), [("1KiB", "slow"), ("1024", "slow"), (1024, "slow"),
                                            ("2KiB", "missing"), (2048, "missing")])
def test_select_takes_sizes_as_sweep_files_do(size: str | int, word: str) -> None:
    run = make_results((ok(make_case(), 1.0),))
    assert outcome(run, metric="median_s", select={"size_bytes": size}, max=0.1) == word


def test_a_limit_that_selects_nothing_says_of_what_it_was() -> None:
    limit = Limit(metric="median_s", select={"case_id": "f" * 12}, max=2.0, why="all_reduce 8B")
    (reason,) = check_limits(make_results((ok(make_case()),)), [limit]).reasons
    assert reason.outcome == "missing" and "all_reduce 8B" in reason.sentence


@pytest.mark.parametrize("kind", sorted(RESULTS))
def test_a_run_of_any_kind_holds_the_limits_that_it_taught(kind: str) -> None:
    with open_results(RESULTS[kind]) as file:
        results = file.results
    run = replace(results, run=replace(results.run, faults=()), cases=tuple(
        item for item in results.cases if item.status == "ok" and item.n_wrong is not None))
    limits = [Limit.model_validate(raw) for raw in
              learned(Side("runs", (run,)), 0.04)["limits"]]
    assert limits and check_limits(run, limits).outcome == "good"


def test_limits_of_a_function_hold_when_its_file_has_changed() -> None:
    from hpcbench.kinds.function.plan import FunctionCall  # not in the core

    work = FunctionCall("ops.py", "0" * 64, "fast", (), "fp32")
    before, after = (make_case(replace(work, sha256=digit * 64), kind="function", block=digit)
                     for digit in "01")
    assert before.case_id != after.case_id
    (raw,) = learned(Side("runs", (make_results((ok(before, 1e-3),)),)), 0.04)["limits"]
    for case in (before, after):
        found = check_limits(make_results((ok(case, 1e-3),)), [Limit.model_validate(raw)])
        assert found.outcome == "good", found


def test_learned_limits_are_of_what_is_measured_not_of_how_often() -> None:
    """With another --iters all of them were MISSING."""
    before = make_case()
    content = learned(Side("runs", (make_results((ok(before, 1e-3),)),)), 0.04)["limits"]
    limits = [Limit.model_validate(raw) for raw in content]
    again = replace(before, case_id="other", iterations=before.iterations + 5,
                    warmup=before.warmup + 1)
    for time_s, case, expected in ((1e-3, again, "good"), (2e-3, again, "cannot_tell"),
                                   (1e-3, replace(again, batch=20), "missing")):
        found = check_limits(make_results((ok(case, time_s),)), limits)
        assert found.outcome == expected, found
    both = make_results((ok(before, 1e-3), ok(again, 1e-3)))
    ids = [raw["select"] for raw in learned(Side("runs", (both,)), 0.04)["limits"]]
    assert ids == [{"case_id": before.case_id}, {"case_id": "other"}]


def test_runs_with_other_iterations_teach_and_are_judged_together() -> None:
    """Each was said to have no time of the other's case."""
    runs = tuple(make_results((in_launches(make_case(iterations=n, warmup=n), [1.0, 1.01]),))
                 for n in (5, 20))
    (raw,) = learned(Side("runs", runs), 0.2)["limits"]
    assert "slowest of 2 launches" in raw["why"] and "measures" in raw["select"]
    slower = [Limit.model_validate({**raw, "max": 0.5e6})]
    assert [check_together(some, [*map(str, range(len(some)))], slower).outcome
            for some in (runs, runs[:1])] == ["slow", "cannot_tell"]
    again = make_results((*runs[0].cases, in_launches(make_case(iterations=20), [1.0])))
    (missing,) = {one.run.run_id for one in runs}
    with pytest.raises(UsageError, match=f"{missing}: .* has no time"):
        learned(Side("runs", (again, runs[0])), 0.2)  # of one of them: none is chosen


@pytest.mark.parametrize(("passes", "limit", "word"), [
    ((0.99, 1.01), 1.2, "good"), ((0.99, 1.01), 0.95, "slow"),
    ((0.9, 1.3), 1.2, "cannot_tell"), ((0.9, 1.3), 0.95, "cannot_tell"),
    ((1.0,), 1.2, "good"), ((1.0,), 1.05, "cannot_tell"), ((1.0,), 0.97, "cannot_tell")])
def test_an_unreliable_interval_decides_only_with_passes_or_most_samples(
    passes: tuple[float, ...], limit: float, word: str,
) -> None:
    """Its ends are 0.99 and 1.02; of a single pass the middle half of samples is 0.95..1.1."""
    item = in_passes(make_case(), *passes)
    assert item.statistics is not None
    unreliable = replace(item, statistics=replace(
        make_statistics(1.0), ci_reliable=False))
    assert outcome(make_results((unreliable,)), metric="median_s", max=limit) == word


def test_a_single_sample_decides_nothing() -> None:
    single = replace(ok(make_case()), statistics=make_statistics(1.0, n=1, spread=0.0))
    for limit in (0.5, 2.0):
        assert outcome(make_results((single,)), metric="median_s", max=limit) == "cannot_tell"
    few = replace(single, statistics=make_statistics(1.0, n=3))
    words = [outcome(make_results((few,)), metric="median_s", max=limit)
             for limit in (0.7, 1.5, 1.7)]
    assert words == ["slow", "cannot_tell", "good"], "their range is 0.8..1.6"


SAMPLES = st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=30)


@given(st.lists(st.lists(SAMPLES, min_size=1, max_size=4), min_size=1, max_size=4))
def test_every_run_holds_the_limits_that_it_taught(jobs: list[list[list[float]]]) -> None:
    """Each job has some launches of some samples, with whatever interval that gives."""
    case = make_case()
    runs = tuple(make_results((in_launches(case, *launches),)) for launches in jobs)
    content = learned(Side("runs", runs), 0.04)
    limits = [Limit.model_validate(raw) for raw in content["limits"]]
    assert [check_limits(run, limits).outcome for run in runs] == ["good"] * len(runs)


@pytest.mark.parametrize("other", [
    lambda case: not_ok(case, "skipped", "no GPU"),
    lambda case: ok(case, n_wrong=None)])
def test_runs_that_would_not_hold_their_limits_teach_none(
    other: Callable[[Case], CaseResult],
) -> None:
    case = make_case()
    with pytest.raises(UsageError, match="not clean"):
        learned(Side("runs", (make_results((ok(case),)), make_results((other(case),)))), 0.1)


def test_limits_of_a_run_not_to_quote_or_of_launches_apart_are_doubted() -> None:
    quiet = make_results((in_launches(make_case(), *[[1.0, 1.01]] * 5),))
    assert [*learning_doubts(Side("runs", (quiet,)))] == []
    apart = make_results((in_launches(make_case(), [1.0], [1.0], [1.0], [2.0]),))
    (loose,) = learning_doubts(Side("runs", (apart,)))
    assert "1 of 1 case " in loose and " 100%: " in loose
    red = replace(quiet, run=replace(quiet.run, faults=("delay",)))
    (doubt,) = learning_doubts(Side("runs", (quiet, red)))
    assert doubt.startswith("1 of 2 runs ") and "Do not quote" in doubt


def test_launches_in_one_process_teach_no_limits() -> None:
    case = make_case(backend="mpi")
    repeated = flagged(in_launches(case, *[[1.0] * 9] * 5), "repeats")
    with pytest.raises(UsageError, match="there are 1 "):
        learned(Side("runs", (make_results((repeated,)),)), 0.5)


def test_a_rate_is_least_where_the_time_is_most(results: Results) -> None:
    item = next(item for item in results.cases if item.statistics and
                item.case.workload.name == "all_reduce")
    stats = item.statistics
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
    item = next(item for item in results.cases if item.statistics)
    stats = item.statistics
    wide = replace(item, statistics=replace(
        stats, ci_low_s=0.5 * stats.median_s, ci_high_s=4 * stats.median_s, ci_reliable=True))
    assert interval_of(wide, column, 100.0) == (100.0, 100.0)
    assert interval_of(wide, replace(column, apart=False), 100.0) == pytest.approx((25.0, 200.0))
    of_link = CaseColumn("of_link", "1", "share of a rate, as acceptance limits it")
    assert interval_of(wide, of_link, 0.5) == pytest.approx((0.125, 1.0))


def test_the_worst_outcome_counts_and_every_reason_is_stated_once(results: Results) -> None:
    item = next(item for item in results.cases if item.statistics)
    bad = changed(results, item.case.case_id, status="wrong", reason="1 of 4 elements",
                  statistics=None, timing=None, n_wrong=1)
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
    ({"limits": [{"metric": "p95_s", "of": "launches", "max": 1}]}, "launches have median_s only"),
    ({"limits": [{"metric": "median_s", "max": float("nan")}]}, "limits[0].max"),
])
def test_a_bad_limit_is_reported(raw: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_limits(raw, "limits.yaml")
    assert said in str(caught.value) and str(caught.value).startswith("limits.yaml: ")


@pytest.mark.parametrize(("limit", "said"), [
    ({"metric": "medain_s", "max": 1}, 'did you mean "median_s"'),
    ({"metric": "median_s", "max": 1, "select": {"bakend": "gloo"}}, 'did you mean "backend"'),
    ({"metric": "xyzzy", "max": 1}, '"xyzzy" is not known; all: docs/results-file.md#columns'),
    ({"metric": "median_s", "max": 1, "unit": "GB/s"}, "is in s, not in GB/s"),
    ({"metric": "label", "max": 1}, "is text"),
    ({"metric": "median_s", "max": 1, "select": {"world_size": "two"}}, "needs a number"),
    ({"metric": "median_s", "max": 1, "select": {"size_bytes": "64XB"}}, "is not a size"),
])
def test_an_unknown_column_is_reported(results: Results, limit: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        outcome(results, **limit)


def test_how_many_launches_a_share_takes() -> None:
    assert [launches_needed(share) for share in (0.5, 0.75, 0.9, 0.95)] == [5, 11, 29, 59]


def test_every_style_has_a_code_for_every_outcome() -> None:
    assert all(codes.keys() == STYLES["ci"].keys() for codes in STYLES.values())
    assert UNREADABLE.keys() == STYLES.keys()


def hpcbench(*words: str) -> subprocess.CompletedProcess[str]:
    return in_this_process("check", *words)


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
    assert hpcbench(*words, "--exit-style", "nagios").returncode == 2, "slow outranks missing"


@pytest.mark.parametrize("of", ["interval", "launches"])
def test_cases_that_hold_their_limit_are_named_with_value_and_limit(of: str) -> None:
    run = make_results((in_launches(make_case(), [2e-3] * 9, [4e-3] * 9),))
    limit = Limit(metric="median_s", max=9, unit="ms", of=of)
    checked = check_limits(run, [limit])
    (held,) = checked.held
    assert (checked.outcome, checked.reasons, held.outcome) == ("good", (), "good")
    value = {"interval": "median_s 3 ms (2..4)", "launches": "median_s 4 ms"}[of]
    assert held.text.startswith(value) and held.text.endswith("limit max 9 ms")
    assert held.what == run.cases[0].case.label
    assert [*reason_lines(checked)] == [] and len([*reason_lines(checked, full=True)]) == 1


def stored(path: Path, run_id: str, scale: float = 1.0) -> Path:
    """Write a run of six launches."""
    case = in_launches(make_case(), *[[scale * (1 + at / 500)] * 3 for at in range(6)])
    with new_results(path) as writer:
        writer.finish(make_results((case,), run_id=run_id))
    return path


def test_a_run_is_left_out_of_its_own_baseline(tmp_path: Path) -> None:
    """Beside itself no run is slow."""
    good, slow, copy = (str(stored(tmp_path / f"{name}.h5", name[0], scale)) for name, scale in (
        ("good", 1.0), ("slow", 2.0), ("s_copy", 2.0)))
    for own in (slow, copy):
        alone = hpcbench(slow, "--baseline", own)
        assert (alone.returncode, alone.stdout.count("\n"), alone.stderr.count("\n")) == (2, 1, 1)
        beside = hpcbench(slow, "--baseline", own, "--baseline", good, "--json")
        assert beside.returncode == 10
        (left_out, *_) = json.loads(beside.stdout)["doubts"]
        assert own in left_out and good not in left_out
    assert hpcbench(good, "--baseline", slow).returncode == 0


def test_each_of_several_results_is_named(tmp_path: Path) -> None:
    """They are held to the limits apart: a line without its file would say nothing."""
    limits = tmp_path / "limits.yaml"
    files = [str(stored(tmp_path / f"{name}.h5", name)) for name in "ab"]
    limits.write_text(yaml.safe_dump({"limits": [
        {"metric": "median_s", "select": {"collective": "all_reduce"}, "max": 1, "unit": "us"}]}))
    words = (*files, "--limits", str(limits))
    slow = [line for line in hpcbench(*words).stdout.splitlines() if " SLOW all" in line]
    assert slow and {line.partition(" in ")[2].partition(": ")[0] for line in slow} == {*files}
    reasons = json.loads(hpcbench(*words, "--json").stdout)["reasons"]
    assert {reason["file"] for reason in reasons} == {*files}


@pytest.mark.parametrize(("words", "code", "said"), [
    (("{file}",), 2, "give one: --limits"),
    (("{file}", "--limits", "/nowhere"), 2, "/nowhere: No such file"),
    (("/nowhere", "--limits", "/nowhere"), 2, "HPCBENCH_CHECK UNREADABLE /nowhere"),
    (("/nowhere", "--baseline", "{file}", "-q"), 2, "HPCBENCH_CHECK UNREADABLE /nowhere"),
    (("/nowhere", "--baseline", "{file}", "--json"), 2, "HPCBENCH_CHECK UNREADABLE /nowhere"),
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
    is_result = "UNREADABLE" in done.stderr and "--json" not in words
    if "--json" in words:
        document = json.loads(done.stdout)
        assert (document["schema"], document["exit_code"]) == ("hpcbench.error", code)
        assert len(document["problems"]) == 1
    else:
        assert done.stdout == "HPCBENCH_CHECK RESULT UNREADABLE\n" * is_result


def test_equal_runs_of_one_launch_are_inconclusive(tmp_path: Path, results: Results) -> None:
    with new_results(tmp_path / "other.h5") as writer:
        writer.finish(replace(results, run=replace(results.run, run_id="other")))
    words = (str(FILE), "--baseline", str(tmp_path / "other.h5"))
    done = hpcbench(*words)
    assert done.returncode in (12, 14), done
    assert done.stdout.count("CANNOT_TELL") < 3 and "use 7 launches a side" in done.stdout, done
    named = hpcbench(*words, "-v").stdout
    assert "CANNOT_TELL all_reduce " in named and "CANNOT_TELL all_reduce " not in done.stdout


def test_a_missing_case_hides_no_slow_one_in_any_style() -> None:
    missing, slow = Reason(MISSING, "a", "is gone"), Reason(SLOW, "b", "is slow")
    found = concluded([slow, missing], 2, 2)
    assert [found.exit_code(style) for style in ("ci", "slurm", "nagios")] == [10, 1, 2]
    assert concluded([missing], 1, 1).exit_code("slurm") == 0
    assert concluded([], 1, 1).exit_code("slurm") == 0
