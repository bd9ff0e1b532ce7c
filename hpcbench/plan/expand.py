"""A configuration becomes a `Plan`: every point a case, with its id, its place or its skip."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from hpcbench.config.blocks import AnyBlock, CollectiveBlock, TrainingBlock
from hpcbench.config.names import unknown_name
from hpcbench.config.schema import Config
from hpcbench.errors import ConfigError
from hpcbench.kinds.collective.plan.cases import collective_cases
from hpcbench.kinds.primitive.plan.cases import primitive_cases
from hpcbench.kinds.primitive.plan.registry import Registry, load_registry
from hpcbench.kinds.primitive.plan.shapes import joined_origins
from hpcbench.kinds.training.plan.cases import training_cases
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.estimate import case_budget_s, setup_s, within_timeout_s
from hpcbench.plan.order import ordered
from hpcbench.plan.points import Job, refuse_huge
from hpcbench.plan.workload import Primitive, Training


def make_plan(config: Config, world_size: int) -> Plan:
    """Return the ordered cases of a job with ``world_size`` ranks.

    Points that are the same case are planned once. Raises ConfigError if the sweep is too large
    or nothing is left of it after the filters ``benchmark``, ``model``, ``strategy`` and ``only``,
    if no case uses a required backend, or if a fault can never happen.
    """
    blocks = _chosen_blocks(config)
    refuse_huge([block for _, block in blocks], config)
    registry = load_registry()
    every = [case for title, block in blocks
             for case in _block_cases(title, block, Job(config, world_size), registry)]
    distinct = _distinct(every)
    kept = ordered(_matching(_named(distinct, config), config.only))
    cases = tuple(replace(case, index=index)
                  for index, case in enumerate(_with_budget(kept, config)))
    _refuse_idle(config, cases)
    plain = config.plain()
    return Plan(
        name=config.name, world_size=world_size, passes=config.measure.passes, cases=cases,
        duplicates=len(every) - len(distinct), config=plain,
        plan_hash=_plan_hash(plain, cases, world_size), launches=config.measure.launches)


def _distinct(every: Sequence[Case]) -> list[Case]:
    """Return the first case of each id; one that several models lead to is named after them all."""
    found: dict[str, list[Case]] = defaultdict(list)
    for case in every:
        found[case.case_id].append(case)
    return [_named_after_all(same) for same in found.values()]


def _named_after_all(same: Sequence[Case]) -> Case:
    first = same[0]
    if not isinstance(first.workload, Primitive):
        return first
    shape = joined_origins(case.primitive.shape for case in same)
    return replace(first, workload=replace(first.workload, shape=shape))


def _with_budget(cases: Sequence[Case], config: Config) -> list[Case]:
    """Add to each estimate the share of the job's budget that its case may use."""
    runs = sum(case.skip is None for case in cases)
    share_s = case_budget_s(config.measure.budget_s, runs, config.measure.passes,
                            config.measure.launches)
    return [case if case.skip or case.is_fixed else
            replace(case, estimate_s=max(
                case.estimate_s,
                setup_s(case.workload) + within_timeout_s(share_s, case.timeout_s)))
            for case in cases]


def _chosen_blocks(config: Config) -> list[tuple[str, AnyBlock]]:
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
                 and (fault.case == case.case_id or fnmatchcase(case.label, fault.case))
                 and (fault.kind != "slow_samples" or _has_whole_samples(case))]
        if not meant:
            lines.append(f'fault[{number}]: no case "{fault.case}" has a rank {fault.rank} and an '
                         f"iteration {fault.iteration}; the fault could never happen")
    if lines:
        raise ConfigError("\n".join(lines))


def _has_whole_samples(case: Case) -> bool:
    """Return whether a rank sees samples from end to end, which can be made to take longer."""
    return isinstance(case.workload, Training) and case.workload.pp == 1


def _named(cases: Sequence[Case], config: Config) -> Sequence[Case]:
    """Return the trainings of ``model`` with ``strategy``; all cases where neither is given."""
    for key, wanted in (("model", config.model), ("strategy", config.strategy)):
        if not wanted:
            continue
        cases = [case for case in cases if isinstance(case.workload, Training)]
        known = dict.fromkeys(getattr(case.training, key) for case in cases)
        for name in wanted:
            if name not in known:
                raise ConfigError(f"{key}: {unknown_name(name, known)}" if known else
                                  f"{key}: the sweep has no training")
        cases = [case for case in cases if getattr(case.training, key) in wanted]
    return cases


def _matching(cases: Sequence[Case], pattern: str | None) -> Sequence[Case]:
    if pattern is None:
        return cases
    kept = [case for case in cases if fnmatchcase(case.label, pattern)]
    if not kept:
        raise ConfigError(f'only: "{pattern}" matches none of {len(cases)} cases; it must match '
                          f'a whole label, such as "{cases[0].label}"')
    return kept


def _block_cases(
    title: str, block: AnyBlock, job: Job, registry: Registry,
) -> Iterator[Case]:
    if isinstance(block, CollectiveBlock):
        return collective_cases(title, block, job)
    if isinstance(block, TrainingBlock):
        return training_cases(title, block, job)
    return primitive_cases(title, block, job, registry)


def _plan_hash(plain: dict[str, Any], cases: Sequence[Case], world_size: int) -> str:
    """Return 16 hex digits over what is measured and how; not over names and places."""
    blocks = [{**block, "name": None} for block in plain["benchmarks"]]
    content = [blocks, plain["measure"], world_size,
               [(case.case_id, case.skip, case.timeout_s, case.wakeup_s) for case in cases]]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
