"""The points of a block of collectives become cases, or skips with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcbench.kinds.collective.plan.block import CollectiveBlock
from hpcbench.kinds.collective.plan.estimate import estimate_case_s
from hpcbench.kinds.collective.plan.points import Point, points
from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.operations.collectives import collective_spec
from hpcbench.operations.sizes import rank_bytes, rounded, smallest_bytes
from hpcbench.plan.assemble import (
    Draft,
    assemble,
    calls_of_sample,
    sample_bounds,
    too_large,
)
from hpcbench.plan.case import Case
from hpcbench.plan.points import PlanRequest
from hpcbench.plan.support import (
    BACKEND_TRAITS,
    resolve_device,
    unsupported,
)


def collective_cases(title: str, block: CollectiveBlock, job: PlanRequest) -> Iterator[Case]:
    """Yield the case of every point; options that its collective does not have are dropped."""
    for point in points(block, job.config, job.world_size):
        yield assemble(title, block, job, point, _draft(point, job))


def _draft(point: Point, job: PlanRequest) -> Draft:
    work, config = _workload(point), job.config
    device = resolve_device(point.backend, point.device)
    validate = point.validate and work.traits.moves_data
    ranks = _group_size(point)
    memory = rank_bytes(work.collective, work.in_place, ranks, work.size_bytes, work.split)
    calls = (point.warmup + sample_bounds(point, config)[0]) * calls_of_sample(point, config)
    return Draft(
        workload=work, device=device, validate=validate, memory_bytes=memory,
        skip=(_skip(point, work, device, job.world_size)
              or too_large(memory, 0, device, config.hardware)),
        estimate_s=estimate_case_s(work, device, ranks, calls, validate, config.hardware),
        identity=_identity(work))


def _identity(work: Collective) -> dict[str, Any]:
    """Return what makes it this collective."""
    identity: dict[str, Any] = {
        "kind": "collective", "collective": work.collective, "dtype": work.dtype, "op": work.op,
        "root": work.root, "in_place": work.in_place, "size_bytes": work.size_bytes}
    if work.size_bytes == 0:
        identity["requested_bytes"] = work.requested_bytes
    if work.split != "even":
        identity["split"] = work.split
    if work.groups != 1:
        identity["groups"] = work.groups
    return identity


def _workload(point: Point) -> Collective:
    traits = collective_spec(point.collective)
    dtype = point.dtype if traits.moves_data else "uint8"
    split = point.split if traits.uneven else "even"
    size, count = rounded(point.collective, dtype, _group_size(point), point.size_bytes, split)
    return Collective(
        collective=point.collective, dtype=dtype, op=point.op if traits.has_op else None,
        root=point.root if traits.has_root else None,
        in_place=_form(traits.in_place, point.in_place),
        requested_bytes=point.size_bytes if traits.moves_data else 0, size_bytes=size, count=count,
        split=split, groups=point.groups)


def _group_size(point: Point) -> int:
    """Return the ranks of one group; of a world that cannot be divided, a skip, at least 1."""
    return max(point.world_size // point.groups, 1)


def _form(forms: tuple[bool, ...] | None, requested: bool | None) -> bool | None:
    """Return whether to run in place: as requested, else the collective's first form."""
    return None if forms is None else forms[0] if requested is None else requested


def _skip(point: Point, work: Collective, device: str, job_size: int) -> str | None:
    """Return why the point can run nowhere as requested, or None."""
    reason = unsupported(point.backend, device, [work.own_call()])
    return reason or _unfit_world(point, work, job_size) or _rounded_to_nothing(point, work)


def _unfit_world(point: Point, work: Collective, job_size: int) -> str | None:
    """Return why the ranks are too few or too many, or cannot be divided as requested, or None."""
    ranks, least = _group_size(point), work.traits.min_world_size
    where = " in a group" if work.groups > 1 else ""
    if point.world_size > job_size:
        return f"world_size {point.world_size} is more than the job's {job_size} ranks"
    if point.world_size % work.groups:
        return f"{point.world_size} ranks cannot be divided into {work.groups} equal groups"
    if ranks < least:
        return f"{work.collective} needs at least {least} ranks{where}"
    if ranks < BACKEND_TRAITS[point.backend].min_world_size:
        return f"{point.backend} makes no group of {ranks} rank"
    if work.split != "even" and ranks < 2:
        return f"split {work.split} needs at least 2 ranks{where}"
    if work.root is not None and work.root >= ranks:
        return f"root {work.root} is not one of {ranks} ranks{where}"
    return None


def _rounded_to_nothing(point: Point, work: Collective) -> str | None:
    if work.size_bytes or not work.traits.moves_data:
        return None
    ranks = _group_size(point)
    smallest = smallest_bytes(work.collective, work.dtype, ranks, work.split)
    split = f" split {work.split}" if work.split != "even" else ""
    return (f"{work.requested_bytes} B is rounded to nothing: {work.collective} of "
            f"{work.dtype}{split} over {ranks} ranks begins at {smallest} B")
