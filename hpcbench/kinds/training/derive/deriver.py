"""The deriver of trainings: records of their own times, and of those of others of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from statistics import median
from typing import Any

from hpcbench.kinds.training.derive import fingerprints, rates, slow_ranks, stalls
from hpcbench.kinds.training.derive.stalls import Pop, Stalls
from hpcbench.kinds.training.plan.any_model import NAMES
from hpcbench.kinds.training.plan.models import DEFINITIONS
from hpcbench.kinds.training.plan.predict import hardware_flops
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.records import dataclass
from hpcbench.reduce import roofline
from hpcbench.reduce.checks import Violation
from hpcbench.reduce.comparison import Comparison, clear
from hpcbench.reduce.kind_facts import (
    EXCHANGE,
    OWN_WORK,
    CaseColumn,
    ColumnValues,
    Deriver,
    Fact,
    Lateness,
    RankWork,
    ReadSamples,
    SentBytes,
    Variation,
    Waiting,
    settings,
    texts,
    whole_numbers,
)
from hpcbench.reduce.metric import planned, word
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.statistics.hypothesis_tests import pass_medians
from hpcbench.statistics.overlap import significant
from hpcbench.trace.columns import PURE

PIPELINE = ("stages of a pipeline have different work: a slow stage on every replica is uneven "
            "partitioning, not a slow rank")


def lateness(item: CaseResult, record: TrainingRecord | None) -> Iterator[Lateness]:
    known, work = record.stalls if record else None, training_of(item.case)
    if record is None or known is None or item.case.world_size == 1:
        return
    ready = next((one for one in record.comparisons if one.what == slow_ranks.READY), None)
    if work.pp > 1:
        yield Lateness(missing=PIPELINE)
    elif known.missing or ready is None or ready.chance is None:
        yield Lateness(missing=known.missing or known.last_missing
                       or "nothing compared when its ranks are ready")
    else:
        last = known.last
        yield Lateness(ready, last.phase if last else "", last.phase_s if last else 0.0)


def waiting(item: CaseResult, record: TrainingRecord | None) -> Waiting | None:
    known = record.stalls if record else None
    if known is None or item.case.world_size == 1:
        return None
    share, sync = known.stall_share, known.sync
    variation = None if sync is None else Variation(
        sync.cv, sync.compute_cv, sync.deviation_share, sync.chance, sync.is_high)
    missing = known.missing or known.sync_missing
    if share is None:
        return Waiting(variation=variation, missing=missing)
    return Waiting(share.value, share.low, share.high, variation, missing)


def rank_work(item: CaseResult, read: Callable[[], CaseSamples | None]) -> RankWork | None:
    work, steps = training_of(item.case), item.timing.steps if item.timing else None
    if steps is None or len(steps.ranks) < 2 or work.communication == "only":
        return None
    if not work.trains:
        passes = [one for one in steps.pass_step_s if one]
        stages = tuple(rank // work.tp % work.pp for rank in steps.ranks)
        return RankWork(OWN_WORK, steps.ranks, tuple(zip(*passes, strict=True)), stages,
                        "stage" if work.pp > 1 else "")
    samples = read() if item.case.backend != slow_ranks.BLOCKING and any(
        phase.name == "exchange" for phase in steps.phases) else None
    if samples is None or stalls.why_not(item.case, work, samples):
        return None
    return _exchange(item, samples)


def _exchange(item: CaseResult, samples: CaseSamples) -> RankWork | None:
    if slow_ranks.arrival(item) is None:  # a late begin of another rank looks like a slow exchange
        return None
    stamps = stalls.stamps_of(item, samples)
    after_s, ready_s = stamps.phase_s["exchange"] - stamps.wait_s, stamps.late_s + stamps.ready_s
    medians = [tuple(map(tuple, found.tolist())) for times in (after_s, ready_s)
               if (found := pass_medians(times, stamps.passes)) is not None]
    if len(medians) < 2:
        return None
    return RankWork(EXCHANGE, stamps.ranks, medians[0], (0,) * len(stamps.ranks), "", medians[1])


_OF_WORK = planned(*texts(
    strategy="name of the strategy", model="name of the model",
    optimizer="name of the optimizer", checkpointing="what is computed again in backward",
    data="file of the data, or synthetic", library="whose model it is",
    loss="how the loss is computed",
    communication="on: a training; off, only: its steps without, or of nothing else",
), *whole_numbers(
    layers="layers, or blocks of a ResNet", hidden="width of the model; 0 of a ResNet",
    seq_length="tokens of a sample; 0 of images", image_size="pixels of a side; 0 of tokens",
    parameters="parameters of the model", adapters="parameters beside a frozen model; 0 of none",
    batch_size="samples of a replica in a step",
    accumulation="equal parts of batch_size, one after another",
    global_batch="samples of all replicas in a step", dp="replicas",
    tp="ranks that share a layer", pp="stages of the pipeline", compile="1 if compiled, else 0"))
_RATES = (
    CaseColumn("samples_per_s", "1/s", "global_batch / median_s"),
    CaseColumn("tokens_per_s", "1/s", "tokens of all replicas in a second; NaN of images"),
    CaseColumn("mfu", PURE, "share of the declared peak of the devices, by the FLOPs of the model"),
    CaseColumn("mfu_of_measured", PURE, "the same, of the best product measured in the run"),
    CaseColumn("hfu", PURE, "share of the declared peak, with what checkpointing computes again"),
    CaseColumn("cost_per_step", "currency units", "cost of a step at the price in the sweep file"),
)
PHASES = {"data_wait_s": "data", **{f"{name}_s": name for name in (
    "forward", "backward", "exchange", "forward_backward", "optimizer", "balance", "other")}}
"""Name of a value -> its phase: the median of the middle rank."""
MEMORY = {f"{name}_bytes": name for name in (
    "parameters", "gradients", "optimizer_state", "activations", "peak")}
"""Name -> part of the memory use, of the rank with most of it."""
EXPOSED = {
    "exposed_s": ("exposed_s", "s", "time beyond the step without communication"),
    "exposed_share": ("exposed_share", PURE, "exposed_s as a share of the step"),
    "communication_overhead": (
        "overhead", PURE, "step over the step without communication, less 1"),
    "overlap_efficiency": (
        "efficiency", PURE, "share of the shorter part that passed under the longer one"),
}  # name -> field of the exposure, its unit and its meaning
FACTORS = {
    "load_balance": ("load_balance", "mean useful time of the ranks over the greatest"),
    "communication_efficiency": ("communication", "greatest useful time over the step"),
    "serialisation": ("serialisation", "greatest useful time over the step of an ideal network"),
    "transfer": ("transfer", "step of an ideal network over the step"),
}  # name -> field of the efficiency, and its meaning
OF_TRAINING = (
    *_OF_WORK, word("options", "options: NAME=VALUE, separated by spaces",
                    of=lambda item: settings(item.case.workload.options)))
"""The model, and how it is trained."""
COLUMNS = (
    *OF_TRAINING, *_RATES,
    *(CaseColumn(name, "s", "median of the phase on the middle rank") for name in PHASES),
    *(CaseColumn(name, "bytes", "held by the rank with most", int) for name in MEMORY),
    CaseColumn("off_s", "s", "median of the step without communication"),
    CaseColumn("only_s", "s", "median of the communication alone"),
    *(CaseColumn(name, units, f"{text}; NaN if it may be chance")
      for name, (_, units, text) in EXPOSED.items()),
    CaseColumn("scaling_efficiency", PURE, "samples/s of a rank over those in the base; NaN "
               "without a base"),
    CaseColumn("efficiency_score", PURE, "useful time of all ranks over ranks x step; NaN if "
               "unknown"),
    *(CaseColumn(name, PURE, f"{text}; NaN if unknown") for name, (_, text) in FACTORS.items()),
    *roofline.ROOFLINE,
    CaseColumn("computation_scaling", PURE, "useful time of a sample in the base over that "
               "here; NaN without a base"),
)


def column_values(item: CaseResult, record: TrainingRecord | None) -> dict[str, Any]:
    values = training_values(item)
    if record is None:
        return values
    found = record.exposure
    return {
        **values, **{column.name: getattr(record, column.name) for column in _RATES},
        **{name: record.phase_s.get(phase) for name, phase in PHASES.items()},
        **{name: record.held_bytes.get(part) for name, part in MEMORY.items()},
        "off_s": found.off_s, "only_s": found.only_s,
        **{name: significant(getattr(found, field)) for name, (field, *_) in EXPOSED.items()},
        "scaling_efficiency": record.scaling and record.scaling.efficiency,
        **efficiency_values(record.pop),
        **roofline.roofline_values(record.rooflines[0] if record.rooflines else None)}


def efficiency_values(pop: Pop | None) -> dict[str, float | None]:
    return {"efficiency_score": pop.score if pop else None,
            "computation_scaling": pop.computation_scaling if pop else None,
            **{name: getattr(pop and pop.efficiency, field, None)
               for name, (field, _) in FACTORS.items()}}


def training_values(item: CaseResult) -> dict[str, Any]:
    return {column.name: column.value(item, None) for column in OF_TRAINING}


GROWTH = "process growth"
"""The source of a peak where no allocator reports one: no count of tensors, as predictions are."""
OTHER = "other"  # the part of a step that is in no phase


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """The numbers of one training; None where there is no such number.

    ``hfu`` counts the recomputation of checkpointing, ``hfu_nominal`` whole forward passes;
    ``mfu_of_measured`` is beside kind hardware's best product in this run. ``phase_s``: medians on
    the middle rank, ``part_s``: seconds of the median step; ``other`` last. ``held_bytes``: each
    part of the rank with most. ``parity_share``: the largest error over what is allowed.
    ``is_partner``: shown beside its training. Costs are in the currency of
    ``hardware.price_per_device_hour``. ``rooflines``: of the step, then of its phases.
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
    counterpart: fingerprints.Counterpart | None = None
    passes_over_data: float | None = None
    exposure: slow_ranks.Exposure = slow_ranks.UNPAIRED
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
    counted: rates.Counted | None = None
    comparisons: tuple[Comparison, ...] = ()
    pop: Pop | None = None
    rooflines: tuple[roofline.Roofline, ...] = ()

    def settled(self, records: Mapping[str, TrainingRecord]) -> TrainingRecord:
        """Return the record without what comparisons refuse, and beside the base of its scaling."""
        def holds(what: str, rank: int, own: TrainingRecord | None = self) -> bool:
            found = clear(own.comparisons, what) if own else None
            return found is not None and found.rank == rank

        base = self.scaling.base_case if self.scaling else ""
        record = records.get(base)
        late, alone, known = self.late_rank, self.slow_alone, self.stalls
        if known is not None:
            last = known.last if known.last and holds(slow_ranks.READY, known.last.rank) else None
            sync = known.sync and replace(known.sync, is_high=known.sync.is_high and clear(
                self.comparisons, stalls.SYNC) is not None)
            known = replace(known, last=last, sync=sync)
        return replace(
            self, stalls=known,
            late_rank=late if late and holds(slow_ranks.ARRIVES, late.rank) else None,
            slow_phases=tuple(slow for slow in self.slow_phases if holds(slow.phase, slow.rank)),
            slow_alone=alone if alone and holds(
                slow_ranks.STEP, alone.rank, records.get(alone.case_id)) else None,
            pop=stalls.beside_base(self.pop, self.scaling, {
                base: record.pop} if record else {}))


NOTHING_KNOWN = TrainingRecord()


class TrainingDeriver(Deriver):
    """Derives rates, exposed communication and scaling."""

    record = TrainingRecord
    version = 10
    columns = COLUMNS

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, TrainingRecord]:
        exposed, partners = slow_ranks.exposures(items), slow_ranks.paired(items)
        scaled = rates.scaling(items)
        same, others = fingerprints.same_programs(items), fingerprints.counterparts(items)
        return {case_id: replace(
            _alone(item, hardware, exposed.get(case_id, slow_ranks.UNPAIRED)),
            is_partner=case_id in partners, scaling=scaled.get(case_id),
            same_program_as=same.get(case_id), counterpart=others.get(case_id))
            for item in items for case_id in [item.case.case_id]}

    def observe(self, item: CaseResult, samples: CaseSamples) -> dict[str, Any]:
        found = tuple(slow_ranks.comparisons(item, samples))
        if not training_of(item.case).trains:
            return {"comparisons": found}
        ready = next((one for one in found if one.what == slow_ranks.READY), None)
        known = stalls.stalls(item, samples, ready)
        varies = (Comparison(stalls.SYNC, known.sync.chance),) if known.sync else ()
        fields = {"stalls": known, "comparisons": (*found, *varies)}
        pop = stalls.from_stamps(item, samples)
        return {**fields, "pop": pop} if pop else fields

    def facts(
        self, item: CaseResult, record: TrainingRecord | None, read: ReadSamples,
    ) -> Iterator[Fact]:
        yield ColumnValues(lambda: column_values(item, record))
        if record:
            yield from _above_others(record)
        if (sent := rates.counted_wire_bytes(item)) is not None:
            yield SentBytes(sent)
        yield from lateness(item, record)
        yield from filter(None, (
            rates.work(item, record), waiting(item, record), rank_work(item, read)))

    def problems(
        self, item: CaseResult, time_s: float, nodes: Mapping[int, str],
        hardware: Mapping[str, Any],
    ) -> Iterator[Violation]:
        """Yield HB149: numbers that contradict one another or the devices; HB157: unpredicted
        calls."""
        work = training_of(item.case)
        computed = rates.rates(work, time_s) if work.trains else None
        if computed is not None:
            definition = rates.shown_definition(work)
            shares = {f"MFU ({definition})": rates.mfu(
                work, definition, time_s, item.case.world_size, hardware.get("peak_flops", {}))
                } if definition else {}
            for text in rates.violations(replace(computed, utilisations=shares)):
                yield Violation("HB149", text)
        found = list(rates.differences(item.case, item.detail))
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            yield Violation("HB157", f"{found[0]}{more}: the numbers that are measured stand; what "
                          "is predicted of its traffic does not hold here: report it",
                          rejects=False)


def _above_others(record: TrainingRecord) -> Iterator[Violation]:
    """Yield HB146 for too high an MFU, HB158 for a large model that differs from another's."""
    yield from roofline.over_measured("its MFU", record.mfu_of_measured)
    if record.counterpart and record.counterpart.n_wrong:
        yield Violation("HB158", fingerprints.disagreement(record.counterpart))


def _alone(
    item: CaseResult, hardware: Mapping[str, Any], exposure: slow_ranks.Exposure,
) -> TrainingRecord:
    late, phases, recorded = slow_ranks.late_rank(item), _phases(item), _recorded(item)
    return TrainingRecord(
        **_rates(item, hardware), **phases, **recorded, exposure=exposure,
        rooflines=rates.rooflines(
            item, hardware, phases.get("phase_s", {}), recorded["held_bytes"]),
        slow_phases=tuple(slow_ranks.slow_phases(item, late)), late_rank=late,
        slow_alone=slow_ranks.slow_alone(exposure), counted=rates.counted(item),
        pop=stalls.from_partner(item, exposure))


def _rates(item: CaseResult, hardware: Mapping[str, Any]) -> dict[str, Any]:
    work, stats = training_of(item.case), item.statistics
    computed = rates.rates(work, stats.median_s) if stats else None
    if stats is None or computed is None:
        return {}
    if not work.trains:  # nothing is trained: there is no rate of it
        return {"step_s": stats.median_s}
    definition = rates.shown_definition(work)
    cost = rates.step_cost(item.case, stats.median_s, hardware)
    row: dict[str, Any] = {
        "step_s": stats.median_s, "samples_per_s": computed.samples_per_s,
        "tokens_per_s": computed.tokens_per_s, "mfu_definition": definition,
        **({"cost_per_step": cost, "cost_per_million_samples": cost / work.global_batch * 1e6,
            "cost_per_million_tokens": cost / work.tokens * 1e6 if work.tokens else None}
           if cost is not None else {})}
    timed = (stats.median_s, item.case.world_size, hardware.get("peak_flops", {}))
    row["mfu_by_definition"] = {name: rates.mfu(work, name, *timed) for name, _ in work.flops}
    if definition is None:
        return {**row, "mfu_missing": "the FLOPs of a step are not known"}
    if work.model in NAMES and definition in DEFINITIONS:  # others were planned elsewhere
        for name, nominal in (("hfu", False), ("hfu_nominal", True)):
            executed = hardware_flops(work, definition, nominal=nominal)
            row[name] = rates.hfu(work, executed, *timed)
    measured = roofline.measured_rate(
        item, hardware, "flops", f"{roofline.device_of(item)} {work.dtype}")
    return {**row, "mfu": rates.mfu(work, definition, *timed),
            "mfu_missing": None if work.dtype in timed[2] else
            f"hardware.peak_flops has no {work.dtype}",
            "mfu_of_measured": rates.mfu(
                work, definition, *timed[:2], {work.dtype: measured} if measured else {})}


def _phases(item: CaseResult) -> dict[str, Any]:
    steps = item.timing.steps if item.timing else None
    whole_s = item.statistics.median_s if item.statistics else 0.0
    if steps is None:
        return {"part_s": {OTHER: whole_s}}
    return {"phase_s": {**{phase.name: median(phase.median_s) for phase in steps.phases},
                        OTHER: median(steps.other_s)},
            "part_s": {**{phase.name: whole_s * phase.share for phase in steps.phases},
                       OTHER: whole_s * steps.other_share}}


def _recorded(item: CaseResult) -> dict[str, Any]:
    """Return the fields that ranks recorded: memory, parity, and passes over a file."""
    memory, details = [*(item.memory or {}).values()], [*item.detail.values()]
    most: dict[str, int] = {}
    for name, value in (pair for one in memory for pair in one.items()):
        if isinstance(value, int):
            most[name] = max(value, most.get(name, 0))
    shares = [float(left["parity"]["share"]) for left in details if "parity" in left]
    batch = training_of(item.case).global_batch
    return {
        "held_bytes": most,
        "peak_of": ",".join(dict.fromkeys(
            str(one["peak_of"]) for one in memory if "peak_of" in one)),
        "parity_share": max(shares) if shares and all(map(math.isfinite, shares)) else None,
        "passes_over_data": max((left["data"]["steps"] * batch / left["data"]["samples"]
                                 for left in details if "data" in left), default=None)}
