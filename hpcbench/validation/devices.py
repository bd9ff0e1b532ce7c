"""GPUs: seen, one for each rank, and usable by this torch."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.backends.availability import RankFacts, gpu_indices, own_gpu, visible_gpus
from hpcbench.units import rank_list
from hpcbench.validation.lines import Line, fail, not_applicable, ok, warn
from hpcbench.validation.rank_report import JobReport


def device_lines(job: JobReport) -> Iterator[Line]:
    """Yield which GPUs the ranks take, and whether torch has code for them."""
    ranks = [report.rank_facts() for report in job.with_facts]
    if not any(rank.facts["cuda"]["available"] for rank in ranks):
        yield not_applicable("GPUs", "no rank sees one; cases run on the CPU")
        return
    places = gpu_indices(ranks)
    yield _mapped(ranks, places)
    yield _code(ranks, places)


def _mapped(ranks: list[RankFacts], places: list[int | None]) -> Line:
    seen = {(rank.hostname, gpu) for rank in ranks for gpu in visible_gpus(
        rank.facts["cuda"]["uuids"], rank.facts["cuda"]["visible"])}
    without = [rank.rank for rank, place in zip(ranks, places, strict=True) if place is None]
    if without:
        return warn("GPUs", f"{len(seen)} seen by {len(ranks)} ranks; none is left for rank "
                    f"{rank_list(without)}: cases on cuda are skipped",
                    "start one rank a GPU, and give each node's ranks all of its GPUs or one each "
                    "(srun --gpus-per-task=1)")
    names = sorted({str(gpu["name"]) for rank, place in zip(ranks, places, strict=True)
                    if (gpu := own_gpu(rank, place))})
    unused = len(seen) - len(ranks)
    idle = f"; {unused} more are seen and not used" if unused else ""
    if len(names) > 1:
        return warn("GPUs", f"ranks have different ones: {', '.join(names)}{idle}",
                    "ask the scheduler for one kind, or expect the slowest to decide")
    return ok("GPUs", f"one of its own for each rank: {', '.join(names)}{idle}")


def _code(ranks: list[RankFacts], places: list[int | None]) -> Line:
    bad = {rank.rank: rank.facts["cuda"]["no_code"][place]
           for rank, place in zip(ranks, places, strict=True)
           if place is not None and rank.facts["cuda"]["no_code"][place]}
    if not bad:
        return ok("GPU code", "this torch has code for the GPUs that are used")
    reason, _, fix = next(iter(bad.values())).partition("; ")
    return fail("GPU code", f"rank {rank_list(bad)}: {reason}", fix)
