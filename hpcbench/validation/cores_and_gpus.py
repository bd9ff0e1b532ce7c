"""Cores and GPUs: how many each rank has, whether ranks share them, whether they can be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.backends.availability import (
    RankFacts,
    gpu_indices,
    lost_lines,
    own_gpu,
    visible_gpus,
)
from hpcbench.units import plural, rank_list
from hpcbench.validation.lines import Line, fail, not_applicable, ok, spread, warn
from hpcbench.validation.rank_report import JobReport, RankReport, by_value

_BIND = ("bind each rank to cores of its own: mpirun -bind-to core (MPICH), --bind-to core "
         "(Open MPI), srun --cpu-bind=cores with --cpus-per-task")


def affinity_lines(job: JobReport) -> Iterator[Line]:
    """Yield cores per rank, bindings that overlap, and the cgroups' quota."""
    yield _cores(job.ranks)
    yield _overlap(job)
    yield _quota(job)


def _cores(ranks: Sequence[RankReport]) -> Line:
    counts = by_value(ranks, lambda report: report.of("process", "affinity_cpus"))
    if None in counts:
        return not_applicable("cores", "the system does not tell which cores a rank may use")
    cores = spread({plural(int(count), "core"): owners for count, owners in counts.items()})
    if len(counts) > 1:
        return warn("cores", f"ranks may use different numbers: {cores}", _BIND)
    return ok("cores", f"each rank may use {cores}" if len(ranks) > 1 else cores)


def _overlap(job: JobReport) -> Line:
    crowded = [shared for ranks in job.by_node.values() if (shared := _shared(ranks))]
    if all(len(ranks) == 1 for ranks in job.by_node.values()):
        return not_applicable("binding", "one rank a node shares its cores with no other")
    if not any(report.of("process", "affinity") for report in job.ranks):
        return not_applicable("binding", "the system does not tell which cores a rank may use")
    if not crowded:
        return ok("binding", "no two ranks of a node share a core")
    more = f" (and {len(crowded) - 1} more nodes)" if len(crowded) > 1 else ""
    overlap, fix = crowded[0]
    return warn("binding", overlap + more, fix)


def _shared(ranks: Sequence[RankReport]) -> tuple[str, str] | None:
    """Return what the ranks of one node share, and the remedy; None if they share nothing."""
    sets = [frozenset(report.of("process", "affinity") or ()) for report in ranks]
    union: frozenset[int] = frozenset().union(*sets)
    if sum(map(len, sets)) == len(union):
        return None
    host, together = ranks[0].hostname, plural(len(union), "core")
    if len(union) < len(ranks):
        return (f"{len(ranks)} ranks on {host} have {together} together: they take turns",
                "start no more ranks on a node than it has cores, or ask for more cores")
    if len(set(sets)) == 1:
        return (f"the {len(ranks)} ranks on {host} are not bound: they share the same "
                f"{together}, and the system may move them", _BIND)
    doubled = plural(sum(sum(core in cores for cores in sets) > 1 for core in union), "core")
    return f"bindings on {host} overlap: {doubled} belong to several ranks", _BIND


def _quota(job: JobReport) -> Line:
    tight = []
    for ranks in job.by_node.values():
        union = {core for report in ranks for core in report.of("process", "affinity") or ()}
        quota = ranks[0].of("process", "cgroup", "cpus")
        if isinstance(quota, (int, float)) and quota < len(union):
            cores = plural(len(union), "core")
            tight.append(f"{quota:g} of the {cores} of its ranks on {ranks[0].hostname}")
    if tight:
        return warn("CPU quota", f"a cgroup grants only {tight[0]}: ranks are paused for "
                    "milliseconds at a time", "raise the container's or job's CPU limit to the "
                    "cores it may use, or give it fewer cores (cpuset)")
    if all(report.of("process", "cgroup", "cpus") is None for report in job.ranks):
        return not_applicable("CPU quota", "no cgroup tells one")
    return ok("CPU quota", "none that is below the cores of the ranks")


def probe_lines(job: JobReport) -> Iterator[Line]:
    """Yield whether drivers and libraries answered when they were asked what there is."""
    lost = [line.partition("; ") for line in lost_lines([
        report.rank_facts() for report in job.with_facts])]
    if lost:
        yield warn("probe", "; ".join(found for found, _, _ in lost),
                   "; ".join(dict.fromkeys(fix for _, _, fix in lost)))
    elif job.with_facts:
        yield ok("probe", "no driver and no library crashed or hung when it was asked")


def device_lines(job: JobReport) -> Iterator[Line]:
    """Yield which GPUs the ranks take, and whether torch has code for them."""
    ranks = [report.rank_facts() for report in job.with_facts]
    if any(not rank.facts["mps"]["reason"] for rank in ranks):
        yield _apple_gpu(ranks)
        return
    if not any(rank.facts["cuda"]["available"] for rank in ranks):
        yield not_applicable("GPUs", "no rank sees one; cases run on the CPU")
        return
    places = [*zip(ranks, gpu_indices(ranks), strict=True)]
    yield _mapped(places)
    yield _code(places)


def _apple_gpu(ranks: Sequence[RankFacts]) -> Line:
    """Return what there is on device mps; a CUDA machine has no such GPU."""
    mps = next(rank.facts["mps"] for rank in ranks if not rank.facts["mps"]["reason"])
    lacks = f"; no bf16: {mps['without_bf16']}" if mps["without_bf16"] else ""
    return ok("GPUs", f"mps: {mps['name'] or 'Apple GPU'}, up to "
              f"{mps['memory_bytes'] / 1e9:.3g} GB{lacks}; cases of one rank that do not "
              "communicate can run on it")


def _mapped(places: Sequence[tuple[RankFacts, int | None]]) -> Line:
    seen = {(rank.hostname, gpu) for rank, _ in places for gpu in visible_gpus(
        rank.facts["cuda"]["uuids"], rank.facts["cuda"]["visible"])}
    without = [rank.rank for rank, place in places if place is None]
    if without:
        return warn("GPUs", f"{len(seen)} seen by {len(places)} ranks; none is left for rank "
                    f"{rank_list(without)}: cases on cuda are skipped",
                    "start one rank a GPU, and let every rank see all GPUs of its node (srun "
                    "--gpus-per-node without --gpus-per-task; no CUDA_VISIBLE_DEVICES by rank)")
    names = sorted({str(gpu["name"]) for rank, place in places if (gpu := own_gpu(rank, place))})
    unused = len(seen) - len(places)
    idle = f"; {unused} more are seen and not used" if unused else ""
    if len({(rank.hostname, place) for rank, place in places}) < len(places):
        idle += ("; ranks of a node see theirs under one number, so symmetric memory is skipped: "
                 "let every rank see all GPUs of its node")
    if len(names) > 1:
        return warn("GPUs", f"ranks have different ones: {', '.join(names)}{idle}",
                    "ask the scheduler for one kind, or expect the slowest to decide")
    return ok("GPUs", f"one of its own for each rank: {', '.join(names)}{idle}")


def _code(places: Sequence[tuple[RankFacts, int | None]]) -> Line:
    bad = {rank.rank: reason for rank, place in places
           if place is not None and (reason := rank.facts["cuda"]["no_code"][place])}
    if not bad:
        return ok("GPU code", "this torch has code for the GPUs that are used")
    reason, _, fix = next(iter(bad.values())).partition("; ")
    return fail("GPU code", f"rank {rank_list(bad)}: {reason}", fix)
