"""The tables of trainings (results, counted steps, efficiency, scaling), and their columns'
meanings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import groupby

from hpcbench.kinds.training.derive import rates
from hpcbench.kinds.training.derive.deriver import GROWTH, TrainingRecord
from hpcbench.kinds.training.derive.slow_ranks import Exposure
from hpcbench.kinds.training.derive.stalls import WITHOUT
from hpcbench.kinds.training.plan.build_workload import Setting
from hpcbench.kinds.training.plan.models import DEFINITIONS as DEFINITIONS_OF_FLOPS
from hpcbench.kinds.training.plan.workload import CHUNKED, Training, training_of
from hpcbench.kinds.training.present import charts
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.units import digits, grouped, plural
from hpcbench.views import columns
from hpcbench.views.table import (
    Column,
    Group,
    Line,
    Row,
    Show,
    Table,
    cell_text,
    device_type,
    env_text,
    flag_cell,
    like_median,
    options_text,
    timed_text,
)

COLUMNS = (
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("degrees", "degrees", optional=True),
    Column("batch", "batch", Show.COUNT, "replica", detail=True),
    Column("accumulated", "accumulated", Show.COUNT, optional=True),
    Column("step_p50", "step p50", Show.MS, "ms", "of one optimizer step", "less", optional=True),
    replace(columns.INTERVAL, show=Show.MS, unit="ms", optional=True),
    Column("samples_per_s", "samples/s", Show.NUMBER, better="more", optional=True),
    Column("tokens_per_s", "tokens/s", Show.NUMBER, better="more", optional=True),
    Column("mfu", "MFU", Show.SIGNIFICANT_PERCENT, "%", better="more", optional=True),
    Column("mfu_of_measured", "MFU of gemm", Show.SIGNIFICANT_PERCENT, "%",
           "against the best product that this run measured", "more", optional=True),
    Column("hfu", "HFU", Show.SIGNIFICANT_PERCENT, "%", "as executed", "more", optional=True),
    Column("hfu_nominal", "HFU nominal", Show.SIGNIFICANT_PERCENT, "%",
           "of whole forward passes again", "more", optional=True),
    *(Column(f"cost_per_{of}", "cost", Show.NUMBER, unit, better="less", optional=True)
      for of, unit in (("step", "a step"), ("million_tokens", "1e6 tokens"),
                       ("million_samples", "1e6 images"))),
    *(Column(name, title, Show.WHOLE_PERCENT, "%", "of the time of all steps", optional=True,
             detail=name not in charts.STALLS, first_to_go=True)
      for name, title in charts.SHORT.items()),
    Column("other", "other", Show.WHOLE_PERCENT, "%", "of the time of all steps", "less",
           optional=True, detail=True),
    Column("exposed_time", "exposed", Show.MS, "ms", "t - t(off)", "less", optional=True,
           detail=True),
    Column("exposed_share", "exposed", Show.PERCENT, "%", "of t", "less", optional=True,
           first_to_go=True),
    Column("overhead", "overhead", Show.PERCENT, "%", "t / t(off) - 1", "less", optional=True,
           detail=True),
    Column("overlap", "overlap", Show.WHOLE_PERCENT, "%", "of the shorter part", "more",
           optional=True, detail=True),
    Column("memory", "memory", Show.MIB, "MiB", "most of any rank", "less", optional=True),
    Column("growth", "process growth", Show.MIB, "MiB", "most of any rank", "less", optional=True,
           detail=True),
    Column("memory_predicted", "planned", Show.MIB, "MiB",
           "memory predicted of tensors, most of any rank; kind memory measures its parts",
           "less", optional=True, first_to_go=True),
    Column("parity", "parity", unit="against 1 process",
           meaning="error, in % of what is allowed", optional=True),
    replace(columns.N, optional=True),
    columns.STATUS, replace(columns.LAUNCHES, show=Show.MS, unit="p50, ms"), columns.FLAGS,
)
DEFINITIONS = (
    "step p50 = time of one optimizer step, accumulation included; samples/s = samples of all "
    "replicas / step p50;",
    "  tokens/s = samples/s x sequence length: each token counts once, however many ranks see it;",
    "  a sample of a ResNet is an image, which has no tokens",
    "data .. optimizer = time in the phase, in % of the time of all steps of all ranks; data = "
    "waiting for the batch,",
    "  exchange = waiting for the gradients of others when the own ones are there,",
    "  balance = agreeing on the ranks' samples, other = in no phase.",
    "  All ranks leave an exchange together: who is slow has the shortest",
    "parity = loss, gradients and updated weights against those of a single process with the same "
    "weights and samples:",
    "  the largest error of any rank in % of what is allowed",
)
DEFINITIONS_OF_EXPOSURE = (
    "exposed = t - t(off), in % of t, too; overhead = t / t(off) - 1; overlap = (t(off) + t(only) "
    "- t) / the shorter of both,",
    "  where t is the time of a step, t(off) that of the same step without communication, t(only) "
    "that of its calls alone",
    "  (of the same pass; shown is the median over passes, and from the least to the greatest; "
    f"{columns.CANNOT_TELL}:",
    "  the 95 % interval over passes holds opposite answers, see method.md)",
)
DEFINITIONS_OF_PIPELINES = (
    "idle = 1 - a rank's own time without communication / t: it waits, or communicates; bubble = "
    "the share of a step that",
    "  the schedule alone makes ranks wait: if all take equally long, and rank by rank if each "
    "takes its own time",
)
Member = tuple[CaseResult, TrainingRecord]


def definitions(items: charts.Items, derived: charts.Records) -> Iterator[str]:
    yield from DEFINITIONS
    works = [training_of(item.case) for item in items]
    names = [name for name in dict.fromkeys(map(rates.shown_definition, works)) if name is not None]
    if names:
        yield "MFU = FLOPs of the model in a step / (step p50 x ranks x hardware.peak_flops);"
    for name in names:
        meaning = f": {DEFINITIONS_OF_FLOPS[name].meaning}" if name in DEFINITIONS_OF_FLOPS else ""
        yield f"  FLOPs as {name} counts them{meaning}"
    if names:
        yield "  (what is computed twice counts once; other definitions: summary.json)"
    records = [charts.record_of(item, derived) for item in items]
    if any(work.checkpointing != "none" for work in works) and any(
            record.hfu is not None for record in records):
        yield ("HFU = the same with the FLOPs that are executed again; HFU nominal = with a whole "
               "forward pass of each block")
        yield "  that is run again, as papers count: torch leaves out what nothing needs"
    if any(record.cost_per_step is not None for record in records):
        yield "cost = time x ranks x hardware.price_per_device_hour, in the currency of that price"
    if any(work.adapters for work in works):
        yield ("  (of lora and qlora 4 for each frozen weight and token, not 6: none has a "
               "gradient; and what adapters add)")
    if any(not work.trains for work in works):
        yield from DEFINITIONS_OF_EXPOSURE
        if any(work.pp > 1 for work in works):
            yield from DEFINITIONS_OF_PIPELINES
    peaks = dict.fromkeys(filter(None, (record.peak_of for record in records)))
    if allocated := ", ".join(name for name in peaks if name != GROWTH):
        yield f"memory = the most that any rank used ({allocated})"
    if GROWTH in peaks:
        yield ("process growth = the most that the process of any rank grew, buffers of libraries "
               "included:")
        yield ("  no counterpart of the memory that plan predicts, which is of tensors: kind "
               "memory measures these")


def result_tables(title: str, items: charts.Items, derived: charts.Records) -> Iterator[Table]:
    """Yield a block's table; a run without communication is in its training's row."""
    members = ((item, charts.record_of(item, derived)) for item in items
               if item.status in columns.TABLED)
    groups = grouped(((_group_title(member[0]), timed_text(member[0])), member)
                     for member in members if not member[1].is_partner)
    if not groups:
        return
    listed = [member for group in groups.values() for member in group]
    options = charts.distinguishing_options(training_of(item.case) for item, _ in listed)
    yield Table(title, _columns(listed), tuple(
        Group(name, tuple(_row(item, record, options) for item, record in group), timed)
        for (name, timed), group in groups.items()), notes=(
        *(Line(f"{text}; what they differ by is noise") for text in charts.same_programs(
            (item, record, _row_title(item, options)) for item, record in listed)),
        *columns.unclear_notes(((_row_title(item, options), record.exposure.exposed_s, {
            "t": record.step_s, "t(off)": record.exposure.off_s, "t(only)": record.exposure.only_s,
        }) for item, record in listed), "exposed_share", "exposed_time"),
        *_table_notes(listed), *_row_notes(listed, options)))


def _columns(listed: Iterable[Member]) -> tuple[Column, ...]:
    """Return the columns; samples beside tokens are a detail, as they differ by a factor only."""
    is_text = any(record.tokens_per_s is not None for _, record in listed)
    return tuple(replace(one, detail=True) if is_text and one.name == "samples_per_s" else one
                 for one in COLUMNS)


def _group_title(item: CaseResult) -> str:
    case, work = item.case, training_of(item.case)
    unusual = [f"{name} {value}" if value is not True else f"{name}d"
               for name, value in work.unusual()]
    parts = (f"{work.model} ({charts.model_text(work)})", f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), work.dtype, work.optimizer, *unusual,
             env_text(case))
    return "  ".join(part for part in parts if part)


def _row(item: CaseResult, record: TrainingRecord, options: Mapping[Training, str]) -> Row:
    work, stats, found = training_of(item.case), item.statistics, record.exposure
    steps = item.timing.steps if item.timing else None
    shares = {phase.name: phase.share for phase in steps.phases} if steps else {}
    again = work.checkpointing != "none" or work.loss == CHUNKED
    median = columns.median_cell(stats)
    peak, is_growth = record.held_bytes.get("peak"), record.peak_of == GROWTH
    return Row((
        charts.strategy_text(work), options[work], charts.degrees_text(work) or None,
        work.batch_size, work.accumulation if work.accumulation != 1 else "",
        None if record.step_s is None else median,
        columns.interval_cell(stats), like_median(record.samples_per_s, median),
        like_median(record.tokens_per_s, median), record.mfu,
        record.mfu_of_measured, *((record.hfu, record.hfu_nominal) if again else (None, None)),
        record.cost_per_step, record.cost_per_million_tokens,
        record.cost_per_million_samples if work.of_images else None,
        *map(shares.get, charts.SHORT), steps.other_share if steps else None,
        columns.middle_cell(found.exposed_s), columns.over_passes_cell(found.exposed_share),
        columns.middle_cell(found.overhead), columns.over_passes_cell(found.efficiency),
        None if is_growth else peak, peak if is_growth else None, item.case.memory_bytes or None,
        _parity_cell(item, record), columns.n_cell(stats), item.status,
        columns.launches_cell(item), flag_cell(item, Show.MS)),
        item.status, item.case.case_id)


def _parity_cell(item: CaseResult, record: TrainingRecord) -> str | None:
    text = charts.parity_text(item, record)
    if not text or text[-1] != "%":
        return text
    return f"ok ({digits(float(text[:-1]), 2)} % of tolerance)"


def _table_notes(listed: Sequence[Member]) -> Iterator[Line]:
    beside = (dict.fromkeys(str(left["parity"]["on"]) for left in item.detail.values()
                            if "parity" in left) for item, _ in listed)
    for compared, count in Counter(", ".join(each) for each in beside if each).items():
        yield Line(f"parity of {plural(count, 'row')}: a step against one process in fp64, of "
                   f"{compared}", "quiet", about=("parity",))
    beside_others = Counter(map(charts.counterpart_text, (
        record.counterpart for _, record in listed if record.counterpart)))
    for text, count in beside_others.items():
        yield Line(f"timed model of {plural(count, 'row')}: {text}", "quiet")
    reasons = Counter(record.mfu_missing for _, record in listed if record.mfu_missing)
    for reason, count in reasons.items():
        yield Line(f"MFU ({plural(count, 'row')}): {reason}; gen-config fills it", "quiet")
    missing = Counter(reason for _, record in listed for reason in record.exposure.missing)
    for reason, count in missing.items():
        yield Line(f"{plural(count, 'row')} not paired: {reason}", "quiet")


def _row_notes(listed: Sequence[Member], options: Mapping[Training, str]) -> Iterator[Line]:
    for item, record in listed:
        noted = [item.case.note] if item.case.note else []
        samples = {int(rank): left["balance"]["samples"] for rank, left in item.detail.items()
                   if "balance" in left}
        if samples:
            shares = ", ".join(f"{samples[rank]} on rank {rank}" for rank in sorted(samples))
            noted.append(f"of {training_of(item.case).global_batch} samples in the end {shares}")
        if record.passes_over_data is not None and record.passes_over_data > 1:
            noted.append(f"{training_of(item.case).data} was read {record.passes_over_data:.1f} "
                         "times in a pass: it has fewer samples than the steps take")
        for text in noted:
            yield Line(f"{_row_title(item, options)}: {text}", "quiet")
    for item, record in listed:
        tone = "plain" if record.exposure.idle_share else "warning"
        for text in _outlier_texts(item, record):
            yield Line(f"{_row_title(item, options)}: {text}", tone)


def _row_title(item: CaseResult, options: Mapping[Training, str]) -> str:
    work = training_of(item.case)
    return f"{charts.strategy_text(work)} {options[work]}".rstrip()


def _outlier_texts(item: CaseResult, record: TrainingRecord) -> Iterator[str]:
    yield from charts.findings(item, record.stalls)
    if (late := record.late_rank) and not (record.stalls and record.stalls.last):
        before = "" if late.first_behind_s is None else (
            f"; at the first of {late.buckets} buckets {charts.ms_text(late.first_behind_s)}")
        yield (f"rank {late.rank} is last at the exchange in {late.share:.0%} of the steps, "
               f"{charts.ms_text(late.behind_s)} behind the median{before}")
    for slow in record.slow_phases:
        which, wait = (
            ("shortest", ": the others wait for it") if slow.is_shortest else ("longest", ""))
        yield (f"{slow.phase} is {which} on rank {slow.rank} in {slow.share:.0%} of the steps"
               f"{wait}; the longest is {slow.ratio:.2f}x the shortest")
    if record.exposure.idle_share:
        yield _idle_line(record.exposure)
    if record.slow_alone:
        yield charts.slow_alone_text(record.slow_alone)


def _idle_line(exposure: Exposure) -> str:
    bubble = "" if exposure.bubble is None else (
        f"bubble {cell_text(exposure.bubble, Show.PERCENT)} % as the schedule predicts, with the "
        "ranks' own times "
        f"{', '.join(cell_text(share, Show.PERCENT) for share in exposure.uneven_bubble)} %; ")
    idle = ", ".join(
        f"{cell_text(columns.over_passes_cell(share), Show.PERCENT)} % on rank {rank}"
        for rank, share in zip(exposure.ranks, exposure.idle_share, strict=True))
    return f"{bubble}idle {idle}"


_MOST = "counted in one step that was not timed, on the rank that has most"
_PLAN = "what the plan says of it"
_KINDS = (("calls", "calls", Show.COUNT, ""), ("wire", "wire", Show.MIB, "MiB"),
          ("flops", "GFLOP", Show.GFLOP, "1e9"),
          ("activations", "activations", Show.MIB, "MiB"))
COUNTED_COLUMNS = (
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("degrees", "degrees", optional=True), Column("batch", "batch", Show.COUNT, "replica"),
    *(column for name, title, show, unit in _KINDS for column in (
        Column(name, title, show, unit, _MOST, optional=True),
        Column(f"{name}_predicted", "predicted", show, unit, _PLAN, optional=True))),
)


def counted_tables(title: str, items: charts.Items, derived: charts.Records) -> Iterator[Table]:
    listed = [(item, found) for item in items if item.status in columns.TABLED
              and (found := charts.record_of(item, derived).counted)
              and training_of(item.case).trains]
    if not listed:
        return
    options = charts.distinguishing_options(training_of(item.case) for item, _ in listed)
    groups = grouped((training_of(item.case).model, (item, found)) for item, found in listed)
    yield Table(f"{title}: one step, counted", COUNTED_COLUMNS, tuple(
        Group(name, tuple(Row(
            (charts.strategy_text(work), options[work], charts.degrees_text(work) or None,
             work.batch_size, *(cell for pair in zip(
                 astuple(found.measured), astuple(found.predicted), strict=True) for cell in pair)),
            case_id=item.case.case_id)
            for item, found in group for work in [training_of(item.case)]))
        for name, group in groups.items()), notes=tuple(_notes(listed)), detail=True)


def _notes(listed: Sequence[tuple[CaseResult, rates.Counted]]) -> Iterator[Line]:
    reasons = grouped(((name, reason), item) for item, found in listed
                      for name, reason in found.missing.items())
    for (name, reason), items in reasons.items():
        yield Line(f"{plural(len(items), 'row')} without {name}: {reason}", "quiet")
    kinds = ", ".join(dict.fromkeys(
        found.activations_of for _, found in listed if found.activations_of))
    if kinds:
        yield Line("activations = the most bytes at once that forward and backward hold: "
                   f"{kinds}", "quiet", about=("activations",))


FACTORS = {"load_balance": "load balance", "communication": "communication efficiency",
           "serialisation": "serialisation", "transfer": "transfer"}
"""Field of the efficiency -> its title."""
_OF_COMMUNICATION = ("serialisation", "transfer")
EFFICIENCY_DEFINITION = (
    "score = useful time of all ranks / (ranks x step) = load balance x communication efficiency, "
    "in %;",
    "  communication efficiency = serialisation x transfer; global = score x computation scaling;",
    "  limits: the smallest factor, where it is below 80 % (docs/hardware.md)",
)
_COLUMNS = (
    Column("case", "training"), Column("ranks", "ranks", Show.COUNT),
    Column("score", "score", Show.PERCENT, "%", "useful over consumed device time", "more"),
    *(Column(name, title, Show.PERCENT, "%", better="more", optional=True,
             detail=name in _OF_COMMUNICATION) for name, title in FACTORS.items()),
    Column("scaling", "comp. scaling", Show.PERCENT, "%",
           "useful time for a sample in the scaling's base over that here", "more", optional=True,
           detail=True),
    Column("global", "global", Show.PERCENT, "%", "score x computation scaling", "more",
           optional=True),
    Column("limits", "limits", meaning="the smallest factor below what is acceptable",
           optional=True),
    Column("source", "by", meaning="the source of useful times", detail=True),
)


def efficiencies(items: charts.Items, derived: charts.Records) -> Iterator[Table]:
    rated = [(item, record.pop) for item in items if item.case.world_size > 1
            and (record := derived.get(item.case.case_id)) and record.pop]
    if rated:
        named = charts.titles(items)
        yield Table("parallel efficiency of trainings", _COLUMNS, (Group("", tuple(
            Row((named[item.case.case_id], item.case.world_size, pop.score,
                 *map(pop.factor, FACTORS),
                 pop.computation_scaling, pop.global_efficiency, FACTORS.get(pop.limit or ""),
                 pop.source), case_id=item.case.case_id) for item, pop in rated)),),
            notes=tuple(_unclear_scores(named, derived)))


def _unclear_scores(named: Mapping[str, str], derived: charts.Records) -> Iterator[Line]:
    """Yield which scores are of steps without communication that tell nothing."""
    records = [(title, derived.get(case_id)) for case_id, title in named.items()]
    unclear = [title for title, record in records if record and record.pop
               and record.pop.source == WITHOUT and (exposed := record.exposure.exposed_s)
               and not exposed.tells]
    if unclear:
        yield Line(f"? {', '.join(unclear)}: exposed communication is {columns.CANNOT_TELL}, so "
                   "the score, of the same steps, is uncertain; use more passes", "warning")


SCALING_DEFINITION = (
    "scaling efficiency = samples/s of n ranks / (n / m x samples/s of the m ranks of the base);",
    "  weak: each rank has as many samples as in the base, strong: all ranks together have",
)
_FIRST = (
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("setting", "setting", optional=True), Column("batch", "batch", Show.COUNT, "replica"),
    Column("scaling", "scaling"), Column("base", "base"),
    Column("base_rate", "base", Show.NUMBER, "samples/s", better="more", optional=True))
ScalingMember = tuple[Case, rates.ScalingRecord]


def overviews(items: charts.Items, derived: charts.Records) -> Iterator[Table]:
    scaled = [(item.case, record.scaling) for item in items
              if (record := derived.get(item.case.case_id)) and record.scaling]
    if not scaled:
        return
    rows = grouped(((
        _title(case), (work := training_of(case)).strategy, work.options,
        *(getattr(work, name) for name in Setting._fields), scaling.kind), (case, scaling))
        for case, scaling in scaled)
    ranks = sorted({case.world_size for case, _ in scaled})
    columns = (*_FIRST, *(Column(
        f"n={count}", f"n={count}", Show.PERCENT, "%",
        "scaling efficiency, by medians of all samples; advise compares by pairs", "more",
        optional=True) for count in ranks))
    varied = [name for name in Setting._fields if name != "batch_size"  # it has a column
              and len({getattr(training_of(case), name) for case, _ in scaled}) > 1]
    options = charts.distinguishing_options(training_of(row[0][0]) for row in rows.values())
    yield Table("scaling efficiency of trainings", columns, tuple(
        Group(title, tuple(_scaling_row(row, ranks, varied, options[training_of(row[0][0])])
                           for row in same))
        for title, same in groupby(rows.values(), key=lambda row: _title(row[0][0]))),
        notes=tuple(_unsure_notes(rows.values(), options)))


def _unsure_notes(
    rows: Iterable[Sequence[ScalingMember]], options: Mapping[Training, str],
) -> Iterator[Line]:
    """Yield which efficiencies are quotients of medians without a reliable interval."""
    unsure = [" ".join(filter(None, (
                  work.strategy, options[work], f"n={case.world_size}")))
              for row in rows for case, scaling in row if not scaling.reliable
              for work in [training_of(case)]]
    if unsure:
        more = len(unsure) - MOST_UNSURE
        yield Line(f"? {', '.join(unsure[:MOST_UNSURE])}{f' and {more} more' if more > 0 else ''}: "
                   "unreliable, of medians whose 95 % CI is ?; use more passes")


MOST_UNSURE = 4
"""Unreliable efficiencies that are named below their table."""


def _title(case: Case) -> str:
    work = training_of(case)
    return "  ".join(part for part in (
        f"{work.model} ({charts.model_text(work)})", f"{case.backend} ({case.device})",
        case.mode, env_text(case)) if part)


def _scaling_row(
    members: Sequence[ScalingMember], ranks: Sequence[int], varied: Sequence[str], options: str,
) -> Row:
    (case, first), work = members[0], training_of(members[0][0])
    shares = {case.world_size: scaling.efficiency for case, scaling in members}
    base = ", ".join(filter(None, (first.base_alone, plural(first.base_ranks, "rank"))))
    return Row((
        work.strategy, options, options_text([(key, getattr(work, key)) for key in varied]),
        work.batch_size, first.kind, base, first.base_samples_per_s, *map(shares.get, ranks)),
        case_id=case.case_id)
