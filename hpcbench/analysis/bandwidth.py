"""The used share of the links, by the clock, by counters and by formula; impossible values.

Bus bandwidth is compared with the declared links and with the highest measured one, bytes that
interfaces counted with the bytes that ranks send by formula."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hpcbench.answers.answer import (
    CLEAR,
    NONE,
    Answer,
    Run,
    Topic,
    TopicOptions,
    cannot_tell,
    plain_table,
    with_command,
)
from hpcbench.operations.arrival import TOGETHER
from hpcbench.records import dataclass
from hpcbench.reduce.checks import MOST_OF_PEAK
from hpcbench.reduce.results import CaseResult
from hpcbench.units import digits, grouped, plural, size_text, three_digits
from hpcbench.views.chart import Axis, ChartPoint, Dot, DotChart
from hpcbench.views.columns import BUSBW
from hpcbench.views.table import Column, Row, Show, Table

LEAST_COUNTED, MOST_COUNTED = 0.1, 1.25
"""Counted over computed bytes: below, no interface carried them; above, more was sent."""
LEAST_MESSAGE_BYTES = 64 * 1024
"""Below, headers and control messages are most of what interfaces count: no share is stated."""
UNKNOWN = "unknown"
BYPASSED = "bypassed the interfaces (shared memory)"
_LOGS = {"nccl": "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING", "ucc": "UCC_COLL_TRACE=info"}
"""Backend -> variables that make it log algorithm and protocol (`measurement.library_log`)."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The traffic of one case.

    Attributes:
        busbw_bytes_per_s: as nccl-tests defines it; None for a case without.
        of_link: busbw over that of the declared links; None where none is declared.
        of_best: over the highest of the same backend in the same file.
        counted_bytes: sent by interfaces and NVLinks in a pass; None where it was not read.
        computed_bytes: sent by all ranks in as many calls, by formula.
        algorithm, protocol: as the library logged; ``unknown`` where it logged nothing.
        size_bytes: of a message; None for a case whose messages differ.
        problem: why the values cannot be true, or that interfaces were bypassed; else empty."""

    case_id: str
    label: str
    backend: str
    busbw_bytes_per_s: float | None
    of_link: float | None
    of_best: float | None
    counted_bytes: float | None
    computed_bytes: float | None
    algorithm: str
    protocol: str
    size_bytes: float | None = None
    problem: str = ""

    @property
    def is_small(self) -> bool:
        return self.size_bytes is not None and self.size_bytes < LEAST_MESSAGE_BYTES

    @property
    def counted_share(self) -> float | None:
        if self.counted_bytes is None or not self.computed_bytes or self.is_small:
            return None
        return self.counted_bytes / self.computed_bytes


@dataclass(frozen=True, slots=True)
class BandwidthTruth:
    """The record of the topic."""

    cases: tuple[Carried, ...]
    answers: tuple[Answer, ...]


def bandwidth(runs: Sequence[Run], options: TopicOptions) -> BandwidthTruth:
    cases = tuple(case for run in runs for case in _of_run(run))
    if not cases:
        return BandwidthTruth((), (
            cannot_tell("bus bandwidth", "no measured case has one, its ranks on time"),))
    answers = (_of_link(cases), *_of_counters(cases), _of_library(cases))
    return BandwidthTruth(cases, with_command(answers, runs, "bandwidth", "--json"))


def _of_run(run: Run) -> list[Carried]:
    rows = run.results.kind_columns.values
    moved = [(item, rate) for item in run.results.cases if item.status == "ok"
             and item.case.arrival == TOGETHER  # else a delay on purpose is in its time
             and (rate := _number(rows.get(item.case.case_id, {}).get("busbw_bytes_per_s")))]
    best = {backend: max(rates) for backend, rates in grouped(
        (item.case.backend, rate) for item, rate in moved).items()}
    return [_carried(item, rate, best[item.case.backend], rows[item.case.case_id])
            for item, rate in moved]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value == value else None


def _carried(
    item: CaseResult, rate: float, best: float, row: Mapping[str, object],
) -> Carried:
    usage, library = item.usage, item.library or {}
    counted = None if usage is None or usage.sent_bytes is None else (
        usage.sent_bytes + (usage.nvlink_bytes or 0.0))
    case = Carried(
        item.case.case_id, item.case.label, item.case.backend, rate, _number(row.get("of_link")),
        rate / best, counted,
        usage.computed_bytes if usage else None, library.get("algorithm", UNKNOWN),
        library.get("protocol", UNKNOWN), _number(row.get("size_bytes")))
    share, problem = case.counted_share, ""
    if case.of_link is not None and case.of_link > MOST_OF_PEAK:
        problem = "above the declared link peak"
    elif share is not None and share > MOST_COUNTED:
        problem = "more sent than predicted"
    elif share is not None and share < LEAST_COUNTED:
        problem = BYPASSED
    return replace(case, problem=problem)


def _of_link(cases: Sequence[Carried]) -> Answer:
    shares = [(case.of_link, case.label) for case in cases if case.of_link is not None]
    if not shares:
        return cannot_tell("share of link peak", "none declared: set hardware.link_peaks or "
                           "hardware.network_bandwidth_gbps")
    beyond = [label for share, label in shares if share > MOST_OF_PEAK]
    evidence = tuple(f"{label}: {100 * share:.1f} %" for share, label in sorted(shares)[::-1][:8])
    if beyond:
        return Answer(CLEAR, (
            f"share of link peak: {len(beyond)} of {plural(len(shares), 'case')} above 100 %, up "
            f"to {100 * max(shares)[0]:.0f} % ({max(shares)[1]})"), (
            "the data stayed in a cache, a switch reduced them, or the declared peak is wrong",
            *evidence))
    return Answer(NONE, (
        f"share of link peak: {100 * min(shares)[0]:.1f} % to {100 * max(shares)[0]:.1f} %, most "
        f"in {max(shares)[1]}"), evidence)


def _of_counters(cases: Sequence[Carried]) -> Iterator[Answer]:
    """Yield the ratio of counted to predicted bytes, for each backend."""
    for backend, alike in grouped((case.backend, case) for case in cases).items():
        shares = [(share, case.label) for case in alike
                  if (share := case.counted_share) is not None]
        evidence = tuple(f"{label}: {three_digits(share)} times" for share, label in shares[:8])
        if not shares:
            why = (f"all messages are below {size_text(LEAST_MESSAGE_BYTES)}, where headers "
                   "dominate" if all(case.is_small for case in alike) else
                   "no interface counters were read")
            yield cannot_tell(f"bytes sent by {backend}", why, subject=backend)
        elif max(shares)[0] < LEAST_COUNTED:
            yield Answer(CLEAR, (
                f"bytes sent by {backend}: at most {digits(max(shares)[0], 2)}x the predicted "
                "bytes on the network interfaces: the data bypassed them (shared memory)"),
                evidence, subject=backend)
        else:
            span = " to ".join(dict.fromkeys(f"{end(shares)[0]:.2f}" for end in (min, max)))
            yield Answer(NONE if max(shares)[0] <= MOST_COUNTED else CLEAR, (
                f"bytes sent by {backend}: {span}x the predicted bytes, most in "
                f"{max(shares)[1]}"), evidence, subject=backend)


def _of_library(cases: Sequence[Carried]) -> Answer:
    seen = grouped(((case.backend, case.algorithm, case.protocol), case.label) for case in cases
                   if case.algorithm != UNKNOWN or case.protocol != UNKNOWN)
    if not seen:
        settings = [setting for backend, setting in _LOGS.items()
                    if any(case.backend == backend for case in cases)]
        return cannot_tell("algorithm and protocol",
                           f"not logged: set env {' and '.join(settings)}" if settings else
                           f"only {' and '.join(_LOGS)} log them")
    text = "; ".join(f"{backend} {algorithm} {protocol} in {plural(len(same), 'case')}"
                     for (backend, algorithm, protocol), same in seen.items())
    return Answer(CLEAR, f"algorithm and protocol: {text}")


def bandwidth_tables(truth: BandwidthTruth) -> Iterator[Table]:
    if not truth.cases:
        return
    partly = {case.backend for case in truth.cases
              if (share := case.counted_share) is not None and share >= LEAST_COUNTED}
    yield plain_table("bandwidth against links and counters", (
        Column("case", "case"),
        BUSBW,
        Column("of_link", "of link", Show.PERCENT, "%", "of what the declared links allow",
               optional=True),
        Column("of_best", "of backend's best", Show.PERCENT, "%", "of the highest of the backend"),
        Column("counted", "counted", Show.MIB, "MiB", "sent by interfaces in a pass",
               optional=True),
        Column("computed", "predicted", Show.MIB, "MiB", "what all ranks send by formulas",
               optional=True),
        Column("share", "counted / predicted", Show.RATIO, optional=True),
        Column("algorithm", "algorithm", optional=True),
        Column("protocol", "protocol", optional=True),
        Column("problem", "note", optional=True),
    ), (Row((case.label, case.busbw_bytes_per_s, case.of_link, case.of_best,
             case.counted_bytes, case.computed_bytes, case.counted_share,
             _known(case.algorithm), _known(case.protocol),
             None if case.problem == BYPASSED and case.backend not in partly else  # in its answer
             case.problem or None),
            case_id=case.case_id) for case in truth.cases))


def _known(text: str) -> str | None:
    return None if text == UNKNOWN else text


def bandwidth_charts(truth: BandwidthTruth) -> Iterator[DotChart]:
    """Yield a chart of each case's share of the declared links; none where none is declared."""
    rows = tuple(Dot(case.label, ChartPoint(case.of_link), (case.problem or None,))
                 for case in truth.cases if case.of_link is not None)
    if rows:
        yield DotChart(
            "Bandwidth against the declared links", "share of what the declared links allow",
            "bandwidth", ("More than 1 is impossible: see the note.",),
            tuple(case.case_id for case in truth.cases), Axis("share of link", Show.RATIO),
            (Column("problem", "note"),), rows, reference=1.0)


TOPIC = Topic("bandwidth", "link use, and bandwidths that are too high",
              bandwidth, bandwidth_tables, bandwidth_charts)
