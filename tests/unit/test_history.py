"""`hpcbench history`: series over stored runs, and what changes in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from bad_input_process import hpcbench
from hpcbench.fleet.history.change_points import drift, level_change, steps, unexplained
from hpcbench.fleet.history.runs import StoredCase, StoredRun, StoredRuns
from hpcbench.fleet.history.series import history_of, sort_of
from hpcbench.interop.formats.export import write
from hpcbench.reduce.results_file import ResultsFile, open_results
from hpcbench.statistics.order import Values
from hpcbench.units import moment
from nights import plan_of_nights, write_night

N, STEP_AT, NEW_TORCH_AT = 26, 10, 16
STEP, DRIFT, OF_SOFTWARE, STEADY = range(4)
ONE_CASE = {"case": StoredCase("measured", "a case")}


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 26 nights: a case with a step, one that drifts, one of a new torch, and a steady one.
    """
    folder = tmp_path_factory.mktemp("nights")
    random, plan = np.random.default_rng(0), plan_of_nights(4)
    for night in range(N):
        medians_s = 1e-3 * np.exp(0.005 * random.standard_normal(4))
        medians_s[STEP] *= 1.06 if night >= STEP_AT else 1
        medians_s[DRIFT] *= 1 + 0.2 * night / N
        medians_s[OF_SOFTWARE] *= 0.9 if night >= NEW_TORCH_AT else 1
        write_night(folder, night, medians_s.tolist(), plan,
                    versions={"torch": "2.10" if night >= NEW_TORCH_AT else "2.9"},
                    nodes=("n1", "n2") if night < STEP_AT else ("n1", "n9"))
    return folder


def told(*words: object) -> dict[str, list[dict[str, object]]]:
    done = hpcbench("history", *map(str, words), "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
    return document


def test_each_change_is_named_as_what_it_is(nights: Path) -> None:
    document = told(nights)
    cases = [str(one["case"]) for one in document["series"]]
    found = {(cases.index(str(one["case"])), one["what"]): one
             for one in reversed(document["changes"])}
    step = found.pop((STEP, "step"))
    assert step["first_run"] == f"night{STEP_AT:04}" and step["is_worse"]
    assert float(str(step["low"])) < 0.06 < float(str(step["high"]))
    assert step["environment"] == {"nodes": ["n1 n2", "n1 n9"]}
    new = found.pop((OF_SOFTWARE, "software"))
    assert new["first_run"] == f"night{NEW_TORCH_AT:04}" and not new["is_worse"]
    assert new["environment"] == {"versions.torch": ["2.9", "2.10"]}
    assert found.pop((DRIFT, "drift"))["first_run"] == "night0000"
    assert {case for case, _ in found} <= {DRIFT}
    assert [len(one["runs"]) for one in document["fingerprints"]] == [16, 10]  # type: ignore[arg-type]
    assert len(document["runs"]) == N


def test_rates_change_the_other_way_and_cases_can_be_chosen(nights: Path) -> None:
    document = told(nights, "--metric", "busbw_bytes_per_s", "--only", "8B")
    change, = document["changes"]
    assert change["metric"] == "busbw_bytes_per_s" and change["is_worse"]
    assert float(str(change["change"])) < 0
    done = hpcbench("history", str(nights), "--metric", "speed")
    assert done.returncode == 2 and "busbw_bytes_per_s" in done.stderr
    assert hpcbench("history", str(nights), "--only", "nothing").returncode == 2


def test_a_report_has_a_chart_of_each_case(nights: Path, tmp_path: Path) -> None:
    page = tmp_path / "history.html"
    assert hpcbench("history", str(nights), "--only", "8B", "-o", str(page)).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") >= 2 and "night0010" in text
    assert hpcbench("history", str(nights), "-o", str(page)).returncode == 2
    done = hpcbench("history", str(nights), "-q")
    assert done.returncode == 0 and len(done.stdout.splitlines()) <= 2


def test_what_is_no_run_is_named_and_left_out(tmp_path: Path) -> None:
    kept = write_night(tmp_path, 0, [1e-3])
    write_night(tmp_path, 1, [1e-3], started_at="")
    shutil.copytree(kept.parent, tmp_path / "copy")
    broken = tmp_path / "broken" / "results.h5"
    broken.parent.mkdir()
    broken.write_bytes(kept.read_bytes()[:-100])
    (tmp_path / "other.h5").write_bytes(b"nothing")
    (tmp_path / "a" / "traces").mkdir(parents=True)
    (tmp_path / "a" / "traces" / "rank00000.h5").write_bytes(b"not looked at")
    (tmp_path / "latest").symlink_to("night0000")
    write_night(tmp_path, 2, [1e-3], faults=("slow rank 1",))
    done = hpcbench("history", str(tmp_path), "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0 and len(document["runs"]) == 1 and document["changes"] == []
    assert len(document["left_out"]) == 5 == done.stderr.count("left out: ")
    for name in ("night0001", "night0002", "copy", "broken", "other.h5"):
        assert name in done.stderr.replace("night0000/results.h5", "copy")


def test_a_series_is_of_what_is_measured_not_of_how_often(tmp_path: Path) -> None:
    plan = plan_of_nights(2)
    for night, n in enumerate((20, 50)):
        cases = tuple(replace(case, case_id=f"{case.case_id}-{n}", iterations=n, warmup=n)
                      for case in plan.cases)
        write_night(tmp_path, night, [1e-3, 2e-3], replace(plan, cases=cases))
    assert [len(one["points"]) for one in told(tmp_path)["series"]] == [2, 2]  # type: ignore[arg-type]


def test_what_one_run_measures_twice_is_told_apart_in_all_runs(tmp_path: Path) -> None:
    plan, index = plan_of_nights(2), tmp_path / "index.parquet"
    more = replace(plan.cases[0], case_id="more", iterations=50, index=2)
    for night, cases in enumerate((plan.cases, plan.cases, (*plan.cases, more))):
        write_night(tmp_path, night, [1e-3, 2e-3, 3e-3][:len(cases)], replace(plan, cases=cases))
        found = told(tmp_path, "--index", index)
    assert [[point["value"] for point in one["points"]]  # type: ignore[attr-defined]
            for one in found["series"]] == [[1e-3] * 3, [2e-3] * 3, [3e-3]]
    assert found == told(tmp_path) == told(tmp_path, "--index", index)
    shutil.rmtree(tmp_path / "night0002")
    assert told(tmp_path, "--index", index) == told(tmp_path)


def test_what_is_planned_twice_has_two_series_though_one_has_no_value() -> None:
    cases = {name: StoredCase("measured", "label") for name in ("20", "50")}
    both, one = ({"20": {"median_s": 1.0}, "50": {}}, {"50": {"median_s": 2.0}})
    runs = tuple(StoredRun(f"{at}", f"{at}", at, {}, values)
                 for at, values in enumerate((both, one)))
    assert [each.values for each in history_of(StoredRuns(runs, cases), 0.01).series] == [
        (1.0,), (2.0,)]
    runs = (replace(runs[0], values={"20": both["20"]}), runs[1])
    assert [each.values for each in history_of(StoredRuns(runs, cases), 0.01).series] == [
        (1.0, 2.0)]


def test_folders_without_runs(tmp_path: Path) -> None:
    for words in ([tmp_path], [tmp_path / "none"], [tmp_path / "file"]):
        (tmp_path / "file").write_text("")
        done = hpcbench("history", *map(str, words))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def in_memory(values: list[float], cpus: list[str]) -> StoredRuns:
    return StoredRuns(tuple(
        StoredRun(f"{at}/results.h5", str(at), 86_400.0 * at, {"cpu.name": cpu, "nodes": "n1"},
                  {"case": {"median_s": value}})
        for at, (value, cpu) in enumerate(zip(values, cpus, strict=True))), ONE_CASE)


def test_runs_in_turn_on_two_machines_have_no_step() -> None:
    random = np.random.default_rng(1)
    values = [(0.8 if night % 2 else 1.0) * float(np.exp(0.005 * random.standard_normal()))
              for night in range(24)]
    change, = history_of(in_memory(values, ["slow", "fast"] * 12), 0.01).changes
    assert change.sort == "hardware" and not change.is_worse and change.size.holds(-0.2)
    assert change.environment[0].values == ("slow", "fast")


def test_a_library_that_a_run_did_not_load_is_unknown_and_no_difference() -> None:
    random = np.random.default_rng(1)
    runs = in_memory([float(np.exp(0.005 * random.standard_normal())) * (1.1 if at >= 14 else 1)
                      for at in range(24)], ["cpu"] * 24).runs
    torch = {"versions.torch": "2.9", "libraries.worker.libtorch.so.id": "a"}
    loaded = StoredRuns(tuple(replace(run, facts={**run.facts, **(torch if at % 3 == 1 else {})})
                              for at, run in enumerate(runs)), ONE_CASE)
    found = history_of(loaded, 0.01)
    assert [len(one.runs) for one in found.fingerprints] == [24]
    assert [(one.sort, one.at, one.environment) for one in found.changes] == [("step", 14, ())]
    new = {**torch, "versions.torch": "2.10"}
    changed = replace(loaded, runs=(*loaded.runs[:14], *(
        replace(run, facts={**run.facts, **(new if at % 3 == 1 else {})})
        for at, run in enumerate(runs) if at >= 14)))
    first, second = history_of(changed, 0.01).fingerprints
    assert len(first.runs) == 16 and [one.key for one in second.differences(first)] == [
        "versions.torch"], "runs 14 and 15 do not say which torch: as the ones before"


def test_states_that_last_for_several_runs_are_no_steps() -> None:
    is_upper = np.repeat([0, 1, 0, 1], [15, 2, 3, 15]).astype(bool)
    values = np.exp(0.003 * noise(is_upper.size, 1)) * np.where(is_upper, 1.04, 1.0)
    change, = history_of(in_memory([*values], ["cpu"] * is_upper.size), 0.01).changes
    assert (change.sort, change.at, change.is_worse) == ("states", 0, False)
    assert change.size.holds(0.04)


def test_outliers_beside_a_step_are_no_states() -> None:
    values = np.exp(0.003 * noise(40, 1))
    values[20:] *= 1.1
    values[[5, 12]] *= 1.2
    change, = history_of(in_memory([*values], ["cpu"] * 40), 0.01).changes
    assert (change.sort, change.at) == ("step", 20)


@pytest.mark.parametrize(("n", "at", "others"), [
    (60, 30, (6, 14, 22)),
    (60, 30, (6, 14, 22, 50)),
    (32, 22, (5, 12)),
    (60, 20, (10,)),
    (60, 42, (50,)),
    (100, 20, (10, 11)),
    (50, 8, (3,)),
])
def test_a_lasting_step_is_none_of_two_states(n: int, at: int, others: tuple[int, ...]) -> None:
    """Runs of its level before it, or of the former level after it, do not hide a step."""
    is_upper = np.arange(n) >= at
    is_upper[[*others]] ^= True
    values = np.exp(0.005 * noise(n, 1)) * np.where(is_upper, 1.1, 1.0)
    change, = history_of(in_memory([*values], ["cpu"] * n), 0.01).changes
    assert (change.sort, change.at, change.is_worse) == ("step", at, True)


def test_few_runs_tell_nothing() -> None:
    found = history_of(in_memory([1.0, 1.0, 2.0], ["one"] * 3), 0.01)
    assert (found.changes, found.too_short) == ((), 1)


def test_times_and_facts() -> None:
    assert moment("2026-01-01T00:00:00+0100") == moment("2025-12-31 23:00:00")
    assert moment("2026-01-01") == moment("2026-01-01T00:00:00") and moment("today") is None
    assert [sort_of(name) for name in ("versions.torch", "kernel.release", "cpu.name", "ranks")] \
        == ["software", "software", "hardware", "placement"]


def nccl_log(night: int, time_us: float, *, dated: bool) -> str:
    """Return a log of nccl-tests with the option -S, or without."""
    size, count = 1 << 26, 1 << 24
    rate = size / time_us / 1e3
    row = f"{size:12} {count:13} {'float':>9} {'sum':>7} {-1:>7}" + 2 * (
        f" {time_us:8.2f} {rate:7.2f} {rate * 7 / 4:7.2f} {0:>6}")
    return "\n".join((
        "# Collective test starting: all_reduce_perf",
        "# nThread 1 nGpus 8 minBytes 67108864 maxBytes 67108864 step: 2(factor) warmup iters: 5 "
        "iters: 20 agg iters: 1 validation: 1 graph: 0", "#", "# Using devices",
        *(f"#  Rank {rank:2} Group  0 Pid {rank + 10:6} on node1 device {rank:2} [0x01] NVIDIA"
          for rank in range(8)),
        "#", "#       size         count      type   redop    root     time   algbw   busbw #wrong "
        "    time   algbw   busbw #wrong" + "            timestamp" * dated,
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
        "(us)  (GB/s)  (GB/s)       ",
        row + f"  2026-03-{night + 1:02} 02:00:01" * dated, "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {rate * 7 / 4:.4f}", "#", ""))


def test_seven_nights_of_another_tool_a_side(tmp_path: Path) -> None:
    """Imported logs are runs; one without a date takes it from the user, or is left out."""
    random = np.random.default_rng(4)
    for night in range(14):
        noise = float(np.exp(0.01 * random.standard_normal()))
        time_us = 500 * (1.17 if night >= 7 else 1) * noise
        log = tmp_path / f"{night}.log"
        log.write_text(nccl_log(night, time_us, dated=night != 3))
        when = ("--started", "2026-03-04T02:00") if night == 3 else ()
        done = hpcbench("import", str(log), "-o", str(tmp_path / f"{night}.h5"), *when)
        assert done.returncode == 0, done.stderr
    assert hpcbench("import", str(log), "-o", str(tmp_path / "a.h5"), "--started",
                    "yesterday").returncode == 2
    log.write_text(nccl_log(3, 500, dated=False))
    assert hpcbench("import", str(log), "-o", str(tmp_path / "no_date.h5")).returncode == 0
    document = told(tmp_path)
    assert len(document["runs"]) == 14 and len(document["left_out"]) == 1
    assert document["changes"]
    for change in document["changes"]:
        assert change["what"] == "step" and change["is_worse"]
        assert float(str(change["low"])) < 0.17 < float(str(change["high"]))
        assert str(document["runs"][7]["run_id"]) == change["first_run"]


def test_a_run_is_checked_by_the_launches_of_a_time(nights: Path) -> None:
    def checked(night: int, period: str) -> int:
        return hpcbench("check", str(nights / f"night{night:04}"), "--baseline", str(nights),
                        "--baseline-range", period).returncode

    assert checked(12, "2026-01-11..2026-01-22") == 0
    assert checked(25, "2026-01-02..2026-01-12") == 14  # one launch beyond all of them
    assert checked(12, "2026-01-11..2026-01-21") == 2  # a launch too few: that night is none
    write_night(nights, 30, [1e-3, 1e-3, 1e-3])  # lacks a case: left out, and the others gate
    assert checked(12, "2026-01-11..") == 0
    write_night(nights, 31, [3e-3] * 4)
    assert checked(31, "2026-01-11..") == 14, "the slow night set its own limit"
    for night in (30, 31):
        shutil.rmtree(nights / f"night{night:04}")
    for period in ("2027-01-01..", "yesterday..today"):
        assert checked(12, period) == 2
    assert hpcbench("check", str(nights / "night0001"), "--baseline-range", "..",
                    "--limits", "x").returncode == 2


def test_whole_series_for_other_programs(nights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_open = most_open = 0

    @contextmanager
    def counted(path: Path) -> Iterator[ResultsFile]:
        nonlocal now_open, most_open
        with open_results(path) as file:
            now_open += 1
            most_open = max(most_open, now_open)
            yield file
            now_open -= 1

    monkeypatch.setattr(write, "open_results", counted)
    runs = [str(nights / f"night{night:04}") for night in (2, 0, 1)]
    reports = [json.loads(line) for line in hpcbench(
        "export", *runs, "--to", "bencher").stdout.splitlines()]
    assert [one["start_time"] for one in reports] == [
        f"2026-01-{day:02}T03:00:00Z" for day in (1, 2, 3)]
    assert most_open == 1
    metrics = json.loads(reports[0]["results"][0])
    assert len(metrics) == 4 and all("latency" in one for one in metrics.values())
    data = json.loads(hpcbench("export", *runs, "--to", "github-benchmark").stdout)
    points = data["entries"]["hpcbench"]
    assert [one["commit"]["id"] for one in points] == ["night0000", "night0001", "night0002"]
    assert points[0]["date"] == 1767236400000 and data["lastUpdate"] == points[-1]["date"]
    assert {len(one["benches"]) for one in points} == {4}
    rows = hpcbench("export", *runs, "--to", "otava").stdout.splitlines()
    assert len(rows) == 4 and rows[1].startswith("2026.01.01 3:00:00 +0000,night0000,")


def test_an_index_answers_as_the_files_do(nights: Path, tmp_path: Path) -> None:
    index, folder = tmp_path / "index.parquet", tmp_path / "nights"
    for night in range(6, 14):
        shutil.copytree(nights / f"night{night:04}", folder / f"night{night:04}")
    plain = told(folder)
    assert told(folder, "--index", index) == plain
    written = index.stat().st_mtime_ns
    with mock.patch("hpcbench.fleet.history.runs.RunReader.read", side_effect=AssertionError):
        assert told(folder, "--index", index) == plain
    assert index.stat().st_mtime_ns == written
    shutil.copytree(nights / "night0014", folder / "night0014")
    shutil.rmtree(folder / "night0006")
    runs = told(folder, "--index", index)["runs"]
    assert [one["run_id"] for one in runs] == [f"night{night:04}" for night in range(7, 15)]
    index.write_bytes(b"no index")
    done = hpcbench("history", str(folder), "--index", str(index))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert index.read_bytes() == b"no index"


def noise(n: int, seed: int, correlation: float = 0.0) -> Values:
    random, values = np.random.default_rng(seed), np.zeros(n)
    for at in range(n):
        fresh = random.standard_normal() * np.sqrt(1 - correlation ** 2 if at else 1)
        values[at] = fresh + correlation * values[at - 1] * bool(at)
    return values


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_a_step_of_five_percent_in_one_percent_of_noise(correlation: float) -> None:
    found = []
    for seed in range(20):
        values = np.exp(0.01 * noise(40, seed, correlation))
        values[25:] *= 1.05
        found += [one for one in steps(values) if abs(one.index - 25) <= 1]
    assert len(found) >= 19
    assert sum(one.change.holds(0.05) for one in found) >= 17
    assert all(one.chance < 0.01 for one in found)


def test_seven_nights_a_side() -> None:
    values = np.exp(0.01 * noise(14, 2))
    values[7:] *= 1.17
    step, = steps(values)
    assert step.index == 7 and abs(step.change.value - 0.17) < 0.02


def test_two_steps_are_told_apart() -> None:
    values = np.exp(0.01 * noise(60, 3))
    values[20:40] *= 1.08
    assert [one.index for one in steps(values)] == [20, 40]


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_noise_has_few_steps(correlation: float) -> None:
    false = sum(bool(steps(np.exp(0.03 * noise(30, seed, correlation)))) for seed in range(40))
    assert false <= 4


def test_alike_values_and_few_values_have_no_step() -> None:
    assert steps(np.ones(30)) == [] == steps(np.array([1.0, 2.0]))
    one_off = np.ones(30)
    one_off[12] = 3.0
    assert steps(one_off) == []


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_values_that_no_run_has_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        steps(np.array([1.0, bad, 1.0]))


def test_a_line_explains_a_drift_better_than_steps_do() -> None:
    at = np.arange(60.0)
    values = np.exp(0.01 * noise(60, 5)) * (1 + 0.1 * at / 59)
    change, chance = drift(values, at)
    assert change.holds(0.1) and chance < 1e-6
    assert unexplained(values, (), at) < unexplained(values, [20, 40])
    values = np.exp(0.01 * noise(60, 5))
    values[30:] *= 1.1
    assert unexplained(values, [30]) < unexplained(values, (), at)
    with pytest.raises(ValueError, match="at least"):
        drift(np.ones(5), at[:5])


def test_levels_of_a_few_runs() -> None:
    change, chance = level_change(np.array([1.0, 1.01, 0.99, 1.0]),
                                  np.array([1.2, 1.21, 1.19, 1.2, 1.21]))
    assert change.holds(0.2) and chance < 0.01
    same, chance = level_change(np.array([1.0, 1.01, 0.99]), np.array([1.0, 1.02, 0.98]))
    assert same.holds(0.0) and chance > 0.5
