"""The deriver of trainings: records of their own times, and of those of others of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from hpcbench.kinds.training.derive import fingerprints, rates, slow_ranks, stalls
from hpcbench.kinds.training.derive.stalls import Stalls
from hpcbench.kinds.training.plan.context import attention_flops, attention_imbalance
from hpcbench.kinds.training.plan.models import DEFINITIONS
from hpcbench.kinds.training.plan.predict import checkpoint_bytes, hardware_flops, is_known
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce import kind_facts, roofline
from hpcbench.reduce.checks import Violation
from hpcbench.reduce.comparison import Comparison, clear
from hpcbench.reduce.metric import (
    Records,
    Show,
    Values,
    document,
    metric,
    metrics_over_passes,
    planned,
    whole,
    word,
)
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.statistics.hypothesis_tests import pass_medians
from hpcbench.units import grouped

PIPELINE = ("stages of a pipeline have different work: a slow stage on every replica is uneven "
            "partitioning, not a slow rank")


def lateness(item: CaseResult, values: Values) -> Iterator[kind_facts.Lateness]:
    stalled, work = values.get(STALLS.name), training_of(item.case)
    if stalled is None or item.case.world_size == 1:
        return
    ready = _compared(values.get(COMPARISONS.name) or (), slow_ranks.READY)
    if work.pp > 1:
        yield kind_facts.Lateness(missing=PIPELINE)
    elif stalled.missing or ready is None or ready.chance is None:
        yield kind_facts.Lateness(missing=stalled.missing or stalled.last_missing
                                  or "nothing compared when its ranks are ready")
    else:
        last = stalled.last
        yield kind_facts.Lateness(ready, last.phase if last else "", last.phase_s if last else 0.0)


def _compared(found: Iterable[Comparison], what: str) -> Comparison | None:
    return next((one for one in found if one.what == what), None)


def waiting(item: CaseResult, values: Values) -> kind_facts.Waiting | None:
    stalled = values.get(STALLS.name)
    if stalled is None or item.case.world_size == 1:
        return None
    share, sync = stalled.stall_share, stalled.sync
    variation = None if sync is None else kind_facts.Variation(
        sync.cv, sync.compute_cv, sync.deviation_share, sync.chance, sync.is_high)
    missing = stalled.missing or stalled.sync_missing
    if share is None:
        return kind_facts.Waiting(variation=variation, missing=missing)
    return kind_facts.Waiting(share.value, share.low, share.high, variation, missing)


def rank_work(item: CaseResult,
              read: Callable[[], CaseSamples | None]) -> kind_facts.RankWork | None:
    work, steps = training_of(item.case), item.timing.steps if item.timing else None
    if steps is None or len(steps.ranks) < 2 or work.communication == "only":
        return None
    if not work.trains:
        passes = [one for one in steps.pass_step_s if one]
        stages = tuple(rank // work.tp % work.pp for rank in steps.ranks)
        return kind_facts.RankWork(kind_facts.OWN_WORK, steps.ranks,
                                   tuple(zip(*passes, strict=True)), stages,
                                   "stage" if work.pp > 1 else "")
    samples = read() if item.case.backend != slow_ranks.BLOCKING and any(
        phase.name == "exchange" for phase in steps.phases) else None
    if samples is None or stalls.why_not(item.case, work, samples):
        return None
    return _exchange(item, samples)


def _exchange(item: CaseResult, samples: CaseSamples) -> kind_facts.RankWork | None:
    if slow_ranks.arrival(item) is None:  # a late begin of another rank looks like a slow exchange
        return None
    stamps = stalls.stamps_of(item, samples)
    after_s, ready_s = stamps.phase_s["exchange"] - stamps.wait_s, stamps.late_s + stamps.ready_s
    medians = [tuple(map(tuple, median.tolist())) for times in (after_s, ready_s)
               if (median := pass_medians(times, stamps.passes)) is not None]
    if len(medians) < 2:
        return None
    return kind_facts.RankWork(kind_facts.EXCHANGE, stamps.ranks, medians[0],
                               (0,) * len(stamps.ranks), "", medians[1])


OF_TRAINING = (*planned(
    word("strategy", "name of the strategy"), word("model", "name of the model"),
    word("optimizer", "name of the optimizer"),
    word("checkpointing", "what is computed again in backward"),
    word("data", "file of the data, or synthetic"), word("library", "whose model it is"),
    word("loss", "how the loss is computed"),
    word("precision", "how numbers are held and multiplied"),
    whole("offload_state", "1 if states are on the host, else 0"),
    whole("checkpoint_every", "steps from one checkpoint to the next; 0: none"),
    whole("documents", "documents that a sample is packed of"),
    word("communication", "on: a training; off, only: its steps without, or of nothing else"),
    whole("layers", "layers, or blocks of a ResNet"),
    whole("hidden", "width of the model; 0 of a ResNet"),
    whole("seq_length", "tokens of a sample; 0 of images"),
    whole("image_size", "pixels of a side; 0 of tokens"),
    whole("parameters", "parameters of the model"),
    whole("adapters", "parameters beside a frozen model; 0 of none"),
    whole("batch_size", "samples of a replica in a step"),
    whole("accumulation", "equal parts of batch_size, one after another"),
    whole("global_batch", "samples of all replicas in a step"), whole("dp", "replicas"),
    whole("tp", "ranks that share a layer"), whole("pp", "stages of the pipeline"),
    whole("cp", "ranks that share the tokens of a sample"),
    whole("compile", "1 if compiled, else 0")), word(
        "options", "options: NAME=VALUE, separated by spaces",
        of=lambda item: kind_facts.settings(item.case.workload.options)))
"""The model, and how it is trained."""
ATTENTION, IMBALANCE = (
    whole("attention_flops", "of attention in a step on the rank with most, as planned", "FLOP",
          title="attention", show=Show.GFLOP,
          shown_unit="1e9", optional=True,
          of=lambda item: max(attention_flops(training_of(item.case)), default=None)),
    metric("attention_imbalance", "attention_flops over the mean of the ranks that share a sample",
           title="imbalance", show=Show.RATIO, better="less", optional=True,
           of=lambda item: attention_imbalance(training_of(item.case))))
_SHOWN: Mapping[str, Any] = {"better": "more", "optional": True}
_COST: Mapping[str, Any] = {"title": "cost", "units": "currency units", "show": Show.NUMBER,
                            "better": "less", "optional": True}
_PERCENT: Mapping[str, Any] = {"show": Show.PERCENT, "better": "more", "optional": True}
SAMPLES, TOKENS = (
    metric("samples_per_s", "global_batch / median_s", title="samples/s", show=Show.NUMBER,
           **_SHOWN),
    metric("tokens_per_s", "tokens of all replicas in a second; NaN of images", title="tokens/s",
           show=Show.NUMBER, **_SHOWN))
MFU, MFU_OF_MEASURED, HFU, HFU_NOMINAL = UTILISATIONS = tuple(
    metric(name, text, title=title, show=Show.SIGNIFICANT_PERCENT, **_SHOWN)
    for name, title, text in (
        ("mfu", "MFU", "FLOPs of the model in a step / (median_s x ranks x peak_flops)"),
        ("mfu_of_measured", "MFU of gemm", "mfu by the best product of the run, not peak_flops"),
        ("hfu", "HFU", "mfu with what checkpointing computes again"),
        ("hfu_nominal", "HFU nominal", "hfu with whole forward passes")))
DEFINITION, MFU_MISSING = (word(name, "which count of FLOPs, or why none")
                           for name in ("mfu_definition", "mfu_missing"))
BY_DEFINITION = document("mfu_by_definition", "MFU by each count of the model's FLOPs",
                         type=dict[str, float | None])
COSTS = COST, COST_OF_TOKENS, COST_OF_SAMPLES = tuple(
    metric(f"cost_per_{of}", "median_s / 3600 x ranks x price_per_device_hour, of so many",
           shown_unit=unit, **_COST)
    for of, unit in (("step", "a step"), ("million_tokens", "1e6 tokens"),
                     ("million_samples", "1e6 images")))
PHASES = {"data_wait_s": "data", **{f"{name}_s": name for name in (
    "forward", "backward", "exchange", "forward_backward", "optimizer", "balance", "other")}}
"""Name of a value -> its phase: the median of the middle rank."""
MEMORY = {f"{name}_bytes": name for name in (
    "parameters", "gradients", "optimizer_state", "activations", "peak")}
"""Name -> part of the memory use, of the rank with most of it."""
PEAK = "peak_bytes"
PEAK_OF = word("peak_of", "what peak_bytes counts")
CHECKPOINT_STALL, CHECKPOINTS, CHECKPOINT_BYTES, CHECKPOINT_PREDICTED = CHECKPOINT = (
    metric("checkpoint_stall_s", "median time that a step waits for its checkpoint, of the slowest "
           "rank", title="stall", show=Show.MS, better="less", optional=True),
    whole("checkpoints", "checkpoints of a pass, the fewest of a pass"),
    whole("checkpoint_bytes", "of the last one's tensors and tables, all ranks", title="checkpoint",
          show=Show.MIB, shown_unit="MiB", optional=True),
    whole("checkpoint_bytes_predicted", "of its tensors"))
PARITY = metric("parity_share", "error over what is allowed")
READ_AGAIN = metric("passes_over_data", "of a file, in a pass")
_OVER_PASSES = (
    metrics_over_passes("exposed_s", "t_p - t_p(off)", title="exposed", show=Show.MS,
                        better="less", optional=True),
    metrics_over_passes("exposed_share", "1 - t_p(off) / t_p", title="exposed", show=Show.PERCENT,
                        better="less", optional=True),
    metrics_over_passes("communication_overhead", "t_p / t_p(off) - 1", title="overhead",
                        show=Show.PERCENT, better="less", optional=True),
    metrics_over_passes("overlap_efficiency", "(t_p(off) + t_p(only) - t_p) / the shorter of both",
                        title="overlap", show=Show.WHOLE_PERCENT, better="more", optional=True))
EXPOSED_S, EXPOSED_SHARE, OVERHEAD, OVERLAP = EXPOSED = tuple(one for one, _ in _OVER_PASSES)
"""Numbers over passes of trainings that have partners (`slow_ranks.exposures`)."""
OFF, ONLY = (metric("off_s", "median of the step without communication"),
             metric("only_s", "median of the communication alone"))
OWN_STEPS = document("own_steps", "steps of each rank without communication",
                     type=slow_ranks.OwnSteps)
NOT_PAIRED = document("not_paired", "why there are no numbers of exposed communication",
                      type=tuple[str, ...])
DROPPED = metric("dropped_share", "of the experts of all tokens, above their capacity",
                 title="dropped", show=Show.PERCENT, better="less", optional=True)
EXPERTS = (
    whole("expert_tokens", "of the busiest expert, in a part of a batch of its group"),
    metric("expert_max_over_mean", "the same over the mean of all experts (MaxVio + 1)",
           title="expert load", show=Show.NUMBER, optional=True),
    metric("received_max_over_mean", "the most tokens that a rank is sent over the mean of ranks",
           title="received", show=Show.NUMBER, optional=True),
    DROPPED,
    metric("expert_wait_share", "of an untimed step, time in the experts' exchanges beyond that of "
           "the rank with least, of the rank with most", title="experts' wait",
           show=Show.PERCENT, better="less", optional=True))
"""How uneven a load of experts is."""
BUBBLE = metric("bubble_predicted", "idle share, as the schedule predicts")
IS_PARTNER = document("is_partner", "whether it is shown beside its training", type=bool)
SCALING, EFFICIENCY, BASE, BASE_RANKS, BASE_RATE = SCALINGS = (
    word("scaling", "weak: samples of a rank as in the base; strong: of all",
         title="scaling"),
    metric("scaling_efficiency", "samples/s of a rank over those in the base; NaN without a base"),
    word("scaling_base_case", "the base"),
    whole("scaling_base_ranks", "its ranks"),
    metric("scaling_base_samples_per_second", "its samples/s", "1/s", title="base",
           show=Show.NUMBER, shown_unit="samples/s", **_SHOWN))
SCORE = metric("efficiency_score", "useful time of all ranks over ranks x step; NaN if unknown",
               title="score", show=Show.PERCENT, better="more")
FACTORS = tuple(metric(name, f"{text}; NaN if unknown", title=name.replace("_", " "), **_PERCENT)
                for name, text in (
    ("load_balance", "mean useful time of the ranks over the greatest"),
    ("communication_efficiency", "greatest useful time over the step"),
    ("serialisation", "greatest useful time over the step of an ideal network"),
    ("transfer", "step of an ideal network over the step")))
COMPUTATION_SCALING, GLOBAL, LIMIT, SOURCE = (
    metric("computation_scaling", "useful time of a sample in the base over that here; NaN without "
           "a base", title="comp. scaling", **_PERCENT),
    metric("global_efficiency", "computation_scaling x efficiency_score", title="global",
           **_PERCENT),
    word("efficiency_limit", "smallest factor below 0.8", title="limits",
         optional=True),
    word("efficiency_of", "source of it", title="by"))
USEFUL = document("useful", "useful seconds of each rank", type=stalls.Useful)
COUNTED = tuple(
    whole(f"{name}{end}", "of an untimed step, the most of a rank", units,
          title=end.strip("_") or title, show=show, shown_unit=shown_unit, optional=True)
    for name, units, title, show, shown_unit in (
        ("step_calls", "", "calls", Show.COUNT, ""), ("wire_bytes", "", "wire", Show.MIB, "MiB"),
        ("flops", "FLOP", "GFLOP", Show.GFLOP, "1e9"),
        ("activations_bytes", "", "activations", Show.MIB, "MiB"))
    for end in ("", "_predicted"))
"""Each number of a counted step, and its prediction."""
SCORES_AGAIN = whole("scores_again_flops", "beside flops, repeated by attention", "FLOP")
ACTIVATIONS_OF = word("activations_of", "what activations are")
NOT_COUNTED = document("not_counted", "values that were not counted, and why",
                       type=dict[str, str])
STALLS = document("stalls", "stalls that stamps show", type=Stalls)
SLOW_PHASES = document("slow_phases", "ranks that stand out in a phase",
                       type=tuple[slow_ranks.SlowPhase, ...])
LATE_RANK = document("late_rank", "the rank that arrives last at the exchange",
                     type=slow_ranks.LateRank)
SLOW_ALONE = document("slow_alone", "the slowest rank without communication",
                      type=slow_ranks.SlowAlone)
COUNTERPART = document("counterpart", "the case that a large model was compared with",
                       type=fingerprints.Counterpart)
SAME_PROGRAM = word("same_program_as", "earlier equal case")
ROOFLINES = document("rooflines", "limits of the step, then of its phases",
                     type=tuple[roofline.Roofline, ...])
COMPARISONS = document("comparisons", "comparisons of ranks", type=tuple[Comparison, ...])
METRICS = (
    *OF_TRAINING, ATTENTION, IMBALANCE, SAMPLES, TOKENS, *UTILISATIONS, DEFINITION, MFU_MISSING,
    BY_DEFINITION, *COSTS,
    *(metric(name, "median over ranks of the phase's median") for name in PHASES),
    *(whole(name, "held by the rank with most") for name in MEMORY), PEAK_OF, *CHECKPOINT,
    PARITY, READ_AGAIN, OFF, ONLY, *(one for pair in _OVER_PASSES for one in pair),
    OWN_STEPS, NOT_PAIRED, *EXPERTS, BUBBLE, IS_PARTNER, *SCALINGS, SCORE, *FACTORS,
    COMPUTATION_SCALING, GLOBAL, LIMIT, SOURCE, USEFUL,
    *sorted((one for one in COUNTED if one.name not in MEMORY), key=lambda one: one.units),
    SCORES_AGAIN, ACTIVATIONS_OF, NOT_COUNTED,
    STALLS, SLOW_PHASES, LATE_RANK, SLOW_ALONE, COUNTERPART, SAME_PROGRAM, *roofline.ROOFLINE,
    ROOFLINES, COMPARISONS)
GROWTH = "process growth"
"""The source of a peak where no allocator reports one: no count of tensors, as predictions are."""
OTHER = "other"  # the part of a step that is in no phase


def parts_s(item: CaseResult) -> dict[str, float]:
    """Return the seconds of the median step that its phases take, OTHER last."""
    steps = item.timing.steps if item.timing else None
    whole_s = item.statistics.median_s if item.statistics else 0.0
    if steps is None:
        return {OTHER: whole_s}
    return {**{phase.name: whole_s * phase.share for phase in steps.phases},
            OTHER: whole_s * steps.other_share}


class TrainingDeriver(kind_facts.Deriver):
    """Derives rates, exposed communication and scaling."""

    version = 11
    columns = METRICS

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        exposed, partners = slow_ranks.exposures(items), slow_ranks.paired(items)
        scaled, counterparts = rates.scaling(items), fingerprints.same_programs(items)
        others = fingerprints.counterparts(items)
        return {case_id: {
            **_alone(item, hardware, exposed.get(case_id, {})), **scaled.get(case_id, {}),
            IS_PARTNER.name: case_id in partners, SAME_PROGRAM.name: counterparts.get(case_id),
            COUNTERPART.name: others.get(case_id)}
            for item in items for case_id in [item.case.case_id]}

    def observe(self, item: CaseResult, samples: CaseSamples) -> Values:
        compared = tuple(slow_ranks.comparisons(item, samples))
        if not training_of(item.case).trains:
            return {COMPARISONS.name: compared}
        stalled = stalls.stalls(item, samples, _compared(compared, slow_ranks.READY))
        varies = (Comparison(stalls.SYNC, stalled.sync.chance),) if stalled.sync else ()
        return {STALLS.name: stalled, COMPARISONS.name: (*compared, *varies),
                **stalls.from_stamps(item, samples)}

    def settled(self, values: Values, of_kind: Records) -> Values:
        """Return the values without what comparisons refuse, and beside the base of its scaling."""
        def holds(what: str, rank: int, own: Values = values) -> bool:
            slower = clear(own.get(COMPARISONS.name) or (), what)
            return slower is not None and slower.rank == rank

        late, alone, stalled = (values[one.name] for one in (LATE_RANK, SLOW_ALONE, STALLS))
        if stalled is not None:
            last = stalled.last
            last = last if last and holds(slow_ranks.READY, last.rank) else None
            sync = stalled.sync and replace(stalled.sync, is_high=stalled.sync.is_high and clear(
                values[COMPARISONS.name], stalls.SYNC) is not None)
            stalled = replace(stalled, last=last, sync=sync,
                              last_missing="" if last else stalled.last_missing)
        return {
            **values, STALLS.name: stalled,
            LATE_RANK.name: late if late and holds(slow_ranks.ARRIVES, late.rank) else None,
            SLOW_PHASES.name: tuple(slow for slow in values[SLOW_PHASES.name]
                                    if holds(slow.phase, slow.rank)),
            SLOW_ALONE.name: alone if alone and holds(
                slow_ranks.STEP, alone.rank, of_kind.get(alone.case_id, {})) else None,
            **stalls.beside_base(values, of_kind.get(values[BASE.name], {}))}

    def facts(
        self, item: CaseResult, record: Values | None, read: kind_facts.ReadSamples,
    ) -> Iterator[kind_facts.Fact]:
        """Yield HB146 for too high an MFU, HB158 for a large model that differs from another's."""
        values = record or {}
        yield from roofline.over_measured("its MFU", values.get(MFU_OF_MEASURED.name))
        if (other := values.get(COUNTERPART.name)) and other.n_wrong:
            yield Violation("HB158", fingerprints.disagreement(other))
        if (sent := rates.counted_wire_bytes(item)) is not None:
            yield kind_facts.SentBytes(sent)
        yield from lateness(item, values)
        yield from filter(None, (
            rates.work(item, values), waiting(item, values), rank_work(item, read),
            rates.demand(item)))

    def problems(
        self, item: CaseResult, time_s: float, nodes: Mapping[int, str],
        hardware: Mapping[str, Any],
    ) -> Iterator[Violation]:
        """Yield HB149: an MFU that no device has; HB157: calls that were not predicted."""
        work = training_of(item.case)
        definition = rates.shown_definition(work) if work.trains else None
        share = definition and rates.mfu(
            work, definition, time_s, item.case.world_size, hardware.get("peak_flops", {}))
        if share and not 0 <= share <= 1:
            yield Violation("HB149", f"MFU ({definition}) is {share:.1%}: more than 0 to 100 %; "
                            "either the declared peak or the time is wrong. Mend "
                            "hardware.peak_flops in plan.json of the run's folder, then: hpcbench "
                            "reduce FOLDER")
        problems = list(rates.differences(item.case, item.detail))
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            yield Violation("HB157", f"{problems[0]}{more}: the numbers that are measured stand; "
                            "what is predicted of its traffic does not hold here: report it",
                            rejects=False)


def _alone(item: CaseResult, hardware: Mapping[str, Any], exposed: Values) -> Values:
    late, phase_s, recorded = slow_ranks.late_rank(item), _phases(item), _recorded(item)
    steps = exposed.get(OWN_STEPS.name, slow_ranks.NO_STEPS)
    limits = rates.rooflines(item, hardware, phase_s, recorded)
    return {
        **_rates(item, hardware), **{name: phase_s.get(phase) for name, phase in PHASES.items()},
        **{name: recorded.get(part) for name, part in MEMORY.items()}, **_of_details(item),
        **exposed, ROOFLINES.name: limits, **roofline.roofline_values(next(iter(limits), None)),
        SLOW_PHASES.name: tuple(slow_ranks.slow_phases(item, late)), LATE_RANK.name: late,
        SLOW_ALONE.name: slow_ranks.slow_alone(steps), **rates.counted(item),
        **stalls.from_partner(item, steps)}


def _rates(item: CaseResult, hardware: Mapping[str, Any]) -> dict[str, Any]:
    work, stats = training_of(item.case), item.statistics
    computed = rates.rates(work, stats.median_s) if stats else None
    if stats is None or computed is None or not work.trains:  # without training there is no rate
        return {}
    definition = rates.shown_definition(work)
    cost = rates.step_cost(item.case, stats.median_s, hardware)
    row: dict[str, Any] = {
        "samples_per_s": computed[0], "tokens_per_s": computed[1], "mfu_definition": definition,
        **({"cost_per_step": cost, "cost_per_million_samples": cost / work.global_batch * 1e6,
            "cost_per_million_tokens": cost / work.tokens * 1e6 if work.tokens else None}
           if cost is not None else {})}
    timed = (stats.median_s, item.case.world_size, hardware.get("peak_flops", {}))
    row["mfu_by_definition"] = {name: rates.mfu(work, name, *timed) for name, _ in work.flops}
    if definition is None:
        return {**row, "mfu_missing": "the FLOPs of a step are not known"}
    if is_known(work) and definition in DEFINITIONS:
        for name, nominal in (("hfu", False), ("hfu_nominal", True)):
            executed = hardware_flops(work, definition, nominal=nominal)
            row[name] = rates.hfu(work, executed, *timed)
    measured = roofline.measured_rate(
        item, hardware, "flops", f"{roofline.device_of(item)} {work.peak_type}")
    return {**row, "mfu": rates.mfu(work, definition, *timed),
            "mfu_missing": None if work.peak_type in timed[2] else
            f"hardware.peak_flops has no {work.peak_type}",
            "mfu_of_measured": rates.mfu(
                work, definition, *timed[:2], {work.peak_type: measured} if measured else {})}


def _phases(item: CaseResult) -> dict[str, float]:
    """Return the median of each phase on the middle rank, OTHER last."""
    steps = item.timing.steps if item.timing else None
    return {} if steps is None else {
        **{phase.name: median(phase.median_s) for phase in steps.phases},
        OTHER: median(steps.other_s)}


def _recorded(item: CaseResult) -> dict[str, int]:
    """Return each part of the memory that ranks recorded, of the rank with most of it."""
    parts = grouped((name, size) for of_rank in (item.memory or {}).values()
                    for name, size in of_rank.items() if isinstance(size, int))
    return {name: max(sizes) for name, sizes in parts.items()}


def _of_checkpoints(item: CaseResult) -> Values:
    of_ranks = [left["checkpoint"] for left in item.detail.values() if "checkpoint" in left]
    stalls_s = [median(one["stalls_s"]) for one in of_ranks if one["stalls_s"]]
    if not stalls_s:
        return {}
    return {CHECKPOINT_STALL.name: max(stalls_s),
            CHECKPOINTS.name: min(len(one["stalls_s"]) for one in of_ranks),
            CHECKPOINT_BYTES.name: sum(one["bytes"] for one in of_ranks),
            CHECKPOINT_PREDICTED.name: checkpoint_bytes(training_of(item.case))}


def _of_details(item: CaseResult) -> Values:
    """Return the other values that ranks recorded: parity, passes over a file, checkpoints."""
    details = [*item.detail.values()]
    shares = [float(left["parity"]["share"]) for left in details if "parity" in left]
    batch, measured = training_of(item.case).global_batch, grouped(
        one for left in details for one in left.get("measured", {}).items())
    return {
        **_of_checkpoints(item), **{name: max(values) for name, values in measured.items()},
        PEAK_OF.name: ",".join(dict.fromkeys(str(one["peak_of"]) for one in (
            item.memory or {}).values() if "peak_of" in one)) or None,
        PARITY.name: max(shares) if shares and all(map(math.isfinite, shares)) else None,
        READ_AGAIN.name: max((left["data"]["steps"] * batch / left["data"]["samples"]
                              for left in details if "data" in left), default=None)}
