"""Rank x iteration: how long each rank was in the call, for one case."""

from __future__ import annotations

from hpcbench.kinds.registry import presenter_of
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.stack import SampleMap, sample_map
from hpcbench.views.chart import Axis, HeatMap, HeatMapCase, Scale, is_wide
from hpcbench.views.table import Range, Show
from hpcbench.views.words import device_type, env_text, plural

MOST_COLUMNS = 1000
"""More samples than this share columns: a picture has about as many pixels."""
WIDE = 8
"""Times of which the longest is this many times the shortest are on a log scale."""


def rank_iteration(item: CaseResult, samples: CaseSamples) -> HeatMap:
    """Return the heat map of one case with at least one sample."""
    case, grid = item.case, sample_map(samples, MOST_COLUMNS)
    called = heat_map_case(case)
    words = (case.backend, device_type(item), plural(case.world_size, "rank"), *called.words,
             env_text(case))
    limits = Range(grid.least_s, grid.greatest_s)
    wide = is_wide([limits], WIDE)
    singles = " or a single checked call" if grid.has_single else ""
    return HeatMap(
        title=f"{called.heading}: time in the call, by rank and iteration",
        subtitle=", ".join(word for word in words if word), file_stem="rank_iteration",
        notes=(_caption(case.batch, called.note, grid),), case_ids=(case.case_id,),
        x=Axis("iteration, in the order they ran"), y=Axis("rank"), rows=grid.ranks,
        values=grid.time_s, n_columns=grid.n_samples, step=grid.step,
        colour=Axis("time in the call", Show.US, "us, log scale" if wide else "us",
                    Scale.LOG if wide else Scale.LINEAR),
        limits=limits, outside=(grid.below, grid.above), spans=grid.untimed,
        span_title=f"warm-up{singles}, not in the statistics",
        breaks=tuple(end + 1 for end in grid.pass_ends))


def heat_map_case(case: Case) -> HeatMapCase:
    """Return how the case's kind describes it, or a description that fits any case."""
    work = case.workload
    return presenter_of(case.kind).heat_map_case(case) or HeatMapCase(
        work.name, (work.dtype,), order=(case.world_size,))


def _caption(calls: int, note: str, grid: SampleMap) -> str:
    several = f" of a sample of {calls} calls" if calls > 1 else ""
    parts = [f"Each cell: end - start{several} on that rank's own clock.", note]
    if grid.pass_ends:
        parts.append("Dashed line: the next pass begins; other cases ran between.")
    if grid.step > 1:
        parts.append(f"Each column: the longest of {grid.step} samples.")
    return " ".join(part for part in parts if part)
