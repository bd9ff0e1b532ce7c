"""The record of a soak: bounded, exact about what was wrong, and judged without false alarms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from golden import unpacked
from hpcbench.errors import ExitCode, FileError, UsageError
from hpcbench.fleet.soak import job
from hpcbench.fleet.soak.job import SoakRequest, begin, is_due
from hpcbench.fleet.soak.judge import exit_code, judged
from hpcbench.fleet.soak.lines import closing_lines, minute_line, status_of
from hpcbench.fleet.soak.record import (
    MOST_WINDOWS,
    RECORD_FILE,
    STABLE_CYCLES,
    CaseFacts,
    CycleFacts,
    CycleProblem,
    Soak,
    WrongInCycle,
    folded,
    read_soak,
    write_soak,
)
from hpcbench.texts import Verbosity
from statistics_series import autoregressive

A_DAY_S, CYCLE_S = 86_400.0, 20.0
NEW = Soak("s", "id", 2, "2026-11-30T00:00:00+0000", A_DAY_S, None)


def cycle(*pass_s: float, case: str = "a", **more: object) -> CycleFacts:
    longest = max(pass_s, default=None)
    return replace(CycleFacts("t", (CaseFacts(case, case, pass_s, longest),), checked=10),
                   **more)  # type: ignore[arg-type]


def soak_of(times: np.ndarray, planned_s: float = 1.0) -> Soak:
    """Return a soak of these times (case, cycle), a pass a cycle."""
    soak = replace(NEW, planned_s=planned_s)
    for column in times.T:
        soak = folded(soak, CycleFacts("t", tuple(
            CaseFacts(str(number), str(number), (float(value),), float(value))
            for number, value in enumerate(column))), CYCLE_S)
    return soak


def test_a_day_of_cycles_stays_small_and_names_the_wrong_one(tmp_path: Path) -> None:
    wrong = WrongInCycle(1_234, "t", "a", "a", 1, "node2", "1 of 8 elements, ..., bits 0x01 differ")
    soak, number, largest = NEW, 0, 1e-3
    while not soak.has_reached_its_end:
        number += 1
        facts = cycle(1e-3, 1e-3, 2e-3 if number == 777 else 1e-3,
                      readings={"celsius": 40.0 + number % 3})
        if number == wrong.cycle:
            facts = replace(facts, wrong=(wrong,), n_wrong=1)
        largest = max(largest, *facts.cases[0].pass_s)  # type: ignore[type-var]
        soak = folded(soak, facts, CYCLE_S)
    assert soak.cycles == number == A_DAY_S / CYCLE_S
    assert MOST_WINDOWS / 2 <= len(soak.windows) <= MOST_WINDOWS
    assert sum(window.passes for window in soak.windows) == 3 * number
    values = soak.cases[0].pass_s
    assert sum(value.n for value in values) == 3 * number
    assert max(value.greatest for value in values) == 2e-3 == largest
    assert sum(value.n for value in soak.readings["celsius"]) == number
    assert soak.wrong == (wrong,) and soak.wrong_cycles == 1 and soak.checked == 10 * number
    assert soak.slowest[0].cycle == 777
    write_soak(tmp_path, soak)
    assert (tmp_path / RECORD_FILE).stat().st_size < 200_000
    assert read_soak(tmp_path) == soak
    judgement = judged(soak)
    assert judgement.is_corrupt and not judgement.changes
    assert exit_code(soak, judgement) == ExitCode.FINDINGS
    status = json.loads(json.dumps(status_of(soak, judgement, "done")))
    assert status["first_wrong"] == wrong._asdict()
    assert status["readings"]["celsius"]["greatest"] == 42.0


def test_a_slowdown_halfway_is_drift_and_not_corruption() -> None:
    random = np.random.default_rng(3)
    times = np.exp(random.normal(0, 0.03, (4, 60)))
    times[2, 30:] *= 1.2
    judgement = judged(soak_of(times))
    assert not judgement.is_corrupt and not judgement.has_failed and judgement.is_slower
    one = next(change for change in judgement.changes if change.what == "2")
    assert one.share == pytest.approx(0.2, abs=0.05) and one.cycle in range(29, 34)
    assert {change.what for change in judgement.changes} <= {"2", "all cases together"}
    times[2, 30:] /= 1.2**2
    judgement = judged(soak_of(times))
    assert judgement.changes and not judgement.is_slower and not judgement.is_bad


@pytest.mark.parametrize("n", (36, 64))
def test_noise_that_depends_on_itself_is_no_drift(n: int) -> None:
    random = np.random.default_rng(5)
    false = sum(bool(judged(soak_of(np.exp(0.03 * autoregressive(random, 4, n, 0.5)))).changes)
                for _ in range(20))
    assert false <= 1


def test_a_few_cycles_decide_nothing_on_speed() -> None:
    soak = soak_of(np.array([[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]]))
    judgement = judged(soak)
    assert not judgement.changes and judgement.undecided and not judgement.is_bad
    assert exit_code(soak, judgement) == ExitCode.OK
    assert exit_code(replace(soak, planned_s=A_DAY_S), judgement) == ExitCode.INCOMPLETE
    cut = folded(replace(NEW, planned_cycles=1), cycle(1.0, whole=False), CYCLE_S)
    assert not cut.has_reached_its_end, "a cycle that was stopped ends no soak"
    assert folded(cut, cycle(1.0), CYCLE_S).has_reached_its_end
    none = folded(replace(NEW, planned_s=1.0), CycleFacts("t", ()), CYCLE_S)
    assert exit_code(none, judged(none)) == ExitCode.FINDINGS


def test_failures_errors_and_changes_are_counted() -> None:
    problem = CycleProblem(1, "t", "a", "failed", "rank 1: killed")
    facts = cycle(problems=(problem,), xids=(79,), throttled_by=("power cap",),
                  versions=("torch 1",), findings=("HB143",))
    soak = folded(NEW, facts, CYCLE_S)
    soak = folded(soak, cycle(1.0, versions=("torch 2",), readings={"ecc_errors": 2.0}), CYCLE_S)
    assert [(change.cycle, change.what) for change in soak.changes] == [(2, "torch 2")]
    judgement = judged(soak)
    assert judgement.has_failed and judgement.has_errors and not judgement.is_corrupt
    assert soak.throttled_by == {"power cap": 1} and soak.findings == {"HB143": 1}
    assert [value.n for value in soak.cases[0].pass_s] == [1]
    assert minute_line(soak, facts, judgement) and [*closing_lines(soak, judgement)]


def test_a_fault_is_due_in_its_cycle_and_a_slow_rank_stays_slow() -> None:
    assert [is_due({"kind": "wrong", "cycle": 2}, at) for at in (1, 2, 3)] == [False, True, False]
    assert [is_due({"kind": "slow", "cycle": 2}, at) for at in (1, 2, 3)] == [False, True, True]
    assert is_due({"kind": "wrong"}, 7)


def request(**changes: object) -> SoakRequest:
    return replace(SoakRequest(None, (), 60.0, None, verbosity=Verbosity.QUIET),
                   **changes)  # type: ignore[arg-type]


def test_it_begins_goes_on_and_takes_in_what_a_kill_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = begin(request(resume=tmp_path / "soak"), 2)
    assert read_soak(folder).cycles == 0
    assert json.loads((folder / "sweep.json").read_text())["measure"]["validate"] == "every"
    left = folder / "cycle"
    left.mkdir()
    unpacked("collective", left).rename(left / "000001")
    assert begin(request(resume=folder, planned_s=None), 2) == folder
    soak = read_soak(folder)
    assert soak.cycles == 1 and soak.planned_s == 60.0 and not (folder / "cycle").exists()
    assert sum(value.n for value in soak.cases[0].pass_s) > 0
    left.mkdir()
    unpacked("collective", left).rename(left / "000001")
    begin(request(resume=folder), 2)
    assert read_soak(folder).cycles == 1, "killed after it was folded, before it was deleted"


def test_a_full_disk_loses_no_cycle_and_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "soak"

    def full(*_: object, **__: object) -> None:
        raise FileError("cannot be written: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(job, "write_soak", full)
        with pytest.raises(FileError):
            begin(request(resume=folder), 2)
    assert [path.name for path in folder.iterdir()] == ["sweep.json"]
    assert read_soak(begin(request(resume=folder), 2)).cycles == 0
    left = folder / "cycle"
    left.mkdir()
    unpacked("collective", left).rename(left / "000001")
    with monkeypatch.context() as patched:
        patched.setattr(job, "reduce_folder", full)
        with pytest.raises(FileError):
            begin(request(resume=folder), 2)
    assert read_soak(begin(request(resume=folder), 2)).cycles == 1


def test_what_cannot_go_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = begin(request(resume=tmp_path / "soak"), 2)
    with pytest.raises(UsageError, match="2 ranks"):
        begin(request(resume=folder), 3)
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    with pytest.raises(UsageError, match="no folder of"):
        begin(request(resume=other), 2)
    with pytest.raises(UsageError, match="--for"):
        begin(request(resume=tmp_path / "new", planned_s=None), 2)
    for text in ("", "{}", '{"schema": "hpcbench.soak", "schema_version": 2}'):
        (folder / RECORD_FILE).write_text(text)
        with pytest.raises(FileError):
            begin(request(resume=folder), 2)


def test_bits_that_change_within_a_tolerance_are_corruption_only_after_many_equal_cycles() -> None:
    def soaked(checksums: list[str], versions: tuple[str, ...] = ()) -> Soak:
        soak = NEW
        for number, bits in enumerate(checksums):
            facts = cycle(1e-3, versions=versions[:1 + number // STABLE_CYCLES])
            soak = folded(soak, replace(facts, cases=(replace(
                facts.cases[0], checksum=bits),)), CYCLE_S)
        return soak

    early = soaked(["0:a", "0:a", "", "0:b", "0:a"])
    assert (early.cases[0].same, early.cases[0].other) == (2, 4) and not judged(early).is_corrupt
    assert sum("not repeated" in line for line in closing_lines(early, judged(early))) == 1
    stable = ["0:a"] * STABLE_CYCLES
    assert not judged(soaked(stable)).is_bad
    late = soaked([*stable, "0:b"])
    assert judged(late).is_corrupt and late.cases[0].other == STABLE_CYCLES + 1
    assert sum("changed: a" in line for line in closing_lines(late, judged(late))) == 1
    assert not judged(soaked([*stable, "0:b"], ("torch 1", "torch 2"))).is_corrupt
    resumed = folded(soaked([*stable, "0:b"], ("torch 1",)), cycle(1e-3, versions=("torch 2",)),
                     CYCLE_S)
    assert judged(resumed).is_corrupt, "what was wrong stays wrong on another node"
