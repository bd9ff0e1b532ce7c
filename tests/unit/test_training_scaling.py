"""How trainings scale over ranks: which are compared, the number, the table, the summary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.kinds.training.derive.rates import scaling
from hpcbench.kinds.training.derive.stalls import WITHOUT
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.kinds.training.present.tables import efficiencies
from hpcbench.reduce.results import CaseResult
from hpcbench.report.console import print_results
from hpcbench.report.summary import write_summary
from hpcbench.statistics.overlap import OverPasses
from results_factory import make_results, not_ok
from training_results import trained, training_case

Capture = pytest.CaptureFixture[str]


def timed(median_s: float, strategy: str = "data", index: int = 0, **changes: Any) -> CaseResult:
    return trained(training_case(strategy, index=index, **changes), median_s)


def weak() -> list[CaseResult]:
    """4 samples of a rank: in 8 ms alone, in 10 ms on two ranks, in 16 ms on four."""
    return [timed(8e-3, "single", 0, dp=1), timed(10e-3, "data", 1, dp=2),
            timed(16e-3, "data", 2, dp=4), timed(20e-3, "fsdp", 3, dp=4)]


def shares(items: list[CaseResult]) -> dict[tuple[str, int], tuple[str, float]]:
    found = scaling(items)
    return {(training_of(case).strategy, case.world_size): (
        found[case.case_id]["scaling"], found[case.case_id]["scaling_efficiency"])
        for case in (item.case for item in items) if case.case_id in found}


def test_weak_scaling_by_hand() -> None:
    assert shares(weak()) == {("data", 2): ("weak", pytest.approx(0.8)),
                              ("data", 4): ("weak", pytest.approx(0.5)),
                              ("fsdp", 4): ("weak", pytest.approx(0.4))}


def test_a_strategy_on_one_rank_is_its_own_base() -> None:
    found = shares([*weak(), timed(12.8e-3, "data", 4, dp=1)])
    assert found["data", 4] == ("weak", pytest.approx(0.8))
    assert found["fsdp", 4] == ("weak", pytest.approx(0.4))


def test_without_one_rank_the_fewest_are_the_base() -> None:
    assert shares(weak()[1:]) == {("data", 4): ("weak", pytest.approx(0.625))}


def test_ranks_that_share_a_replica_scale_strongly() -> None:
    found = shares([weak()[0], timed(2e-3, "tensor", 1, dp=1, tp=4),
                    timed(4e-3, "hybrid", 2, dp=2, tp=2)])
    assert found == {("tensor", 4): ("strong", pytest.approx(1.0))}
    more_a_rank = [timed(4e-3, "hybrid", 0, dp=1, tp=4), timed(4e-3, "hybrid", 1, dp=4, tp=2)]
    assert shares(more_a_rank) == {}


def test_adapters_are_compared_with_the_same_over_single(
    tmp_path: Path, capsys: Capture,
) -> None:
    def adapted(median_s: float, index: int, over: str, dp: int, rank: int = 16) -> CaseResult:
        options = (("alpha", 32), *((("bucket_mb", 25),) if over == "data" else ()),
                   ("over", over), ("rank", rank), ("targets", "all"))
        return timed(median_s, "lora", index, dp=dp, options=options, adapters=9_216)

    items = [weak()[0], adapted(8e-3, 1, "single", 1), adapted(10e-3, 2, "data", 2),
             adapted(16e-3, 3, "fsdp", 4), adapted(16e-3, 4, "data", 4, rank=8)]
    ids = [item.case.case_id for item in items]
    found = {ids.index(case_id): (
        ids.index(scaled["scaling_base_case"]), scaled["scaling_efficiency"])
        for case_id, scaled in scaling(items).items()}
    assert found == {2: (1, pytest.approx(0.8)), 3: (1, pytest.approx(0.5))}
    print_results(make_results(tuple(items)), tmp_path)
    assert capsys.readouterr().out.count("over=single, 1 rank ") == 2
    doubtful = OverPasses(0.0, -1.0, 1.0, 3, tells=False)
    (table,) = efficiencies(items, {ids[3]: {
        "efficiency_of": WITHOUT, "exposed_s_passes": doubtful}})
    assert "over=fsdp" in str(table.rows[0].cells[0])
    assert len(table.notes) == 1 and "over=fsdp" in table.notes[0].text


def test_an_efficiency_of_unreliable_medians_is_named(tmp_path: Path, capsys: Capture) -> None:
    base, two, four, other = weak()
    assert two.statistics is not None
    unsure = replace(two, statistics=replace(two.statistics, ci_reliable=False))
    items = (base, unsure, four, other)
    print_results(make_results(items), tmp_path)
    assert [line for line in capsys.readouterr().out.splitlines() if "? data n=2: " in line]


@pytest.mark.parametrize("change", [
    {"batch_size": 8}, {"dtype": "bf16"}, {"layers": 4}, {"optimizer": "sgd"},
    {"case": {"backend": "mpi"}}, {"case": {"env": (("A", "1"),)}}])
def test_other_trainings_are_no_base(change: dict[str, Any]) -> None:
    assert shares([timed(8e-3, "single", 0, dp=1, **change), timed(8e-3, "data", 1, dp=2)]) == {}


def test_a_base_that_failed_is_none(tmp_path: Path, capsys: Capture) -> None:
    failed = not_ok(training_case("single", dp=1), "failed", "no memory")
    items = [failed, timed(10e-3, "data", 1, dp=2)]
    assert shares(items) == {}
    print_results(make_results(tuple(items)), tmp_path)
    assert "scaling efficiency of trainings" not in capsys.readouterr().out


def test_the_table_names_base_and_definition(tmp_path: Path, capsys: Capture) -> None:
    mixed = [replace(item, case=replace(item.case, case_id=f"{item.case.case_id}b"))
             for item in (timed(4e-3, "single", 4, dp=1, dtype="bf16"),
                          timed(5e-3, "data", 5, dp=2, dtype="bf16"))]
    print_results(make_results((*weak(), *mixed)), tmp_path, explain=True)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("scaling efficiency = samples/s of n ranks / (n / m x samples/s")
               for line in lines)
    table = lines[lines.index("scaling efficiency of trainings"):]
    assert table[1].split() == ["strategy", "setting", "batch", "scaling", "base", "base", "n=2",
                                "n=4"]
    rows = [line.split() for line in table if line.startswith(("data", "fsdp"))]
    assert rows == [
        ["data", "dtype=fp32", "4", "weak", "single,", "1", "rank", "500.00", "80.0", "50.0"],
        ["fsdp", "dtype=fp32", "4", "weak", "single,", "1", "rank", "500.00", "-", "40.0"],
        ["data", "dtype=bf16", "4", "weak", "single,", "1", "rank", "1000.0", "80.0", "-"]]


def test_the_summary_has_it(tmp_path: Path) -> None:
    items = weak()
    write_summary(make_results(tuple(items)), tmp_path)
    document = json.loads((tmp_path / "summary.json").read_text())
    base, row, *_ = document["cases"]
    assert base["scaling"] is base["scaling_efficiency"] is base["scaling_base_case"] is None
    assert (row["scaling"], row["scaling_base_case"], row["scaling_base_ranks"]) == (
        "weak", items[0].case.case_id, 1)
    assert row["scaling_efficiency"] == pytest.approx(0.8)
    assert row["scaling_base_samples_per_second"] == pytest.approx(500)
    assert document["results"]["training"]["data"][0]["scaling_efficiency"] == pytest.approx(0.8)


def test_samples_of_each_strategy_and_predicted_memory_are_printed(
    tmp_path: Path, capsys: Capture,
) -> None:
    print_results(make_results(tuple(weak())), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    (summary,) = (line for line in lines if line.startswith("  training "))
    assert "data" in summary and "single 500" in summary
    assert any("planned" in line for line in lines)
