"""May the numbers of a run be quoted? One of three states, and one sentence: the first of RULES
that holds. It follows from what the results have; none of it is computed anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from hpcbench.plan.case import PROGRAM_KIND
from hpcbench.records import dataclass
from hpcbench.reduce.results import IMPORTED, QUALITIES, CaseResult, Finding, Results
from hpcbench.reduce.spread import interval_share
from hpcbench.trace.schema import MOST_LOST
from hpcbench.units import plural
from hpcbench.views.columns import missing_passes_text
from hpcbench.views.table import FLAGS

_OF_MEDIANS = frozenset(FLAGS) - {IMPORTED, "repeats"}
"""Flags of a median; the others are of its interval, or stated otherwise."""
GREEN, AMBER, RED = "green", "amber", "red"
_BEGIN = {GREEN: "Good to quote", AMBER: "Quote with care", RED: "Do not quote"}
_ONE_LOSES = "one rank loses more of its core to other processes than the rest"


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """``state`` is GREEN, AMBER or RED; ``sentence`` says why, for those who read no more."""

    state: str
    sentence: str


def verdict_of(results: Results) -> RunVerdict:
    """Return the verdict on a run by the first of RULES that holds; beside another reason, flagged
    rows are named for care, and wrong results and busy cores against quoting."""
    state, rule, reason = next(
        (state, rule, reason) for state, rule in RULES if (reason := rule(results)))
    if state == AMBER and rule != _flagged and (rows := _flags_of_rows(results)):
        reason += f"; {sum(map(bool, rows))} of {plural(len(rows), 'case')} flagged"
    if state == RED:
        reason = "; ".join((reason, *filter(None, (
            also(results) for also in (_wrong, _busy) if also != rule))))
    return RunVerdict(state, f"{_BEGIN[state]}: {reason}")


def doubts_of(runs: Iterable[tuple[str, Results]]) -> Iterator[str]:
    """Yield the name and the verdict of each run that is not to be quoted."""
    for name, results in runs:
        if (found := verdict_of(results)).state == RED:
            yield f"{name}: {found.sentence}"


def is_busy(results: Results) -> bool:
    """Return whether other processes took so much of the cores that nothing is quoted."""
    return bool(_busy(results))


def checked_text(results: Results) -> str:
    """Return of how many cases or samples the results were checked; "" where none has any."""
    counts = Counter(item.n_wrong is not None for item in _with_result(results))
    if not counts[False]:
        return _how_checked(results) if counts[True] else ""
    return "results not checked" if not counts[True] else (
        f"results of {plural(counts[False], 'case')} not checked")


def _with_result(results: Results) -> Iterator[CaseResult]:
    return (item for item in results.cases
            if item.status == "ok" and item.case.workload.features.has_result)


def _how_checked(results: Results) -> str:
    """Return of how many timed samples the results were compared, as far as the file has that."""
    counts = [_checked_counts(item) for item in _with_result(results) if item.timing is not None]
    shares = [count for count in counts if count is not None]
    timed, checked, single = map(sum, zip(*shares, strict=True)) if shares else (0, 0, 0)
    if len(shares) < len(counts) or not timed:
        return "results checked"
    calls = f" and {plural(single, 'single call')}" if single else ""
    of = f"all {timed:,}" if checked == timed else f"results of {checked:,} of {timed:,}"
    return f"{of} timed samples{calls} checked"


def _checked_counts(item: CaseResult) -> tuple[int, int, int] | None:
    """Return how many samples were timed, how many of these checked, and how many calls that were
    made for their check. `measurement.loop.measure` checks the first warm-up of a pass, too."""
    timing, case = item.timing, item.case
    if timing is None or timing.n_checked is None:
        return None
    passes, (before, after) = len(timing.stop_reasons), case.single_calls
    single = passes * (before + after)
    warmups = passes * (case.batch == 1 and case.warmup > 0)
    return (timing.n_samples - timing.n_warmup - passes * after,
            max(0, timing.n_checked - single - warmups), single)


def _nothing(results: Results) -> str:
    return "" if any(item.status == "ok" for item in results.cases) else "no case was measured"


def _faults(results: Results) -> str:
    faults = results.run.faults
    were = "was" if len(faults) == 1 else "were"
    return f"{plural(len(faults), 'fault')} {were} injected" if faults else ""


def _not_sound(results: Results) -> str:
    return next((_clause(one) for one in results.findings if one.scope == "run"), "")


def _lost(results: Results) -> str:
    n_ranks = results.run.world_size
    lost = 0 if results.run.imported else n_ranks - len(results.run.ranks_present)
    return f"{lost} of {plural(n_ranks, 'rank')} left no usable trace" if lost > 0 else ""


def _wrong(results: Results) -> str:
    wrong = sum(item.status == "wrong" for item in results.cases)
    return f"{_of_cases(wrong, results)} gave wrong results" if wrong else ""


def _alone(results: Results) -> str:
    sends_nothing = any(item.case.sends_nothing for item in results.cases if item.status == "ok")
    return ("one rank has no other to communicate with (start the job with mpirun)"
            if results.run.world_size == 1 and sends_nothing else "")


def _finding(code: str, text: str = "") -> Callable[[Results], str]:
    """Return the rule that there is a finding of this code; without ``text`` it says which."""
    return lambda results: next(
        (text or _clause(one) for one in results.findings if one.code == code), "")


def _lost_core(code: str, text: str = "", unknown: float = 0.0) -> Callable[[Results], str]:
    """Return the rule that a finding of this code tells of a share above MOST_LOST. ``unknown``:
    that of results of earlier versions, which have the message alone."""
    return lambda results: next(
        (text or _clause(one) for one in results.findings
         if one.code == code and (unknown if one.share is None else one.share) > MOST_LOST), "")


def _imported(results: Results) -> str:
    names = " and ".join(results.run.imported)
    return f"times are those that {names} printed, without intervals" if names else ""


def _incomplete(results: Results) -> str:
    counts = Counter(item.status for item in results.cases)
    parts = [f"{counts[status]} {status.replace('_', ' ')}"
             for status in ("failed", "timeout", "not_run") if counts[status]]
    passes = missing_passes_text(results)
    measured = f"{_of_cases(counts['ok'], results)} measured{' in ' if passes else ''}{passes}"
    return ", ".join((measured, *parts)) if parts or passes else ""


def _lacking(results: Results) -> str:
    return next((f"kind {kind} {reason}" for kind, reason in results.lacking_kinds.items()), "")


def _unchecked(results: Results) -> str:
    items = [*_with_result(results)]
    unchecked = sum(item.n_wrong is None for item in items)
    return f"{unchecked} of {plural(len(items), 'case')} not checked for wrong results" if (
        unchecked) else ""


def _flags_of_rows(results: Results) -> list[list[str]]:
    """Return the flags of each median; nothing where none has any."""
    each = [[flag for flag in item.timing.quality if flag in _OF_MEDIANS]
            for item in results.cases if item.timing is not None]
    return each if any(each) else []


def _flagged(results: Results) -> str:
    each = _flags_of_rows(results)
    flags = Counter(flag for flags in each for flag in flags)
    why = "".join(QUALITIES[flag].split("; ")[0] for flag, _ in flags.most_common(1))
    return f"{sum(map(bool, each))} of {plural(len(each), 'case')} flagged, most: {why}" if (
        flags) else ""


def _no_interval(results: Results) -> str:
    measured = [item.statistics for item in results.cases if item.statistics is not None]
    without = sum(interval_share(one) is None and one.launch_low_s is None for one in measured)
    have = "has" if without == 1 else "have"
    return f"{without} of {plural(len(measured), 'median')} {have} no reliable interval" if (
        without) else ""


def _warned(results: Results) -> str:
    return next(map(_clause, results.findings), "")


def _noise_unknown(results: Results) -> str:
    """Return whether the noise before the cases is unknown: switched off, or a program's file of an
    earlier version."""
    kinds = {case.kind for case in results.plan.cases}
    seconds = results.plan.config.get("measure", {}).get(
        "noise_check_s", 0 if kinds == {PROGRAM_KIND} else None)
    return "host noise was not measured" if seconds == 0 else ""


def _all_late(results: Results) -> str:
    """Return of how many cases no sample began in time: something held the ranks up."""
    late = sum(item.timing.n_late == item.statistics.n > 0 for item in results.cases
               if item.timing is not None and item.statistics is not None)
    return f"every sample of {plural(late, 'case')} began late" if late else ""


def _good(results: Results) -> str:
    counts = Counter(item.status for item in results.cases)
    parts = (f"{_of_cases(counts['ok'], results)} measured", checked_text(results), "no warning")
    return ", ".join(filter(None, parts))


_busy = _lost_core("HB144", unknown=1.0)
RULES: tuple[tuple[str, Callable[[Results], str]], ...] = (
    (RED, _faults), (RED, _nothing), (RED, _not_sound), (RED, _lost), (RED, _wrong), (RED, _alone),
    (RED, _finding("HB127", "replicas end a training with different weights")),
    (RED, _finding("HB128", "a bus bandwidth is above what the declared link allows")),
    (RED, _finding("HB146", "more FLOP/s than the device can do")),
    (RED, _busy), (RED, _lost_core("HB143", _ONE_LOSES)),
    (AMBER, _imported), (AMBER, _incomplete), (AMBER, _lacking), (AMBER, _unchecked),
    (AMBER, _finding("HB143", _ONE_LOSES)), (AMBER, _finding("HB144")),
    (AMBER, _finding("HB145")), (AMBER, _finding("HB130")), (AMBER, _flagged),
    (AMBER, _no_interval), (AMBER, _all_late), (AMBER, _noise_unknown), (AMBER, _warned),
    (GREEN, _good),
)
"""State, and what returns its reason, or nothing where it does not hold. The first that holds is
the verdict, so that a graver one, or one that explains others, stands before them."""


def _clause(finding: Finding) -> str:
    """Return the first clause of a finding, which has its figures; the remedy comes later."""
    return finding.message.split("; ")[0].split(": ")[0]


def _of_cases(count: int, results: Results) -> str:
    return f"{count} of {plural(len(results.cases), 'case')}"
