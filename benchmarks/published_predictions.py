"""How far from published throughputs are predictions from the same table's runs on fewer GPUs?

    python benchmarks/published_predictions.py

llm-foundry's table of throughputs (benchmarks/data) has trainings that differ in the number of GPUs
and the batch alone. Of each that has three numbers of at most 64, larger ones are predicted from
these; of each with four numbers, every one but the fewest from all others. Nobody published that
machine's collectives by themselves, so calls take their bytes over the links that the table states,
and the measured steps say what part of it is exposed. Everything else is `hpcbench predict`: the
calls and FLOPs of the plan, the law of a step, its interval. Goals as for predict.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

sys.path[:0] = [str(Path(__file__).parent)]
from hpcbench.answers.answer import Run  # noqa: E402
from hpcbench.prediction.laws import FEWEST_RANK_COUNTS, LEAST_ERROR  # noqa: E402
from hpcbench.prediction.measured import JobShape, TimedCase, planned_fact  # noqa: E402
from hpcbench.prediction.steps import Laws, StepLaw, StepTime, Term, Using  # noqa: E402
from hpcbench.reduce.kind_facts import StepDemand  # noqa: E402
from hpcbench.reduce.results import CaseResult  # noqa: E402
from hpcbench.units import grouped  # noqa: E402
from predict import judged  # noqa: E402
from published_fits import block_of, planned, runs  # noqa: E402

ON_NODE, FEW = 8, 64
LINKS = {"a100": (300e9, 1600e9 / 8 / ON_NODE), "h100": (450e9, 3200e9 / 8 / ON_NODE)}
"""Bytes/s of a GPU within a node (NVLink, each way) and between nodes. The table states 1600 Gbit/s
of a node with A100; with H100 nothing: the usual 3200. Only their ratio matters."""
SETTINGS = ("model", "seq_length", "device", "memory_gb", "precision", "sharding", "checkpointing")


class DeclaredLinks(Laws):
    """The time of calls at the full rate of the links."""

    def __init__(self, device: str) -> None:
        super().__init__({})
        object.__setattr__(self, "rates", LINKS[device])

    def terms(self, demand: StepDemand, place: JobShape, using: Using) -> list[Term]:
        rates = cast("tuple[float, float]", self.rates)  # type: ignore[attr-defined]
        return [Term(call.collective, call.number * call.size_bytes * (call.ranks - 1) / call.ranks
                     / rates[place.sharing(call)[0] > 0], 0.0)
                for call in demand.calls if call.ranks > 1]


class Point(NamedTuple):
    """A prediction beside the published time of a step, in s."""

    name: str
    ranks: int
    of: str
    step: StepTime
    measured_s: float

    @property
    def error(self) -> float:
        return self.step.time.value / self.measured_s - 1

    @property
    def is_held(self) -> bool:
        return self.step.time.holds(self.measured_s)


def timed(run: dict[str, str]) -> TimedCase:
    """Return a published run as a case whose step took what its throughput says."""
    ranks = int(run["devices"])
    case = planned(ranks, None, block_of(run, "chunked_cross_entropy", synced=True))
    demand = planned_fact(case, StepDemand)
    assert demand is not None
    tokens = ranks * int(run["microbatch"]) * int(run["accumulation"]) * int(run["seq_length"])
    return TimedCase(
        cast(Run, None), CaseResult(case, "ok", "", None, "cuda", None, None, {}), demand,
        JobShape(ranks, min(ranks, ON_NODE)), (), None, False,
        tokens / int(run["tokens_per_s"]), LEAST_ERROR, 0.0)


def points() -> Iterator[Point]:
    """Yield the predictions that are not refused."""
    every = grouped((tuple(run[name] for name in SETTINGS), run) for run in runs())
    for settings, same in every.items():
        if len({run["devices"] for run in same}) <= FEWEST_RANK_COUNTS:
            continue
        cases = [timed(run) for run in same]
        laws = DeclaredLinks(settings[SETTINGS.index("device")])
        few = [case for case in cases if case.ranks <= FEW]
        if len({case.ranks for case in few}) >= FEWEST_RANK_COUNTS:
            yield from beside(" ".join(settings), f"at most {FEW}", few, laws,
                              [case for case in cases if case.ranks > FEW])
        for case in cases:
            rest = [other for other in cases if other.ranks != case.ranks]
            if case.ranks > min(other.ranks for other in cases):
                yield from beside(" ".join(settings), "all others", rest, laws, [case])


def beside(name: str, of: str, known: Sequence[TimedCase], laws: Laws,
           wanted: Sequence[TimedCase]) -> Iterator[Point]:
    law = StepLaw(tuple(known), laws, Using("nccl", "cuda", "bf16"))
    for case in wanted:
        yield Point(name, case.ranks, of, law.predict(case.demand, case.place), case.time_s)


def main() -> None:
    """Print each prediction, and errors and coverage of both ways to leave runs out."""
    found = [*points()]
    for one in found:
        low, high = one.step.time.ends
        held = "" if one.is_held else "  missed"
        print(f"{one.name:<55} {one.ranks:>3} GPUs from {one.of:<10} {one.measured_s:7.2f} s, "
              f"error {100 * one.error:+5.1f} %, {low:.2f} to {high:.2f}{held}")
    met = [judged(f"from {of}", chosen)
           for of, chosen in grouped((one.of, one) for one in found).items()]
    sys.exit(int(not all(met)))


if __name__ == "__main__":
    main()
