"""A configuration becomes a `Plan`: every point a case, with its id, its place or its skip."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hpcbench.config import axes
from hpcbench.config.schema import Config
from hpcbench.config.section import Block, Fault, block_title
from hpcbench.errors import ConfigError
from hpcbench.plan.case import Case, Plan, Planner, PlanRequest, planner_of
from hpcbench.plan.choice import fitting, labels_of
from hpcbench.plan.order import case_budget_s, device_kind, ordered, setup_s, within_timeout_s
from hpcbench.plan.points import refuse_huge
from hpcbench.units import grouped, plural, vary


def make_plan(config: Config, world_size: int) -> Plan:
    """Return the ordered cases of a job with ``world_size`` ranks.

    Points that are the same case are planned once. Raises ConfigError if the sweep is too large, if
    its filters leave nothing, if no case uses a required backend, or if a fault can never happen.
    Each line of it names the file that gives the key, or the command line."""
    with config.origin.named():
        blocks = _chosen_blocks(config, world_size)
        planners = {kind: planner_of(kind) for kind in {block.kind for _, block in blocks}}
        every = _every_case(blocks, planners, PlanRequest(config, world_size))
        distinct = _told_apart(_distinct(every))
        kept = ordered(_of_target(_matching(_selected(distinct, config), config), config))
        cases = tuple(replace(case, index=index)
                      for index, case in enumerate(_with_budget(kept, config)))
        _refuse_unused(config, cases)
        config = _with_chosen_faults(config, distinct, cases)
    return Plan(
        name=config.name, world_size=world_size, passes=config.measure.passes, cases=cases,
        duplicates=len(every) - len(distinct), config=config.plain(),
        plan_hash=_plan_hash(config, cases, world_size), launches=config.measure.launches)


def _every_case(
    blocks: Sequence[tuple[str, Block]], planners: Mapping[str, Planner], job: PlanRequest,
) -> list[Case]:
    """Return the cases of all points. Raises ConfigError with the problems of all blocks."""
    cases: list[Case] = []
    problems: list[str] = []
    refuse_huge([(planners[block.kind], block) for _, block in blocks], job.config)
    for title, block in blocks:
        try:
            cases += planners[block.kind].cases(title, block, job)
        except ConfigError as error:
            problems += error.args
    if problems:  # a problem of several blocks is reported once
        first = {line.split(": ", 2)[-1]: line for line in reversed(problems)}
        raise ConfigError(*(line for line in problems if line in first.values()))
    return cases


def _distinct(every: Sequence[Case]) -> list[Case]:
    """Return one case of each id, with the origins of all that have it."""
    cases_by_id = grouped((case.case_id, case) for case in every)
    return [same[0] if len(same) == 1 or not (name := same[0].workload.origin) else replace(
        same[0], workload=replace(same[0].workload, **{name: joined_origins(  # type: ignore[type-var]
            getattr(case.workload, name) for case in same)})) for same in cases_by_id.values()]


def _told_apart(cases: Sequence[Case]) -> list[Case]:
    """Return the cases; of several with one label each with the marks that tell it apart."""
    marks: dict[str, str] = {}
    for alike in grouped((case.label, case) for case in cases).values():
        if len(alike) > 1:
            _, own = vary(case.unlabelled for case in alike)
            texts = [" ".join(words) for words in own]
            times = Counter(texts)
            marks |= {case.case_id: f"id={case.case_id}" if times[text] > 1 else text
                      for case, text in zip(alike, texts, strict=True)}
    return [replace(case, marks=marks[case.case_id]) if case.case_id in marks else case
            for case in cases]


def joined_origins(origins: Iterable[str]) -> str:
    """Return the joined origins of one problem: ``a, b mlp tp=2``; each name once."""
    models: dict[str, dict[str, None]] = {}
    for origin in filter(None, origins):
        model, _, layer = origin.partition(" ")
        models.setdefault(layer, {})[model] = None
    return ", ".join(f"{', '.join(names)} {layer}" for layer, names in models.items())


def _with_budget(cases: Sequence[Case], config: Config) -> list[Case]:
    """Raise estimates to set-up and the share of the job's budget that a case may use, at least."""
    runs = sum(case.skip is None for case in cases)
    share_s = case_budget_s(config.measure.budget_s, runs, config.measure.passes,
                            config.measure.launches)
    return [case if case.skip or case.is_fixed else
            replace(case, estimate_s=max(
                case.estimate_s,
                setup_s(case.workload, device_kind(case.device))
                + within_timeout_s(share_s, case.timeout_s)))
            for case in cases]


def _chosen_blocks(config: Config, world_size: int) -> list[tuple[str, Block]]:
    """Return (title, block) of the blocks to run."""
    titled = [(block_title(block.name, block.kind, number), block)
              for number, block in enumerate(config.benchmarks, start=1)]
    if config.benchmark == axes.SCALING:
        return _scaled(titled, world_size)
    chosen = [(title, block) for title, block in titled if config.benchmark in (None, block.kind)]
    if not chosen:
        kinds = sorted({block.kind for block in config.benchmarks})
        raise ConfigError(f"benchmark: no block is of kind {config.benchmark}; there are blocks of "
                          f"kind {' and '.join(kinds)}")
    return chosen


def _scaled(titled: Sequence[tuple[str, Block]], world_size: int) -> list[tuple[str, Block]]:
    """Return the blocks that scale, on 1, 2, 4 ... and all ranks instead of their own numbers."""
    sizes = (*(2**power for power in range((world_size - 1).bit_length())), world_size)
    scaled = [(title, block.model_copy(update={"world_size": sizes}))
              for title, block in titled if block.scales]
    if not scaled:
        kinds = sorted({block.kind for _, block in titled})
        raise ConfigError("benchmark: scaling runs collectives and trainings; there are only "
                          f"blocks of kind {' and '.join(kinds)}")
    return scaled


def _with_first_try(case: Case) -> tuple[Case, ...]:
    first = case.workload.next_try(())
    return (case, *([replace(case, workload=first[0])] if first else []))


def _refuse_unused(config: Config, cases: Sequence[Case]) -> None:
    """Raise ConfigError for a required backend that no case uses."""
    backends = {name for case in cases for name in (case.backend, axes.library_of(case.backend))}
    used = backends | {device for case in cases for device in (
        axes.GPU_DEVICES if case.device == "auto" else (case.device,))}
    if lines := [f"required_backends: no case uses {name}; there are "
                 f"{', '.join(sorted(used - {'cpu'}))}"
                 for name in config.required_backends if name not in used]:
        raise ConfigError(*lines)


def _with_chosen_faults(config: Config, every: Sequence[Case], chosen: Sequence[Case]) -> Config:
    """Return the configuration without the faults of cases that are not ``chosen``, with a note of
    each. Raises ConfigError for a fault that can happen in none of ``every`` case."""
    lines, notes, kept = list[str](), list[str](), list[Fault]()
    choosers = [key for key in ("model", "strategy", "only", "exclude") if getattr(config, key)]
    choosers += ["profiling.target"] if config.profiling.target else []
    for number, fault in enumerate(config.fault):
        if any(_can_have(case, fault) for case in chosen):
            kept.append(fault)
        elif any(_can_have(case, fault) for case in every):
            notes.append(f'fault[{number}] happens in no case: {" and ".join(choosers)} left out '
                         f'those that "{fault.case}" names')
        else:
            and_samples = ", and samples that can take longer" * (fault.kind == "slow_samples")
            of_kind = f" of benchmark {config.benchmark}" if config.benchmark else ""
            lines.append(f'fault[{number}]: no case "{fault.case}"{of_kind} has a rank '
                         f"{fault.rank} and an iteration {fault.iteration or 0}{and_samples}; the "
                         "fault could never happen")
    if lines:
        raise ConfigError(*lines)
    return config.model_copy(update={
        "fault": tuple(kept), "notes": (*config.notes, *notes)}) if notes else config


def _can_have(case: Case, fault: Fault) -> bool:
    samples = case.warmup + (case.min_iterations or case.iterations)
    return fault.rank < case.world_size and (fault.iteration or 0) < samples and any(
        one.may_have(fault) for one in _with_first_try(case))


def _selected(cases: Sequence[Case], config: Config) -> Sequence[Case]:
    """Return the cases with ``model`` and ``strategy`` as wanted; all where neither is given."""
    for key, wanted in (("model", config.model), ("strategy", config.strategy)):
        if not wanted:
            continue
        cases = [case for case in cases if key in case.workload.features.selectors]
        selectors = dict.fromkeys(case.workload.features.selectors[key] for case in cases)
        for name in wanted:
            if name not in selectors:
                raise ConfigError(f"{key}: {axes.unknown_name(name, selectors)}" if selectors else
                                  f"{key}: no case of the sweep has a {key} to select it by")
        cases = [case for case in cases if case.workload.features.selectors[key] in wanted]
    return cases


def _matching(cases: Sequence[Case], config: Config) -> Sequence[Case]:
    """Return the cases that ``only`` and ``exclude`` leave. Raises ConfigError if none is left."""
    only = None if config.only is None else fitting(labels_of(cases), config.only)
    chosen = [case for case in cases if only is None or case.case_id in only]
    if not chosen and cases:
        raise ConfigError(f"only: {' and '.join(map(axes.quote, config.only or ()))} "
                          f"{'match' if len(config.only or ()) > 1 else 'matches'} none of "
                          f"{plural(len(cases), 'case')}; write whole words of a label, such as "
                          f'"{cases[0].workload.name}" of "{cases[0].label}", or a pattern of all '
                          f'of it, such as "{cases[0].label.split()[0]} *"')
    excluded = fitting(labels_of(chosen), config.exclude or ())
    kept = [case for case in chosen if case.case_id not in excluded]
    if not kept and chosen:
        raise ConfigError(f"exclude: {' and '.join(map(axes.quote, config.exclude or ()))} "
                          f"{'leave' if len(config.exclude or ()) > 1 else 'leaves'} none of "
                          f"{plural(len(chosen), 'case')}")
    return kept


def _of_target(cases: Sequence[Case], config: Config) -> Sequence[Case]:
    """Return the cases that show what is to be profiled. Raises ConfigError if none does."""
    target = config.profiling.target
    kept = [case for case in cases if target is None or target in _shown_by(case)]
    if not kept and cases:
        if any(target in case.workload.features.profiled_for for case in cases):
            raise ConfigError(f"profiling.target: the cases that show {target} have one rank, "
                              "which never waits for others: use more ranks, or raise world_size")
        counts = Counter(name for case in cases for name in _shown_by(case))
        remedy = "".join(f"take --target {name}, or " for name, _ in counts.most_common(1))
        others = ", ".join(f"{name} ({counts[name]} of {len(cases)})" for name in axes.TARGETS
                           if counts[name]) or "no target"
        raise ConfigError(f"profiling.target: no case of the sweep shows {target}; its cases show "
                          f"{others}: {remedy}add a block that does (docs/profile.md has one "
                          "for each)")
    return kept


def _shown_by(case: Case) -> frozenset[str]:
    """Return the targets that a case shows: a single rank only computes."""
    shown = case.workload.features.profiled_for
    return shown if case.world_size > 1 else shown & {"compute"}


def _plan_hash(config: Config, cases: Sequence[Case], world_size: int) -> str:
    """Return 16 hex digits over what is measured and how; names are left out.

    So is ``profiling``: profiled samples enter no statistic, and a run that is resumed may begin
    to profile. Its ``target`` chooses cases, which are in the hash."""
    plain = config.plain()
    blocks = [{key: value for key, value in block.items() if value is not None and key != "name"}
              for block in plain["benchmarks"]]
    content = [blocks, plain["measure"], world_size,
               [(case.case_id, case.skip, case.timeout_s, case.wakeup_s) for case in cases]]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
