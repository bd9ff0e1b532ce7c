"""The results tables of trainings, and what their columns mean."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median

from rich.text import Text

from hpcbench.kinds.training.derive.exposed import UNPAIRED, Exposure, exposures, paired
from hpcbench.kinds.training.derive.problems import shown_definition
from hpcbench.kinds.training.plan.flops import DEFINITIONS as DEFINITIONS_OF_FLOPS
from hpcbench.kinds.training.plan.shares import is_dynamic
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.kinds.training.present import communication
from hpcbench.kinds.training.present.communication import CLEAR_PART, CLEAR_RATIO, CLEAR_SHARE
from hpcbench.kinds.training.present.options import telling_options
from hpcbench.kinds.training.present.summary_fields import (
    most_bytes,
    parity_text,
    peak_of,
    steps_of,
    training_fields,
)
from hpcbench.reduce.results import CaseResult, Phase, Results, Steps
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
    strategy_text,
    without_empty,
)
from hpcbench.report.timing import flag_cell, fold_of, interval_cell

SHORT = {"data": "data", "forward": "forward", "backward": "backward", "exchange": "exchange",
         "forward_backward": "fwd+bwd", "optimizer": "optimizer", "balance": "balance"}
"""Phase -> the title of its column."""
COLUMNS = (
    Column("strategy", words=True), Column("options", words=True), Column("degrees", words=True),
    Column("batch", "(replica)"), Column("accumulated"), Column("step p50", "(ms)"),
    Column("CI", "+-%"), Column("samples/s"), Column("tokens/s"), Column("MFU", "%"),
    Column("HFU", "%"),
    *(Column(title, "%") for title in SHORT.values()), Column("other", "%"),
    *communication.COLUMNS,
    Column("memory", "(MiB)"), Column("parity", words=True), Column("n"),
    Column("status", words=True), Column("flags", words=True),
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


def training_definitions(items: Sequence[CaseResult]) -> Iterator[str]:
    """Yield what the columns of these trainings mean."""
    yield from DEFINITIONS
    works = [training_of(item.case) for item in items if item.case.kind == "training"]
    for name in dict.fromkeys(map(shown_definition, works)):
        if name is not None:
            meaning = f": {DEFINITIONS_OF_FLOPS[name].meaning}" if (
                name in DEFINITIONS_OF_FLOPS) else ""
            yield "MFU = FLOPs of the model in a step / (step p50 x ranks x hardware.peak_flops);"
            yield f"  FLOPs as {name} counts them{meaning}"
            yield ("  (what is computed twice counts once, in HFU twice; other definitions: "
                   "summary.json)")
    if any(work.adapters for work in works):
        yield ("  (of lora and qlora 4 for each frozen weight and token, not 6: none has a "
               "gradient; and what adapters add)")
    if any(not work.trains for work in works):
        yield from communication.DEFINITIONS
        if any(work.pp > 1 for work in works):
            yield from communication.DEFINITIONS_OF_PIPELINES
    peaks = ", ".join(dict.fromkeys(filter(None, map(peak_of, items))))
    if peaks:
        yield f"memory = the most that any rank used ({peaks})"


def training_lines(
    name: str, items: Sequence[CaseResult], results: Results
) -> Iterator[Text]:
    """Yield one block's table: a group of rows per model, backend, device, ranks and dtype.

    What was run without communication, or nothing but that, is told in the row of its training.
    """
    told, beside = exposures(results.cases), paired(results.cases)
    groups: dict[str, list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.status in TABLED and item.case.case_id not in beside:
            groups[_group_title(item)].append(item)
    if not groups:
        return
    listed = [(title, item) for title, group in groups.items() for item in group]
    options = telling_options(training_of(item.case) for _, item in listed)
    columns, rows = without_empty(COLUMNS, [
        _row(item, results, told.get(item.case.case_id, UNPAIRED), options[training_of(item.case)])
        for _, item in listed])
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
    yield from _lines_below([item for _, item in listed], results, told)


def _group_title(item: CaseResult) -> str:
    case, work = item.case, training_of(item.case)
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


def _row(item: CaseResult, results: Results, told: Exposure, options: str) -> list[str]:
    work, stats = training_of(item.case), item.statistics
    numbers = training_fields(item, work, results.plan.config.get("hardware", {}))
    steps = steps_of(item)
    peak = most_bytes(item).get("peak")
    return [
        strategy_text(work), options, degrees_text(work), str(work.batch_size),
        str(work.accumulation) if work.accumulation != 1 else "",
        _number(numbers["step_time_ms"]), interval_cell(stats),
        _number(numbers["samples_per_second"]), _number(numbers["tokens_per_second"]),
        _percents(numbers["mfu"]),
        _percents(numbers["hfu"] if work.checkpointing != "none" else None),
        *_phase_cells(steps), *communication.exposure_cells(told),
        _number(None if peak is None else peak / 2**20), parity_text(item) or MISSING,
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


def _lines_below(
    items: Sequence[CaseResult], results: Results, told: Mapping[str, Exposure]
) -> Iterator[Text]:
    """Yield what parity was shown of, why rows lack numbers, and what ranks do not do alike."""
    shown = Counter(_compared(item) for item in items)
    for what, count in shown.items():
        if what:
            yield Text(f"  parity of {plural(count, 'row')}: compared was {what}", style="dim")
    reasons: Counter[str] = Counter()
    for item in items:
        hardware = results.plan.config.get("hardware", {})
        reason = training_fields(item, training_of(item.case), hardware)["mfu_missing"]
        if reason is not None:
            reasons[reason] += 1
    for reason, count in reasons.items():
        yield Text(f"  {plural(count, 'row')} without MFU: {reason}", style="dim")
    exposed = [told.get(item.case.case_id, UNPAIRED) for item in items]
    options = telling_options(training_of(item.case) for item in items)
    for line in communication.missing_lines(exposed):
        yield Text(f"  {line}", style="dim")
    for item in items:
        yield from (Text(f"  {_title(item, options)}: {words}", style="dim")
                    for words in (*_shares(item), *_read_again(item)))
    for item, exposure in zip(items, exposed, strict=True):
        for words in (*standing_out(item), *communication.rank_lines(exposure)):
            yield Text(f"  {_title(item, options)}: {words}",
                       style="" if exposure.idle_share else "yellow")


def _title(item: CaseResult, options: Mapping[Training, str]) -> str:
    work = training_of(item.case)
    return f"{strategy_text(work)} {options[work]}".rstrip()


def _shares(item: CaseResult) -> Iterator[str]:
    """Yield what the replicas' samples were at the end, where they were divided by speed."""
    told = {int(rank): left["balance"]["samples"] for rank, left in item.detail.items()
            if "balance" in left}
    if told:
        shares = ", ".join(f"{told[rank]} on rank {rank}" for rank in sorted(told))
        yield f"of {training_of(item.case).global_batch} samples in the end {shares}"


def _read_again(item: CaseResult) -> Iterator[str]:
    """Yield how often a file of tokens was read in a pass, if it was too short for all steps."""
    times = [left["data"]["steps"] * training_of(item.case).global_batch / left["data"]["samples"]
             for left in item.detail.values() if "data" in left]
    if times and max(times) > 1:
        yield (f"{training_of(item.case).data} was read {max(times):.1f} times in a pass: "
               "it has fewer samples than the steps take")


def _compared(item: CaseResult) -> str:
    """Return what was compared with a single process."""
    found = [str(left["parity"]["on"]) for left in item.detail.values() if "parity" in left]
    return ", ".join(dict.fromkeys(found))


def standing_out(item: CaseResult) -> Iterable[str]:
    """Yield which rank is slow in which phase; stages of a pipeline differ anyway."""
    steps = steps_of(item)
    work = training_of(item.case)
    if steps is None or len(steps.ranks) == 1 or work.pp > 1 or not work.trains:
        return
    blocks = item.case.backend == "mpi"  # the rank itself, in each call
    late = communication.arrival_line(steps, blocks=blocks)
    if late:
        yield late
    together = _left_together(work, overlaps=bool(steps.arrivals) and not blocks)
    for phase in steps.phases:
        ratio = max(phase.median_s) / max(min(phase.median_s), 1e-9)
        if max(phase.median_s) < CLEAR_PART * median(steps.step_s) or ratio < CLEAR_RATIO:
            continue
        words = "" if late and phase.name == "exchange" else _words(phase, together)
        if words:
            yield f"{words}; longest of a rank / shortest {ratio:.2f}"


def _left_together(work: Training, *, overlaps: bool) -> set[str]:
    """Return the phases that all ranks leave together: their length does not reveal who is slow.

    ``overlaps``: gradients are exchanged in buckets while ranks compute on; else backward waits.
    """
    found = {"exchange", "forward_backward"} | (set() if overlaps else {"backward"})
    gathers = "all_gather" in work.calls and not is_dynamic(work)  # which tells speeds by one
    found |= {"forward"} if work.tp > 1 or gathers else set()
    return found | ({"optimizer"} if "broadcast" in work.calls else set())  # of what it updated


def _words(phase: Phase, together: Collection[str]) -> str:
    if phase.name in together:
        if (phase.quickest_share or 0) >= CLEAR_SHARE:
            return (f"{phase.name} is shortest on rank {phase.quickest_rank} in "
                    f"{phase.quickest_share:.0%} of the steps: the others wait for it")
    elif (phase.slowest_share or 0) >= CLEAR_SHARE:
        return (f"{phase.name} is longest on rank {phase.slowest_rank} in "
                f"{phase.slowest_share:.0%} of the steps")
    return ""
