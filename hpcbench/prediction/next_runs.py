"""What to measure next: the sweep whose run halves the intervals of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcbench.answers.answer import Run
from hpcbench.config.schema import Config
from hpcbench.gen_config import Sweep, write_sweep
from hpcbench.prediction.measured import JobShape
from hpcbench.prediction.predict import Predicted, Predictions
from hpcbench.prediction.sweeps import carrying, cases_of, next_ranks, on_all_ranks, planned_on


def write_next(
    configs: Sequence[Config], found: Predictions, runs: Sequence[Run], path: Path, *, force: bool,
) -> None:
    write_sweep(next_sweep(configs, found.cases, runs), path, force=force)


def next_sweep(configs: Sequence[Config], found: Sequence[Predicted], runs: Sequence[Run]) -> Sweep:
    """Return the blocks of sweeps with predicted cases, for the number of ranks that halves the
    intervals of those on most ranks. Raises UsageError, ConfigError."""
    raws = [on_all_ranks(config.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_none=True)) for config in configs]
    place = max(JobShape(one.ranks, one.on_node) for one in found)
    labels = {one.label for one in found}
    blocks = [{key: value for key, value in block.items() if key != "name"}  # others may have it
              for raw in raws for block in raw["benchmarks"] if any(case.label in labels for case in
              cases_of({**raw, "benchmarks": [block]}, place.ranks))]
    content = {**raws[0], "benchmarks": [
        block for at, block in enumerate(blocks) if block not in blocks[:at]]}
    known = [[ranks for ranks in one.measured_ranks if ranks > 1] for one in found]
    counts = min(filter(None, known), key=len, default=[
        run.results.run.world_size for run in runs])
    return carrying(content, planned_on(content, place.ranks), place, next_ranks(
        counts, place.ranks), "Made by predict --next, to halve the intervals: run it")
