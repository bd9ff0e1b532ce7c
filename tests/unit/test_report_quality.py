"""What a person is told of how far the times can be trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcbench.reduce.results import QUALITIES, Clocks
from hpcbench.texts import Verbosity
from hpcbench.views.columns import interval_cell
from hpcbench.views.table import FLAGS, Show, cell_text, flag_cell
from launcher import ROOT
from results_factory import (
    as_version_1,
    flagged,
    make_canary,
    make_case,
    make_results,
    make_statistics,
    ok,
    print_all,
    rows_with,
    sweep,
)

Capture = pytest.CaptureFixture[str]


def test_an_interval_that_is_absent_or_unreliable_has_no_figure(
    capsys: Capture, tmp_path: Path,
) -> None:
    few = ok(make_case(iterations=5, index=1))
    depending = ok(make_case(index=2), statistics=replace(make_statistics(1e-3), ci_reliable=False))
    print_all(make_results((few, flagged(depending, "ci_unreliable"))), tmp_path)
    text = capsys.readouterr().out
    assert [row[9] for row in rows_with(text, "ok")] == ["-", "?"]
    assert QUALITIES["ci_unreliable"] in " ".join(text.split())


def test_the_interval_is_printed_from_its_lower_to_its_upper_end() -> None:
    stats = replace(make_statistics(1e-3), ci_low_s=0.97e-3, ci_high_s=1.01e-3)
    assert cell_text(interval_cell(stats), Show.US) == "970..1010"
    assert cell_text(interval_cell(replace(stats, median_s=0.0)), Show.US) == "?"
    assert cell_text(interval_cell(None), Show.US) == "-"


def test_results_of_schema_version_1_are_printed(capsys: Capture, tmp_path: Path) -> None:
    print_all(make_results((as_version_1(ok(make_case(), 1e-3)),)), tmp_path)
    text = capsys.readouterr().out
    assert rows_with(text, "ok")[0][7:10] == ["1.00", "-", "1.20"]
    assert "barrier_start, fold local_max" in text
    assert "times of different ranks are not compared" in text
    assert "start-up" not in text
    assert "steady state" not in text


def test_flags_stand_in_their_row_with_figures_and_a_legend(
    capsys: Capture, tmp_path: Path,
) -> None:
    clean, noisy = ok(make_case(), 1e-3), ok(make_case(index=1), 1e-3)
    noisy = flagged(noisy, "late_starts", "fragile", "trend", n_late=5, n_ramp=7,
                    unflagged_median_s=0.9e-3)
    print_all(make_results((clean, noisy)), tmp_path, Verbosity.VERBOSE, explain=True)
    text = capsys.readouterr().out
    assert text.count("late: 25%, fragile: 900 us unflagged, trend\n") == 1
    cell = cell_text(flag_cell(noisy, Show.MS), Show.TEXT)
    assert cell.endswith("fragile: 0.900 ms unflagged, trend")
    for word in ("late_starts", "fragile", "trend"):
        assert f"flag {FLAGS[word]}" in text and QUALITIES[word] in text
        assert f"\nflag {FLAGS[word]}: {QUALITIES[word]}" in text
    assert QUALITIES["unsteady"] not in text
    assert ("samples: 40 counted (5 late, 2 above median + 10 MAD); kept but not counted:\n"
            "  10 warm-ups, 7 before the steady state, 0 left out ") in text


def test_a_case_of_which_all_samples_are_flagged_has_no_other_median(
    capsys: Capture, tmp_path: Path,
) -> None:
    late = flagged(ok(make_case()), "late_starts", "fragile", n_late=20, unflagged_n=0,
                   unflagged_median_s=None)
    print_all(make_results((late,)), tmp_path)
    assert "late: 100%, fragile\n" in capsys.readouterr().out


def test_every_quality_has_a_short_form_or_the_question_mark() -> None:
    assert {*FLAGS, "ci_unreliable"} == set(QUALITIES)
    page = (ROOT / "docs" / "method.md").read_text("utf-8")
    assert [word for word in QUALITIES if f"`{word}`" not in page] == []


def test_start_up_and_ends_of_passes_are_shown_by_backend_and_ranks(
    capsys: Capture, tmp_path: Path,
) -> None:
    cases = sweep(("all_reduce",), ("gloo", "mpi"), (8, 64))
    items = [ok(case, 1e-3) for case in cases]
    items[0] = flagged(items[0], communicator_s=0.5, first_call_s=None,
                       stop_reasons=("converged", "budget", "converged"))
    items[3] = flagged(items[3], communicator_s=None, first_call_s=None)
    items[2] = flagged(items[2], communicator_s=None, first_call_s=None)
    print_all(make_results(tuple(items)), tmp_path, Verbosity.VERBOSE)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["gloo", "4", "500", "ms", "12", "ms", "1", "fixed,", "2", "converged,", "1",
            "budget"] in lines
    assert ["mpi", "4", "-", "-", "2", "fixed"] in lines


def test_launches_have_a_column_and_a_line(capsys: Capture, tmp_path: Path) -> None:
    once, twice = ok(make_case(), 1e-3), ok(make_case(index=1), 1e-3)
    print_all(make_results((once,)), tmp_path)
    assert "launches differ" not in capsys.readouterr().out
    twice = flagged(twice, launch_medians_s=(1.1e-3, 1e-3))
    results = make_results((once, twice))
    print_all(replace(results, plan=replace(results.plan, launches=2)), tmp_path)
    text = capsys.readouterr().out
    assert "\n2 launches x 1 pass, after" in text
    assert text.count("1.00..1.10") == 1
    assert "differ by 10 % (gloo) in the median case" in text


def test_the_canary_shows_the_drift_or_that_nothing_does(capsys: Capture, tmp_path: Path) -> None:
    results = make_results((ok(make_case()),))
    old = make_canary(1e-4, 1.02e-4, 1.1e-4, quality=("drifting",))
    print_all(replace(results, canary=replace(old, tau=0.97)), tmp_path, Verbosity.VERBOSE)
    assert ("canary (between cases, all_reduce gloo 65536B): 3 runs in 20 s; medians 100..110 us; "
            "drift +10.0% (tau +0.97); drifting: ") in " ".join(capsys.readouterr().out.split())
    print_all(replace(results, canary=replace(make_canary(1e-4), n_not_ok=2)), tmp_path,
                  Verbosity.VERBOSE)
    assert "1 run, 2 more not ok\n" in capsys.readouterr().out
    few = replace(make_canary(1e-4, 2e-4), drift=None)
    print_all(replace(results, canary=few), tmp_path, Verbosity.VERBOSE)
    assert "drift: fewer than 8 runs cannot" in " ".join(capsys.readouterr().out.split())
    for asked, word in ((True, "none ran"), (False, "switched off")):
        plan = replace(results.plan, config={"measure": {"canary": asked}})
        print_all(replace(results, plan=plan), tmp_path, Verbosity.VERBOSE)
        assert f"between cases): {word}, so whether" in capsys.readouterr().out


def test_clock_and_order_are_shown(capsys: Capture, tmp_path: Path) -> None:
    results = make_results((flagged(ok(make_case()), clock_bound_s=1.5e-6),))
    results = replace(results, plan=replace(
        results.plan, config={"measure": {"order": "shuffled", "seed": 42}}))
    print_all(replace(results, clocks=Clocks(1, 0, None, None, None)), tmp_path)
    assert "clock: one for all ranks; order of cases: shuffled, seed 42" in capsys.readouterr().out
    print_all(replace(results, clocks=Clocks(2, 5, 1e-6, 4e-7, 12.0)), tmp_path, explain=True)
    text = capsys.readouterr().out
    assert "clocks: 2, 5 synchronisations over MPI, ranks' times at most 1.5 us apart;" in text
    assert "clocks were synchronised (largest error in checks 400 ns, drift 12 ppm)" in text
