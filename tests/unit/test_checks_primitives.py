"""Checks of primitives: rates above the declared peaks, and what is not said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.errors import ExitCode
from hpcbench.kinds.primitive.derive import PrimitiveDeriver
from hpcbench.kinds.training.derive.deriver import TrainingDeriver
from hpcbench.plan.case import Case, Plan
from hpcbench.reduce.checks import Violation
from hpcbench.reduce.reduce import exit_code, reduce_folder
from hpcbench.reduce.results import Results
from results_factory import make_primitive, make_primitive_case, ok
from synthetic import Record, plan_of, with_rows, write_synthetic_run
from training_results import trained, training_case

MNK = (64, 32, 16)
FLOPS = 2 * 64 * 32 * 16 / 2
"""Of one of two ranks."""


def plan(*implementations: str, hardware: Mapping[str, Any] | None = None) -> Plan:
    cases: list[Case] = [
        make_primitive_case(make_primitive(name, mnk=MNK, world_size=2), index=index,
                            world_size=2, iterations=20, warmup=2)
        for index, name in enumerate(implementations)]
    planned = plan_of(cases, 2)
    return replace(planned, config={**planned.config, "hardware": hardware or {}})


def reduced(folder: Path, planned: Plan, **options: Any) -> Results:
    write_synthetic_run(folder, planned, **options)
    return reduce_folder(folder)


def codes(results: Results) -> list[str]:
    assert [item.status for item in results.cases] == ["ok"] * len(results.cases)
    return [item.code for item in results.findings]


@pytest.mark.parametrize(("share", "told"), [(0.97, True), (0.99, False), (2.0, False)])
def test_hb146_more_flops_than_the_hardware_can(tmp_path: Path, share: float, told: bool) -> None:
    """``share`` is the declared peak over what a rank of the first case does."""
    names = ("compute_only", "comm_only")
    statistics = reduced(tmp_path / "free", plan(*names)).cases[0].statistics
    assert statistics is not None
    peak = FLOPS / statistics.median_s * share
    results = reduced(tmp_path / "run", plan(*names, hardware={"peak_flops": {"fp32": peak}}))
    assert codes(results) == ["HB146"] * told
    assert exit_code(results) is ExitCode.OK
    if told:
        (finding,) = results.findings
        assert finding.scope == "note" and f"the {peak / 1e12:.4g} that" in finding.message
    other = plan(*names, hardware={"peak_flops": {"bf16": peak / 100}})
    assert codes(reduced(tmp_path / "other", other)) == []


def test_hb146_more_than_the_products_that_were_measured() -> None:
    case, work = training_case("data"), make_primitive()
    product = make_primitive_case(work)
    for share, codes in ((1.04, []), (1.47, ["HB146"])):
        found = [*TrainingDeriver().facts(
            trained(case), {"mfu_of_measured": share}, lambda: None)]
        computed = PrimitiveDeriver().derive([ok(product, work.flops / 1e11 / share)], {
            "measured": {"flops": {"cpu fp32": 1e11}}})
        found_too = [*PrimitiveDeriver().facts(
            ok(product), computed[product.case_id], lambda: None)]
        problems = [[fact for fact in some if isinstance(fact, Violation)]
                    for some in (found, found_too)]
        assert [[one.code for one in some] for some in problems] == [codes] * 2
        assert not any(one.rejects for some in problems for one in some)


def test_hb128_communication_of_a_primitive(tmp_path: Path) -> None:
    """Some 2 KB in some 20 us are 0.1 GB/s; what computes, too, says nothing of a link."""
    results = reduced(tmp_path, plan("compute_only", "comm_only", "torch",
                                     hardware={"link_peaks": {"slow": 1e-3}}))
    assert codes(results) == ["HB128"]
    assert "comm_only" in results.findings[0].message


def test_a_rank_of_a_primitive_may_leave_before_another_comes(tmp_path: Path) -> None:
    def enters_late(rank: int, record: Record) -> list[Record]:
        samples = record.samples.rows()
        samples[:, :2] += 100_000 * rank
        return [with_rows(record, samples)]

    results = reduced(tmp_path, plan("compute_only", "torch"), change=enters_late)
    assert codes(results) == []
    assert [item.timing and item.timing.fold for item in results.cases] == ["global"] * 2
