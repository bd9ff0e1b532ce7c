"""Apple's GPU as far as it goes without one: what is planned, skipped, and decided by facts."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from hpcbench.backends.availability import RankFacts
from hpcbench.config.load import check_config
from hpcbench.launch.probe import Resolution, resolve
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan
from hpcbench.validation.machine import device_lines
from validation_facts import FACTS, good, job

TRAINING: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "strategies": "single", "device": "mps"}
PRIMITIVE: dict[str, Any] = {
    "kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64, "device": "mps",
    "implementations": "compute_only", "world_size": 1}
THERE: dict[str, Any] = {
    "reason": None, "name": "Apple M2", "memory_bytes": 12 * 10**9, "without_bf16": None}


def plan_of(*blocks: dict[str, Any], ranks: int = 1) -> Plan:
    return make_plan(check_config({"benchmarks": list(blocks)}, "c.json"), ranks)


def found(plan: Plan, **mps: Any) -> Resolution:
    facts = {**copy.deepcopy(dict(FACTS)), "mps": {**THERE, **mps}}
    return resolve(plan, [RankFacts(rank, "mac", rank, facts)
                          for rank in range(plan.world_size)])


def test_what_does_not_communicate_is_planned() -> None:
    plan = plan_of({**TRAINING, "dtype": ["fp32", "bf16", "fp16"]}, PRIMITIVE, ranks=2)
    assert [case.skip for case in plan.cases] == [None] * 4
    assert {case.needs for case in plan.cases} == {("mps",)}
    assert set(found(plan).devices.values()) == {"mps"}


@pytest.mark.parametrize(("block", "words"), [
    ({"kind": "collective", "collective": "all_reduce", "size": "8", "device": "mps"},
     "mps has no collective backend: what communicates is measured on device cpu or cuda"),
    ({"kind": "collective", "collective": "barrier", "backend": "nccl", "device": "mps"},
     "mps has no collective backend"),
    ({**PRIMITIVE, "implementations": "torch"}, "mps has no collective backend"),
    ({**PRIMITIVE, "world_size": 2}, "mps is the one GPU of a machine"),
    ({**PRIMITIVE, "dtype": "fp64"}, "mps has no fp64"),
    ({**PRIMITIVE, "backend": "mpi"}, "mpi does not run on mps, only on cpu or cuda"),
    ({**TRAINING, "strategies": "data"}, "mps has no collective backend"),
    ({**TRAINING, "strategies": "fsdp", "world_size": 1}, "mps has no collective backend"),
    ({**TRAINING, "strategies": "data", "communication": "off", "world_size": 2},
     "mps is the one GPU of a machine, and so of one rank: give world_size 1")])
def test_what_cannot_run_there_is_a_skip_with_its_reason(
    block: dict[str, Any], words: str,
) -> None:
    (case,) = plan_of(block, ranks=2).cases
    assert case.skip is not None
    assert words in case.skip


@pytest.mark.parametrize(("mps", "words"), [
    ({"reason": "torch was built without it"}, "no mps device: torch was built without it"),
    ({"without_bf16": "needs macOS 14"}, "mps has no bf16 here: needs macOS 14"),
    ({"memory_bytes": 1000}, "bytes of the GPU on mac, macOS recommends 1000 at most; predicted")])
def test_what_the_machine_lacks_is_a_skip(mps: dict[str, Any], words: str) -> None:
    plan = plan_of({**TRAINING, "dtype": "bf16"})
    assert words in found(plan, **mps).skips[plan.cases[0].case_id]


def test_what_would_be_compiled_is_a_skip() -> None:
    plan = plan_of({**TRAINING, "compile": True})
    facts = {**FACTS, "mps": THERE, "tools": {"compiler": {"mps": "never tried", "cpu": None}}}
    resolution = resolve(plan, [RankFacts(0, "mac", 0, facts)])
    assert resolution.skips[plan.cases[0].case_id] == "single: never tried"


def test_auto_is_never_that_gpu() -> None:
    plan = plan_of({**TRAINING, "device": "auto"})
    assert [*found(plan).devices.values()] == ["cpu"]


def test_validate_states_that_it_is_there_and_what_for() -> None:
    report = good()
    assert report.facts is not None
    there = replace(report, facts={**report.facts, "mps": {**THERE, "without_bf16": "old macOS"}})
    (line,) = device_lines(job(there))
    assert "mps: Apple M2, up to 12 GB; no bf16: old macOS; cases of one rank" in str(line)
