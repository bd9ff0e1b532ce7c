"""What a group of ranks measures in a round of a hunt: blocks of a sweep, stored as data.

In ``trials.json`` each test of ``alone``, of ``two`` ranks and of ``many`` has the measure of its
facts, its block, and the FLOPs or bytes of a call; without them it is a latency, or a collective
whose bus bandwidth is meant. Files and arrays are large enough for no cache, where they are not
checked; products and messages are checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from hpcbench.config.load import check_config
from hpcbench.fleet.hunt.facts import ALONE, LESS, MEASURES
from hpcbench.operations.collectives import busbw_factor
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.records import dataclass

PRECISION = 0.01
"""The samples of a case suffice where their median is known so well, before its time is up."""
_MOST_SAMPLES, _LEAST_SAMPLES = 100, 3


@dataclass(frozen=True, slots=True)
class HuntTest:
    """One measurement: the measure of its facts, the block of a sweep, the amount of a call or 0.
    """

    measure: str
    block: Mapping[str, Any]
    amount: float = 0.0

    @property
    def size_bytes(self) -> int:
        return int(self.block.get("size", 0))

    @property
    def name(self) -> str:
        return f"{self.measure}-{self.size_bytes}"

    def value(self, seconds: float, ranks: int) -> float:
        """Return what a call of so many seconds comes to, in the unit of the measure."""
        if MEASURES[self.measure].good == LESS:
            return seconds
        factor = busbw_factor(self.measure, ranks) if not self.amount else None
        return (self.amount or self.size_bytes * (factor or 1.0)) / seconds


@cache
def _stored() -> dict[str, dict[str, list[HuntTest]]]:
    data = json.loads(Path(__file__).with_name("trials.json").read_bytes())
    return {who: {device: [HuntTest(**one) for one in tests] for device, tests in some.items()}
            for who, some in data.items()}


def kinds_of_tests() -> tuple[str, ...]:
    """Return the kinds of all tests, for which a template of workers is to be prepared."""
    return tuple(sorted({test.block["kind"] for some in _stored().values()
                         for tests in some.values() for test in tests}))


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The tests of one group, and their cases in the same order."""

    tests: tuple[HuntTest, ...]
    cases: tuple[Case, ...]


def trial(stage: str, ranks: int, *, on_gpu: bool, folder: str, limit_s: float) -> TrialPlan:
    """Return what ``ranks`` ranks measure in a stage; a call that takes ``limit_s`` hangs.

    Ranks line up in a barrier, as clocks of nodes are not compared in a hunt; the time of a call is
    that of the slowest rank."""
    who = "alone" if stage == ALONE or ranks == 1 else "two" if ranks == 2 else "many"  # noqa: PLR2004
    device = "cuda" if on_gpu else "cpu"
    tests = _stored()[who][device]
    where = {"backend": "nccl" if on_gpu else "gloo", "device": device}
    config = check_config({
        "name": "hunt", "output": {"folder": folder}, "launch": {"timeout_s": limit_s},
        "measure": {"mode": "barrier_start", "warmup": 1, "min_iterations": _LEAST_SAMPLES,
                    "max_iterations": _MOST_SAMPLES, "precision": PRECISION, "passes": 1,
                    "order": "planned", "canary": False},
        "benchmarks": [{"name": test.name, **where, **test.block} for test in tests],
    }, "the tests of a hunt")
    cases = {case.block: case for case in make_plan(config, ranks).cases}
    return TrialPlan(tuple(tests), tuple(cases[test.name] for test in tests))


def seconds_of(of_ranks: Sequence[Sequence[int]]) -> float | None:
    """Return the median over samples of the slowest rank's time in s; None without samples.

    ``of_ranks``: the durations of each rank's samples in ns."""
    slowest = [max(times) for times in zip(*of_ranks, strict=False)]
    return median(slowest) / 1e9 if slowest else None
