"""The shipped jobs at their real world sizes, and their twins: see the head of each file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcbench.config.load import load_config, parse_assignment
from hpcbench.kinds.training.plan.any_model import parameters_of, published
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan
from jobs import EXAMPLES, JOBS, MACHINE, RANKS, twin_words
from launcher import ROOT


def planned(job: Path, ranks: int, words: Sequence[str] = ()) -> Plan:
    return make_plan(load_config(job, [parse_assignment(word) for word in words[1::2]]), ranks)


def test_every_job_is_known_here() -> None:
    assert {job.name for job in JOBS} == set(RANKS)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_a_job_plans_at_its_real_size_within_the_memory_of_its_devices(job: Path) -> None:
    plan = planned(job, RANKS[job.name])
    limit = plan.config["hardware"]["memory_per_device_gb"] * 1e9
    assert plan.cases
    for case in plan.cases:
        assert case.skip is None, case.skip
        assert 0 < case.memory_bytes < limit
        work = training_of(case)  # a shorter sequence is no smaller model
        assert work.parameters == parameters_of(published(work.model))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_the_twin_of_a_job_has_its_strategies_small_on_cpus(job: Path) -> None:
    words = twin_words(job)
    assert words
    assert set(words[::2]) == {"--set"}
    real, twin = planned(job, RANKS[job.name]), planned(job, 4, words)
    assert not [case.skip for case in twin.cases if case.skip]
    assert {(training_of(case).strategy, training_of(case).model) for case in twin.cases} == {
        (training_of(case).strategy, training_of(case).model) for case in real.cases}
    assert {case.device for case in twin.cases} == {"cpu"}
    assert max(case.memory_bytes for case in twin.cases) < 100e6


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_plans_and_says_that_it_is_untested(name: str) -> None:
    job = ROOT / "jobs" / name
    assert job.read_text().startswith("# UNTESTED")
    plan = planned(job, EXAMPLES[name])
    assert plan.cases and not [case.skip for case in plan.cases if case.skip]
    offloaded = [dict(case.env) for case in plan.cases if case.block == "dpu_offload"]
    assert offloaded and {env["UCC_CLS"] for env in offloaded} == {"doca_urom,basic"}
    assert "DOCA_*" in plan.config["launch"]["pass_env"]


@pytest.mark.parametrize("name", [path.name for path in (ROOT / "jobs").glob("*.yaml")
                                  if path.name in MACHINE])
def test_a_job_about_the_machine_takes_two_minutes_on_cpus(name: str) -> None:
    plan = planned(ROOT / "jobs" / name, MACHINE[name])
    assert [case.label for case in plan.cases if case.skip] == []
    assert sum(case.estimate_s for case in plan.cases) * plan.passes < 180
