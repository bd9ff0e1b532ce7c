"""How far from measured times are predictions for numbers of ranks and sizes that were left out?

    python benchmarks/predict.py [--rate 400mbit] [--ranks 2 3 4 5 6] [--results FOLDER]   as root

One rank on each of so many virtual hosts (tests/virtual_hosts.sh), whose links are limited, so that
communication dominates: collectives of some sizes, and training steps. Each number of ranks is left
out and predicted from the runs on the others, as `hpcbench predict` does; so is each size. Goals,
of all points that are not refused: mean error at most 8 %, none above 15 %, and 95 % intervals that
hold 90 % or more. Another load on the cores ruins the measurement. ``--results`` keeps the runs,
or reads those that are there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from hpcbench.answers.answer import Run  # noqa: E402
from hpcbench.prediction.measured import key_of  # noqa: E402
from hpcbench.prediction.predict import Predicted, predict, sweeps_of  # noqa: E402
from hpcbench.report.answer_lines import opened  # noqa: E402
from launching import run_sweep  # noqa: E402
from virtual_hosts import inside, one_rank_each  # noqa: E402

MEAN, MOST, HELD = 0.08, 0.15, 0.90
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
SIZES = ("256KiB", "512KiB", "1MiB", "2MiB", "4MiB", "8MiB")


class Point(NamedTuple):
    """A prediction of what was left out, beside its measured time in s."""

    what: str
    predicted: Predicted
    measured_s: float

    @property
    def error(self) -> float:
        assert self.predicted.step is not None
        return self.predicted.step.time.value / self.measured_s - 1

    @property
    def is_held(self) -> bool:
        assert self.predicted.step is not None
        return self.predicted.step.time.holds(self.measured_s)


def main() -> None:
    """Measure, or read what was; print errors and coverage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, 5, 6])
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--model", default="transformer-tiny")
    parser.add_argument("--only-collectives", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [measured(ranks, given.results or Path(folder), given)
                 for ranks in [*[1] * (not given.only_collectives), *given.ranks]]
        with opened(paths) as runs:
            points = [*ranks_left_out(runs), *sizes_left_out(runs)]
    sys.exit(int(not told(points)))


def measured(ranks: int, folder: Path, given: argparse.Namespace) -> Path:
    """Return the results of a run on so many hosts, which may be there."""
    own = folder / f"n{ranks}"
    if not (own / "latest").exists():
        own.mkdir(parents=True, exist_ok=True)
        run_sweep(ranks, sweep(given), own, before=inside(ranks, given.rate),
                  options=one_rank_each(ranks))
    return own / "latest"


def sweep(given: argparse.Namespace) -> dict[str, Any]:
    return {
        "name": "predict", "output": {"plots": False, "report": False},
        "measure": {"passes": given.passes, "warmup": 2, "iterations": given.iterations,
                    "validate": False},
        "benchmarks": [
            {"kind": "collective", "collective": [*COLLECTIVES],
             "backend": given.backend,
             "size": [*given.sizes]},
            *([] if given.only_collectives else [{
                "kind": "training", "model": given.model, "layers": 2, "hidden": 256,
                "seq_length": 32, "batch_size": 1,
                "backend": given.backend, "strategies": {
                    "single": {}, "data": {"bucket_mb": [1, 25]}, "fsdp": {}, "zero1": {}}}])]}


def ranks_left_out(runs: Sequence[Run]) -> Iterator[Point]:
    """Yield the cases of each number of ranks but 1, predicted from the other runs."""
    for run in runs:
        ranks = run.results.run.world_size
        others = [other for other in runs if other is not run]
        if ranks > 1:
            made = predict(sweeps_of(others), others, [ranks]).cases
            yield from beside(f"{ranks} ranks", run, made)


def sizes_left_out(runs: Sequence[Run]) -> Iterator[Point]:
    """Yield the collectives of each size, predicted from all other sizes."""
    sizes = {item.case.workload.choice().axes.get("requested_bytes")
             for run in runs for item in run.results.cases}
    for size in sorted(sizes - {None}):
        rest = [without(run, size) for run in runs]
        for run in runs:
            ranks = run.results.run.world_size
            if ranks > 1:
                made = predict(sweeps_of(rest), rest, [ranks]).cases
                yield from beside(f"{size} B", run, [one for one in made if size_of(one) == size])


def size_of(one: Predicted) -> object:
    assert one.case is not None
    return one.case.workload.choice().axes.get("requested_bytes")


def without(run: Run, size: object) -> Run:
    """Return a run without the times of collectives of a size."""
    return replace(run, results=replace(run.results, cases=tuple(
        replace(item, statistics=None)
        if item.case.workload.choice().axes.get("requested_bytes") == size else item
        for item in run.results.cases)))


def beside(what: str, run: Run, made: Sequence[Predicted]) -> Iterator[Point]:
    """Yield each prediction that was not refused, with the time that the run measured."""
    times = {key_of(item.case, item.device): item.statistics.median_s
             for item in run.results.cases if item.statistics}
    for one in made:
        assert one.case is not None
        time_s = times.get(key_of(one.case, "cpu"))
        if one.step is None:
            print(f"refused  {one.label}, without {what}: {one.refused}")
        elif time_s is not None:
            yield Point(what, one, time_s)


def told(points: Sequence[Point]) -> bool:
    """Print each point, and errors and coverage of each kind and of all; return whether all meet
    the goals."""
    for point in points:
        assert point.predicted.step is not None
        low, high = point.predicted.step.time.ends
        print(f"{point.predicted.label:<60} without {point.what:<10} "
              f"measured {1e3 * point.measured_s:8.2f} ms, error {100 * point.error:+6.1f} %, "
              f"interval {1e3 * low:.2f} to {1e3 * high:.2f}{'' if point.is_held else '  missed'}")
    if not points:
        print("every prediction was refused")
        return False
    for kind in sorted({point.predicted.kind for point in points}):
        judged(kind, [one for one in points if one.predicted.kind == kind])
    print(f"goals: mean {100 * MEAN:g} %, most {100 * MOST:g} %, held {100 * HELD:g} %")
    return judged("all", points)


class Judged(Protocol):
    """A prediction: its relative error, and whether its interval holds what was measured."""

    @property
    def error(self) -> float: ...
    @property
    def is_held(self) -> bool: ...


def judged(name: str, chosen: Sequence[Judged]) -> bool:
    """Print errors and coverage; return whether they meet the goals."""
    errors = [abs(one.error) for one in chosen]
    held = sum(one.is_held for one in chosen) / len(chosen)
    mean, most = sum(errors) / len(errors), max(errors)
    print(f"{name}: {len(chosen)} points, mean error {100 * mean:.1f} %, most {100 * most:.1f} %, "
          f"intervals hold {100 * held:.1f} %")
    return mean <= MEAN and most <= MOST and held >= HELD


if __name__ == "__main__":
    main()
