"""A configuration becomes a `Plan`: every point a case, with its id, its place or its skip."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from hpcbench.config.names import unknown_name
from hpcbench.config.schema import CollectiveBlock, Config, Hardware
from hpcbench.errors import ConfigError
from hpcbench.plan.case import Case, Collective, Plan, case_id
from hpcbench.plan.estimate import CASE_S, case_budget_s, estimate_case_s, within_timeout_s
from hpcbench.plan.order import ordered
from hpcbench.plan.points import Point, points, refuse_huge
from hpcbench.plan.sizes import rank_bytes, rounded, smallest_bytes
from hpcbench.plan.support import (
    BACKEND_TRAITS,
    COLLECTIVE_TRAITS,
    needs,
    resolve_device,
    unsupported,
)


def make_plan(config: Config, world_size: int) -> Plan:
    """Return the ordered cases of a job with ``world_size`` ranks.

    Points that are the same case are planned once. Raises ConfigError if the sweep is too large
    or nothing is left of it after the filters ``benchmark`` and ``only``, if no case uses a
    required backend, or if a fault can never happen.
    """
    blocks = _chosen_blocks(config)
    refuse_huge([block for _, block in blocks], config)
    every = [case for title, block in blocks
             for case in _block_cases(title, block, config, world_size)]
    distinct: dict[str, Case] = {}
    for case in every:
        distinct.setdefault(case.case_id, case)
    kept = ordered(_matching(list(distinct.values()), config.only))
    cases = tuple(replace(case, index=index)
                  for index, case in enumerate(_with_budget(kept, config)))
    _refuse_idle(config, cases)
    plain = config.plain()
    return Plan(
        name=config.name, world_size=world_size, passes=config.measure.passes, cases=cases,
        duplicates=len(every) - len(distinct), config=plain,
        plan_hash=_plan_hash(plain, cases, world_size), launches=config.measure.launches)


def _with_budget(cases: Sequence[Case], config: Config) -> list[Case]:
    """Add to each estimate the share of the job's budget that its case may use."""
    runs = sum(case.skip is None for case in cases)
    share_s = case_budget_s(config.measure.budget_s, runs, config.measure.passes,
                            config.measure.launches)
    return [case if case.skip or case.is_fixed else
            replace(case, estimate_s=max(
                case.estimate_s, CASE_S + within_timeout_s(share_s, case.timeout_s)))
            for case in cases]


def _chosen_blocks(config: Config) -> list[tuple[str, CollectiveBlock]]:
    """Return (title, block) of the blocks to run; a block without a name gets its number."""
    titled = [(block.name or f"{block.kind}-{number}", block)
              for number, block in enumerate(config.benchmarks, start=1)]
    chosen = [(title, block) for title, block in titled
              if config.benchmark in (None, block.kind)]
    if not chosen:
        kinds = sorted({block.kind for block in config.benchmarks})
        raise ConfigError(f"benchmark: {unknown_name(config.benchmark, kinds)}")
    return chosen


def _refuse_idle(config: Config, cases: Sequence[Case]) -> None:
    """Refuse a requirement or a fault that no case can meet: it would look as if it had been."""
    backends = {name for case in cases for name in (case.backend, case.backend.partition("/")[0])}
    lines = [f"require: no case uses {name}; there are {', '.join(sorted(backends))}"
             for name in config.require if name not in backends]
    for number, fault in enumerate(config.fault):
        meant = [case for case in cases if fault.rank < case.world_size
                 and fault.iteration < case.warmup + (case.min_iterations or case.iterations)
                 and (fault.case == case.case_id or fnmatchcase(case.label, fault.case))]
        if not meant:
            lines.append(f'fault[{number}]: no case "{fault.case}" has a rank {fault.rank} and an '
                         f"iteration {fault.iteration}; the fault could never happen")
    if lines:
        raise ConfigError("\n".join(lines))


def _matching(cases: Sequence[Case], pattern: str | None) -> Sequence[Case]:
    if pattern is None:
        return cases
    kept = [case for case in cases if fnmatchcase(case.label, pattern)]
    if not kept:
        raise ConfigError(f'only: "{pattern}" matches none of {len(cases)} cases; it must match '
                          f'a whole label, such as "{cases[0].label}"')
    return kept


def _block_cases(
    title: str, block: CollectiveBlock, config: Config, world_size: int
) -> Iterator[Case]:
    for point in points(block, config, world_size):
        yield _case(title, block, config, world_size, point)


def _case(
    title: str, block: CollectiveBlock, config: Config, job_size: int, point: Point
) -> Case:
    """Return the case of a point; options that its collective does not have are dropped."""
    work = _workload(point)
    device = resolve_device(point.backend, point.device)
    validate = point.validate and work.collective != "barrier"
    env = tuple(sorted({**dict(BACKEND_TRAITS[point.backend].env), **dict(point.env)}.items()))
    ranks = _group_size(point)
    memory = rank_bytes(work.collective, work.in_place, ranks, work.size_bytes, work.split)
    skip = (_skip(point, work, device, job_size) or _contradiction(point)
            or _too_large(memory, device, config.hardware))
    least, most = _iterations(point, config)
    batch = config.measure.batch if point.mode == "pipelined" else 1
    estimate_s = estimate_case_s(work, device, ranks, (point.warmup + least) * batch, validate,
                                 config.hardware)
    identity = _identity(point, work, device, env, validate, config)
    return Case(
        case_id=case_id(identity), index=0, block=title, kind=block.kind, backend=point.backend,
        device=device, world_size=point.world_size, env=env, mode=point.mode,
        warmup=point.warmup, iterations=most, validate=validate,
        timeout_s=block.timeout_s or config.launch.timeout_s, wakeup_s=point.wakeup_s,
        workload=work, skip=skip, needs=() if skip else needs(point.backend, device),
        estimate_s=0.0 if skip else estimate_s, memory_bytes=memory,
        min_iterations=least, batch=batch)


def _iterations(point: Point, config: Config) -> tuple[int, int]:
    """Return the least and the most timed samples of a pass; they are equal if fixed."""
    if isinstance(point.iterations, str):
        return config.measure.min_iterations, config.measure.max_iterations
    return point.iterations, point.iterations


def _workload(point: Point) -> Collective:
    traits = COLLECTIVE_TRAITS[point.collective]
    barrier = point.collective == "barrier"
    dtype = "uint8" if barrier else point.dtype
    split = point.split if traits.uneven else "even"
    size, count = rounded(point.collective, dtype, _group_size(point), point.size_bytes, split)
    return Collective(
        collective=point.collective, dtype=dtype, op=point.op if traits.has_op else None,
        root=point.root if traits.has_root else None,
        in_place=_form(traits.in_place, point.in_place),
        requested_bytes=0 if barrier else point.size_bytes, size_bytes=size, count=count,
        split=split, groups=point.groups)


def _group_size(point: Point) -> int:
    """Return the ranks of one group; of a world that cannot be divided, a skip, at least 1."""
    return max(point.world_size // point.groups, 1)


def _form(forms: tuple[bool, ...] | None, asked: bool | None) -> bool | None:
    """Return whether to run in place: as asked, else the collective's first form."""
    return None if forms is None else forms[0] if asked is None else asked


def _skip(point: Point, work: Collective, device: str, job_size: int) -> str | None:
    """Return why the point can run nowhere as asked, or None."""
    reason = unsupported(
        point.backend, device, work.collective, work.dtype, work.op, work.in_place, work.split)
    return reason or _unfit_world(point, work, job_size) or _rounded_to_nothing(point, work)


def _unfit_world(point: Point, work: Collective, job_size: int) -> str | None:
    """Return why the ranks are too few or too many, or cannot be divided as asked, or None."""
    ranks, least = _group_size(point), COLLECTIVE_TRAITS[work.collective].min_world_size
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
    if work.size_bytes or work.collective == "barrier":
        return None
    ranks = _group_size(point)
    smallest = smallest_bytes(work.collective, work.dtype, ranks, work.split)
    split = f" split {work.split}" if work.split != "even" else ""
    return (f"{work.requested_bytes} B is rounded to nothing: {work.collective} of "
            f"{work.dtype}{split} over {ranks} ranks begins at {smallest} B")


def _contradiction(point: Point) -> str | None:
    """Return why the point's environment selects something else than its backend, or None."""
    selected = dict(BACKEND_TRAITS[point.backend].env)
    for name, value in point.env:
        if selected.get(name, value) != value:
            return f"env {name}={value} contradicts {point.backend}, which sets {selected[name]}"
    return None


def _too_large(memory_bytes: int, device: str, hardware: Hardware) -> str | None:
    limit = hardware.memory_per_device_gb
    if limit is None or memory_bytes <= limit * 1e9 or hardware.device_type not in (None, device):
        return None
    return (f"needs {memory_bytes / 1e9:.3g} GB of memory per rank, more than "
            f"hardware.memory_per_device_gb {limit:g}")


def _identity(
    point: Point, work: Collective, device: str, env: tuple[tuple[str, str], ...],
    validate: bool, config: Config,
) -> dict[str, Any]:
    """Return what makes a case this case; limits and labels do not."""
    identity: dict[str, Any] = {
        "kind": "collective", "collective": work.collective, "dtype": work.dtype, "op": work.op,
        "root": work.root, "in_place": work.in_place, "size_bytes": work.size_bytes,
        "backend": point.backend, "device": device, "world_size": point.world_size,
        "env": dict(env), "mode": point.mode, "warmup": point.warmup,
        "iterations": point.iterations, "validate": validate,
    }
    if point.mode == "pipelined":
        identity["batch"] = config.measure.batch
    if work.size_bytes == 0:
        identity["requested_bytes"] = work.requested_bytes
    if work.split != "even":
        identity["split"] = work.split
    if work.groups != 1:
        identity["groups"] = work.groups
    if point.wakeup_s != config.launch.wakeup_s:
        identity["wakeup_s"] = point.wakeup_s
    return identity


def _plan_hash(plain: dict[str, Any], cases: Sequence[Case], world_size: int) -> str:
    """Return 16 hex digits over what is measured and how; not over names and places."""
    blocks = [{**block, "name": None} for block in plain["benchmarks"]]
    content = [blocks, plain["measure"], world_size,
               [(case.case_id, case.skip, case.timeout_s, case.wakeup_s) for case in cases]]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
