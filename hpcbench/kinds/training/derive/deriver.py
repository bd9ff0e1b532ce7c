"""The deriver of trainings: records of their own times, and of those of others of the run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from hpcbench.kinds.kind import Deriver
from hpcbench.kinds.training.derive import rates, slow_ranks
from hpcbench.kinds.training.derive.columns import COLUMNS, column_values
from hpcbench.kinds.training.derive.counted import Counted, counted, counted_wire_bytes, differences
from hpcbench.kinds.training.derive.exposed import UNPAIRED, Exposure, exposures, paired
from hpcbench.kinds.training.derive.fingerprints import (
    Counterpart,
    counterparts,
    disagreement,
)
from hpcbench.kinds.training.derive.lateness import lateness
from hpcbench.kinds.training.derive.pop import Pop, beside_base, from_partner, from_stamps
from hpcbench.kinds.training.derive.rooflines import rooflines
from hpcbench.kinds.training.derive.same_program import same_programs
from hpcbench.kinds.training.derive.stalls import Stalls, stalls
from hpcbench.kinds.training.derive.sync_variance import settled_variance, variance_comparison
from hpcbench.kinds.training.derive.waiting import rank_work, waiting
from hpcbench.kinds.training.derive.work import work
from hpcbench.kinds.training.plan.any_model import NAMES
from hpcbench.kinds.training.plan.flops import DEFINITIONS
from hpcbench.kinds.training.plan.predict import hardware_flops
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.case import Case
from hpcbench.reduce.ceilings import device_of, measured_rate, over_measured
from hpcbench.reduce.checks import Problem
from hpcbench.reduce.comparison import Comparison, clear
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.roofline import Roofline

GROWTH = "process growth"
"""What a peak is of where no allocator tells: no count of tensors, as predictions are."""
OTHER = "other"
"""The part of a step that is in no phase."""


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """What is derived of one training; None where there is no such number.

    Attributes:
        step_s: the median time of a step, where rates follow from it.
        samples_per_s, tokens_per_s: what all ranks train in a second; images have no tokens.
        mfu, hfu: shares of the devices' peak by ``mfu_definition``; the second with what
            checkpointing computes again, as torch executes it.
        hfu_nominal: the same with a whole forward pass of each block that is computed again.
        mfu_of_measured: the same MFU beside the best product of this dtype that kind hardware
            measured on this device in this run; None where it measured none.
        mfu_missing: why ``mfu`` is None, where the case trained.
        mfu_by_definition: MFU by every definition that the plan counted FLOPs by.
        phase_s: the median of each phase on the middle rank, ``other`` last.
        part_s: the share of each phase in the median step in seconds, ``other`` last; without
            phases all of it is ``other``.
        held_bytes: what of each the rank holds that holds most of it.
        peak_of: what the peak of memory is of; empty if unknown.
        parity_share: the largest error of any rank in shares of what is allowed.
        counterpart: the case that a large model was compared with; None where none was looked for.
        passes_over_data: how often a file of tokens was read in a pass, at most of any rank.
        exposure: what the run without communication, and that of nothing else, say of it.
        is_partner: whether it is shown beside a training, as its run without communication.
        scaling: the efficiency over ranks.
        cost_per_step, cost_per_million_tokens, cost_per_million_samples: in the currency of
            ``hardware.price_per_device_hour``, where that is declared.
        slow_phases: ranks that stand out in a phase.
        late_rank: the rank that arrives last where gradients are exchanged.
        slow_alone: the rank that computes slowly without communication.
        stalls: what the stamps say of ranks that wait; None where they were not looked at.
        same_program_as: the first case of the run that runs the same; None if it is that itself.
        counted: what one step called, computed and took; None where none was counted.
        comparisons: those of ranks, and that of the exchange with computing.
        pop: which share of the ranks' time is useful; None where nothing tells.
        rooflines: what binds the step, then its phases; none without ceilings.
    """

    step_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    hfu_nominal: float | None = None
    mfu_definition: str | None = None
    mfu_of_measured: float | None = None
    mfu_missing: str | None = None
    mfu_by_definition: Mapping[str, float | None] = field(default_factory=dict)
    phase_s: Mapping[str, float] = field(default_factory=dict)
    part_s: Mapping[str, float] = field(default_factory=dict)
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    peak_of: str = ""
    parity_share: float | None = None
    counterpart: Counterpart | None = None
    passes_over_data: float | None = None
    exposure: Exposure = UNPAIRED
    is_partner: bool = False
    scaling: rates.ScalingRecord | None = None
    slow_phases: tuple[slow_ranks.SlowPhase, ...] = ()
    late_rank: slow_ranks.LateRank | None = None
    slow_alone: slow_ranks.SlowAlone | None = None
    stalls: Stalls | None = None
    cost_per_step: float | None = None
    cost_per_million_tokens: float | None = None
    cost_per_million_samples: float | None = None
    same_program_as: str | None = None
    counted: Counted | None = None
    comparisons: tuple[Comparison, ...] = ()
    pop: Pop | None = None
    rooflines: tuple[Roofline, ...] = ()


NOTHING_KNOWN = TrainingRecord()


class TrainingDeriver(Deriver):
    """Derives rates, exposed communication and scaling."""

    record = TrainingRecord
    version = 8
    columns = COLUMNS
    column_values = staticmethod(column_values)
    work = staticmethod(work)
    lateness = staticmethod(lateness)
    waiting = staticmethod(waiting)
    rank_work = staticmethod(rank_work)

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, TrainingRecord]:
        """Return what each case gives alone, and beside the others."""
        exposed, partners, scaled = exposures(items), paired(items), rates.scaling(items)
        same, others = same_programs(items), counterparts(items)
        return {case_id: replace(
            _alone(item, hardware, exposed.get(case_id, UNPAIRED)),
            is_partner=case_id in partners, scaling=scaled.get(case_id),
            same_program_as=same.get(case_id), counterpart=others.get(case_id))
            for item in items for case_id in [item.case.case_id]}

    def observe(self, item: CaseResult, samples: CaseSamples) -> dict[str, Any]:
        """Return how the ranks of a case compare, and the stalls of one that trains."""
        found = tuple(slow_ranks.comparisons(item, samples))
        if not training_of(item.case).trains:
            return {"comparisons": found}
        ready = next((one for one in found if one.what == slow_ranks.READY), None)
        known = stalls(item, samples, ready)
        fields = {"stalls": known, "comparisons": (*found, *variance_comparison(known.sync))}
        told = from_stamps(item, samples)
        return {**fields, "pop": told} if told else fields

    def settled(self, records: Mapping[str, TrainingRecord]) -> Mapping[str, TrainingRecord]:
        """Return the records without ranks, and variances, that the whole report refuses."""
        known = {case_id: record.pop for case_id, record in records.items()}
        return {case_id: replace(
            _settled(record, records), pop=beside_base(record.pop, record.scaling, known))
            for case_id, record in records.items()}

    def sent_bytes(self, item: CaseResult) -> float | None:
        """Return what all ranks counted in one step, as sizes times busbw factors."""
        return counted_wire_bytes(item)

    def problems(
        self, item: CaseResult, time_s: float, nodes: Mapping[int, str],
        hardware: Mapping[str, Any],
    ) -> Iterator[Problem]:
        """Yield HB149 for numbers that contradict one another, or the devices."""
        work = training_of(item.case)
        computed = rates.rates(work, time_s)
        if computed is None or not work.trains:
            return
        shares: dict[str, float | None] = {}
        if definition := rates.shown_definition(work):
            shares[f"MFU ({definition})"] = rates.mfu(
                work, definition, time_s, item.case.world_size,
                hardware.get("peak_flops", {})).share
        for text in rates.violations(rates.Record(
                time_s, computed.samples_per_s, computed.tokens_per_s, work.global_batch,
                work.seq_length, shares)):
            yield Problem("HB149", text)

    def told_problems(self, case: Case, detail: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield HB157 for calls of a step that are not those that were predicted."""
        found = list(differences(case, detail))
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            yield Problem("HB157", f"{found[0]}{more}: the numbers that are measured stand; what "
                          "is predicted of its traffic does not hold here: report it",
                          rejects=False)

    def joint_problems(
        self, items: Sequence[CaseResult], records: Mapping[str, TrainingRecord],
    ) -> Iterator[tuple[Case, Problem]]:
        """Yield HB158 for large models that are not what another strategy computes of them.

        HB146 for an MFU above the best product of the run.
        """
        for item in items:
            record = records.get(item.case.case_id, NOTHING_KNOWN)
            for problem in over_measured("its MFU", record.mfu_of_measured):
                yield item.case, problem
            if record.counterpart and record.counterpart.n_wrong:
                yield item.case, Problem("HB158", disagreement(record.counterpart))


def _settled(record: TrainingRecord, records: Mapping[str, TrainingRecord]) -> TrainingRecord:
    def holds(what: str, rank: int, own: TrainingRecord | None = record) -> bool:
        found = clear(own.comparisons, what) if own else None
        return found is not None and found.rank == rank

    late, alone, known = record.late_rank, record.slow_alone, record.stalls
    if known is not None:
        last = known.last if known.last and holds(slow_ranks.READY, known.last.rank) else None
        known = replace(known, last=last, sync=settled_variance(known.sync, record.comparisons))
    return replace(
        record, stalls=known,
        late_rank=late if late and holds(slow_ranks.ARRIVES, late.rank) else None,
        slow_phases=tuple(slow for slow in record.slow_phases if holds(slow.phase, slow.rank)),
        slow_alone=alone if alone and holds(
            slow_ranks.STEP, alone.rank, records.get(alone.case_id)) else None)


def _alone(item: CaseResult, hardware: Mapping[str, Any], exposure: Exposure) -> TrainingRecord:
    late, phases, held = slow_ranks.late_rank(item), _phases(item), _held_bytes(item)
    return TrainingRecord(
        **_rates(item, hardware), mfu_by_definition=_mfu_by_definition(item, hardware),
        **phases, held_bytes=held,
        rooflines=rooflines(item, hardware, phases.get("phase_s", {}), held),
        peak_of=_peak_of(item), parity_share=_parity_share(item),
        passes_over_data=_passes_over_data(item), exposure=exposure,
        slow_phases=tuple(slow_ranks.slow_phases(item, late)), late_rank=late,
        slow_alone=slow_ranks.slow_alone(exposure), counted=counted(item),
        pop=from_partner(item, exposure))


def _rates(item: CaseResult, hardware: Mapping[str, Any]) -> dict[str, Any]:
    work, stats = training_of(item.case), item.statistics
    computed = rates.rates(work, stats.median_s) if stats else None
    if stats is None or computed is None:
        return {}
    if not work.trains:  # nothing is trained: there is no rate of it
        return {"step_s": stats.median_s}
    definition = rates.shown_definition(work)
    row: dict[str, Any] = {
        "step_s": stats.median_s, "samples_per_s": computed.samples_per_s,
        "tokens_per_s": computed.tokens_per_s, "mfu_definition": definition,
        **_costs(item.case, stats.median_s, hardware)}
    if definition is None:
        return {**row, "mfu_missing": "the FLOPs of a step are not known"}
    timed = (stats.median_s, item.case.world_size, hardware.get("peak_flops", {}))
    used = rates.mfu(work, definition, *timed)
    if work.model in NAMES and definition in DEFINITIONS:  # others were planned elsewhere
        for name, nominal in (("hfu", False), ("hfu_nominal", True)):
            executed = hardware_flops(work, definition, nominal=nominal)
            row[name] = rates.hfu(work, executed, *timed).share
    measured = measured_rate(item, hardware, "flops", f"{device_of(item)} {work.dtype}")
    of_measured = rates.mfu(
        work, definition, *timed[:2], {work.dtype: measured} if measured else {})
    return {**row, "mfu": used.share, "mfu_missing": used.reason or None,
            "mfu_of_measured": of_measured.share}


def _costs(case: Case, step_s: float, hardware: Mapping[str, Any]) -> dict[str, float | None]:
    work, cost = training_of(case), rates.step_cost(case, step_s, hardware)
    if cost is None:
        return {}
    return {"cost_per_step": cost, "cost_per_million_samples": cost / work.global_batch * 1e6,
            "cost_per_million_tokens": cost / work.tokens * 1e6 if work.tokens else None}


def _mfu_by_definition(item: CaseResult, hardware: Mapping[str, Any]) -> dict[str, float | None]:
    work, stats, peaks = training_of(item.case), item.statistics, hardware.get("peak_flops", {})
    if stats is None or not work.trains:
        return {}
    return {name: rates.mfu(work, name, stats.median_s, item.case.world_size, peaks).share
            for name, _ in work.flops}


def _phases(item: CaseResult) -> dict[str, Any]:
    steps = item.timing.steps if item.timing else None
    whole_s = item.statistics.median_s if item.statistics else 0.0
    if steps is None:
        return {"part_s": {OTHER: whole_s}}
    return {"phase_s": {**{phase.name: median(phase.median_s) for phase in steps.phases},
                        OTHER: median(steps.other_s)},
            "part_s": {**{phase.name: whole_s * phase.share for phase in steps.phases},
                       OTHER: whole_s * steps.other_share}}


def _held_bytes(item: CaseResult) -> dict[str, int]:
    most: dict[str, int] = {}
    for held in (item.memory or {}).values():
        for name, value in held.items():
            if isinstance(value, int):
                most[name] = max(value, most.get(name, 0))
    return most


def _peak_of(item: CaseResult) -> str:
    return ",".join(dict.fromkeys(
        str(held["peak_of"]) for held in (item.memory or {}).values() if "peak_of" in held))


def _parity_share(item: CaseResult) -> float | None:
    shares = [float(left["parity"]["share"]) for left in item.detail.values() if "parity" in left]
    return max(shares) if shares and all(map(math.isfinite, shares)) else None


def _passes_over_data(item: CaseResult) -> float | None:
    batch = training_of(item.case).global_batch
    return max((left["data"]["steps"] * batch / left["data"]["samples"]
                for left in item.detail.values() if "data" in left), default=None)
