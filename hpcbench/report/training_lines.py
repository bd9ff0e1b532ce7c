"""The results tables of trainings, and what their columns mean."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from rich.text import Text

from hpcbench.plan.training.flops import DEFINITIONS as DEFINITIONS_OF_FLOPS
from hpcbench.plan.workload import Training
from hpcbench.reduce.results import CaseResult, Phase, Results, Steps
from hpcbench.reduce.training import shown_definition
from hpcbench.report.tables import STYLES, TABLED
from hpcbench.report.text import (
    MISSING,
    Column,
    column_widths,
    device_type,
    env_text,
    format_number,
    header_lines,
    model_text,
    options_text,
    plural,
    row_line,
    without_empty,
)
from hpcbench.report.timing import flag_cell, fold_of, interval_cell
from hpcbench.report.training_summary import most_bytes, peak_of, steps_of, training_fields

SHORT = {"data": "data", "forward": "forward", "backward": "backward",
         "forward_backward": "fwd+bwd", "optimizer": "optimizer"}
"""Phase -> the title of its column."""
COMMUNICATING = ("backward", "forward_backward")
"""Phases that all ranks leave together: their length does not reveal who came late."""
CLEAR_SHARE, CLEAR_RATIO = 0.8, 1.1
"""A rank is named where it stands out in so many of the steps, by so much of the other end."""
COLUMNS = (
    Column("strategy", words=True), Column("options", words=True), Column("degrees", words=True),
    Column("batch", "(replica)"), Column("accumulated"), Column("step p50", "(ms)"),
    Column("CI", "+-%"), Column("samples/s"), Column("tokens/s"), Column("MFU", "%"),
    Column("HFU", "%"),
    *(Column(title, "%") for title in SHORT.values()), Column("other", "%"),
    Column("memory", "(MiB)"), Column("parity", words=True), Column("n"),
    Column("status", words=True), Column("flags", words=True),
)
DEFINITIONS = (
    "step p50 = time of one optimizer step, accumulation included; samples/s = samples of all "
    "replicas / step p50;",
    "  tokens/s = samples/s x sequence length: each token counts once, however many ranks see it",
    "data .. optimizer = time in the phase, in % of the time of all steps of all ranks; data = "
    "waiting for the batch,",
    "  other = in no phase. All ranks leave backward together: who is slow has the shortest",
    "parity = loss, gradients and updated weights against those of a single process with the same "
    "weights and samples:",
    "  the largest error of any rank in % of what is allowed",
)


def training_definitions(items: Sequence[CaseResult]) -> Iterator[str]:
    """Yield what the columns of these trainings mean."""
    yield from DEFINITIONS
    works = [item.case.training for item in items if item.case.kind == "training"]
    for name in dict.fromkeys(map(shown_definition, works)):
        if name is not None:
            meaning = f": {DEFINITIONS_OF_FLOPS[name].meaning}" if (
                name in DEFINITIONS_OF_FLOPS) else ""
            yield "MFU = FLOPs of the model in a step / (step p50 x ranks x hardware.peak_flops);"
            yield f"  FLOPs as {name} counts them{meaning}"
            yield ("  (what is computed twice counts once, in HFU twice; other definitions: "
                   "summary.json)")
    peaks = ", ".join(dict.fromkeys(filter(None, map(peak_of, items))))
    if peaks:
        yield f"memory = the most that any rank used ({peaks})"


def training_lines(
    name: str, items: Sequence[CaseResult], results: Results
) -> Iterator[Text]:
    """Yield one block's table: a group of rows per model, backend, device, ranks and dtype."""
    groups: dict[str, list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.status in TABLED:
            groups[_group_title(item)].append(item)
    if not groups:
        return
    listed = [(title, item) for title, group in groups.items() for item in group]
    columns, rows = without_empty(COLUMNS, [_row(item, results) for _, item in listed])
    widths = column_widths(columns, rows)
    yield Text()
    yield Text(f"block {name}", style="bold")
    for line in header_lines(columns, widths):
        yield Text(line, style="dim")
    last = ""
    for (title, item), row in zip(listed, rows, strict=True):
        if title != last:
            yield Text(title, style="cyan")
        yield Text(row_line(columns, widths, row), style=STYLES[item.status])
        last = title
    yield from _lines_below([item for _, item in listed], results)


def _group_title(item: CaseResult) -> str:
    case, work = item.case, item.case.training
    unusual = [f"{name} {value}" if value is not True else f"{name}d"
               for name, value in work.unusual()]
    parts = (f"{work.model} ({model_text(work)})", f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), f"{case.mode}, fold {fold_of(item)}", work.dtype,
             work.optimizer, *unusual, env_text(case))
    return "  ".join(part for part in parts if part)


def degrees_text(work: Training) -> str:
    """Return ``dp=2 tp=2``: the degrees above 1."""
    degrees = (("dp", work.dp), ("tp", work.tp), ("pp", work.pp))
    return options_text([(name, degree) for name, degree in degrees if degree != 1]) or MISSING


def _row(item: CaseResult, results: Results) -> list[str]:
    work, stats = item.case.training, item.statistics
    numbers = training_fields(item, work, results.plan.config.get("hardware", {}))
    steps = steps_of(item)
    peak = most_bytes(item).get("peak")
    return [
        work.strategy, options_text(work.options), degrees_text(work), str(work.batch_size),
        str(work.accumulation) if work.accumulation != 1 else "",
        _number(numbers["step_time_ms"]), interval_cell(stats),
        _number(numbers["samples_per_second"]), _number(numbers["tokens_per_second"]),
        _percents(numbers["mfu"]),
        _percents(numbers["hfu"] if work.checkpointing != "none" else None),
        *_phase_cells(steps), _number(None if peak is None else peak / 2**20), _parity_cell(item),
        str(stats.n) if stats else MISSING, item.status, flag_cell(item),
    ]


def _number(value: float | None) -> str:
    return MISSING if value is None else format_number(value)


def _percents(share: float | None) -> str:
    return MISSING if share is None else format_number(100 * share)


def _phase_cells(steps: Steps | None) -> list[str]:
    """Return a cell for each phase, and one for the time in none, in percent of the step."""
    if steps is None:
        return [MISSING] * (len(SHORT) + 1)
    shares = {phase.name: phase.share for phase in steps.phases}
    found = [*map(shares.get, SHORT), steps.other_share]
    return [MISSING if share is None else f"{100 * share:.1f}" for share in found]


def _parity_cell(item: CaseResult) -> str:
    if item.n_wrong is None:
        return MISSING if item.case.validate else "unchecked"
    if item.n_wrong:
        return f"{item.n_wrong} wrong"
    shares = [left["parity"]["share"] for left in item.detail.values() if "parity" in left]
    return f"{100 * max(shares):.3g}%" if shares else "ok"


def _lines_below(items: Sequence[CaseResult], results: Results) -> Iterator[Text]:
    """Yield what parity was shown of, why rows have no MFU, and which rank stands out in a phase.
    """
    shown = Counter(_compared(item) for item in items)
    for what, count in shown.items():
        if what:
            yield Text(f"  parity of {plural(count, 'row')}: compared was {what}", style="dim")
    reasons: Counter[str] = Counter()
    for item in items:
        hardware = results.plan.config.get("hardware", {})
        reason = training_fields(item, item.case.training, hardware)["mfu_missing"]
        if reason is not None:
            reasons[reason] += 1
    for reason, count in reasons.items():
        yield Text(f"  {plural(count, 'row')} without MFU: {reason}", style="dim")
    for item in items:
        for words in standing_out(item):
            work = item.case.training
            yield Text(f"  {work.strategy} {options_text(work.options)}".rstrip() + f": {words}",
                       style="yellow")


def _compared(item: CaseResult) -> str:
    """Return what was compared with a single process."""
    found = [str(left["parity"]["on"]) for left in item.detail.values() if "parity" in left]
    return ", ".join(dict.fromkeys(found))


def standing_out(item: CaseResult) -> Iterable[str]:
    """Yield which rank is slow in which phase; stages of a pipeline differ anyway."""
    steps = steps_of(item)
    if steps is None or len(steps.ranks) == 1 or item.case.training.pp > 1:
        return
    for phase in steps.phases:
        ratio = max(phase.median_s) / max(min(phase.median_s), 1e-9)
        if max(phase.median_s) < 0.01 * median(steps.step_s) or ratio < CLEAR_RATIO:
            continue
        if words := _words(phase):
            yield f"{words}; longest of a rank / shortest {ratio:.2f}"


def _words(phase: Phase) -> str:
    if phase.name in COMMUNICATING:
        if (phase.quickest_share or 0) >= CLEAR_SHARE:
            return (f"{phase.name} is shortest on rank {phase.quickest_rank} in "
                    f"{phase.quickest_share:.0%} of the steps: the others wait for it")
    elif (phase.slowest_share or 0) >= CLEAR_SHARE:
        return (f"{phase.name} is longest on rank {phase.slowest_rank} in "
                f"{phase.slowest_share:.0%} of the steps")
    return ""
