"""What is said of drift: a sentence for each series that is named, and one on all else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, NONE, Answer, Run
from hpcbench.analysis.drift import Drifting
from hpcbench.reduce.canary_runs import Canary
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.statistics.drift import FEWEST_RUNS
from hpcbench.statistics.trend import MOST_VALUES
from hpcbench.units import plural

TELLS = 0.1
"""A series whose interval reaches further cannot say that nothing drifts."""
MOST_NAMED = 5
CANARY = "canary"
"""The subject of an answer that rests on the canary alone."""
_TO_DO = ("to do: compare what was measured in the same pass, see what else changed on the machine "
          "(clocks, other jobs), and run again")


def drift_answers(
    runs: Sequence[Run], series: Sequence[Drifting], command: str,
) -> Iterator[Answer]:
    """Yield what drifts, most first; or that nothing does; then what cannot be told."""
    named = sorted((one for one in series if one.is_clear),
                   key=lambda one: (bool(one.case_id), -abs(one.change)))
    canaries = [canary for run in runs if (canary := run.results.canary) is not None
                and canary.tau is not None]
    for one in named[:MOST_NAMED]:
        yield _of_series(one, len(series), named, canaries, command)
    drifting = [one for one in canaries if "drifting" in one.quality]
    if not named:
        yield from (_of_canary(one, command) for one in drifting)
    rest = [one for one in series if not one.is_clear]
    telling = [one for one in rest if _reach(one) <= TELLS]
    if telling and not named and not drifting:
        worst = max(telling, key=_reach)
        yield Answer(NONE, f"no time drifts over the passes in {_series_text(len(telling))}: "
                     f"99 % intervals exclude a change by over {100 * _reach(worst):.2g} % from "
                     "the first pass to the last",
                     (f"the widest: {worst.label}, {_change(worst)} over {worst.passes} passes",
                      *map(_canary_text, canaries)), command)
    if why := "; ".join(_unknown(runs, rest)):
        yield Answer(CANNOT_TELL, f"cannot tell whether times of cases drift, because {why}",
                     tuple(map(_canary_text, canaries)), command)


def _reach(one: Drifting) -> float:
    return max(abs(one.low), abs(one.high))


def _of_series(
    one: Drifting, made: int, named: Sequence[Drifting], canaries: Sequence[Canary], command: str,
) -> Answer:
    within = f", within {one.lasted_s:.0f} s" if one.lasted_s is not None else ""
    beside = (", beside what all cases do" if one.case_id and any(
        not other.case_id and other.path == one.path for other in named) else "")
    return Answer(
        CLEAR, f"the time of {one.label} {'rises' if one.change > 0 else 'falls'} by "
        f"{_change(one)} from the first to the last of {one.passes} passes{within}{beside}: "
        "the machine was not the same in all passes",
        (f"Kendall's tau {one.tau:+.2f}; it holds among {_series_text(made)}; of runs "
         f"without drift at most {FALSE_ALARMS:.0%} name any", *map(_canary_text, canaries),
         _TO_DO), command, one.label)


def _of_canary(one: Canary, command: str) -> Answer:
    return Answer(
        CLEAR, f"the machine drifted: {_canary_text(one)}",
        ("of runs that do not drift at most 1 % are named (HB145)", _TO_DO), command, CANARY)


def _canary_text(one: Canary) -> str:
    assert one.drift is not None and one.tau is not None
    lasted_s = one.runs[-1].since_start_s - one.runs[0].since_start_s
    does = f"changes steadily by {100 * one.drift:+.3g} %" if "drifting" in one.quality else (
        "neither rises nor falls steadily")
    return (f"the canary ({one.label}) {does} over {plural(len(one.runs), 'run')} in "
            f"{lasted_s:.0f} s (Kendall's tau {one.tau:+.2f})")


def _unknown(runs: Sequence[Run], rest: Sequence[Drifting]) -> Iterator[str]:
    """Yield why some series tell nothing."""
    timed = [item.timing.pass_medians_s for run in runs for item in run.results.cases
             if item.timing is not None]
    passes = [len(medians) for medians in timed]
    few = [count for count in passes if count < FEWEST_RUNS]
    if lost := sum(not all(medians) for medians in timed):
        yield f"not all passes were run in {plural(lost, 'case')}"
    if max(passes, default=0) > MOST_VALUES:
        yield f"{max(passes)} passes are more than {MOST_VALUES}"
    if few:
        yield (f"{plural(max(few), 'pass')} are fewer than {FEWEST_RUNS} (measure.passes) in "
               f"{plural(len(few), 'case')}")
    wide = [one for one in rest if _reach(one) > TELLS]
    if wide:
        yield (f"intervals reach over {100 * TELLS:.0f} %, to {100 * max(map(_reach, wide)):.1f} "
               f"%, in {_series_text(len(wide))}: more passes would tell")
    if not passes:
        yield "no case has times"


def _series_text(count: int) -> str:
    """Return how many series of medians were looked at: one a case, and that of all together."""
    return f"{count} series of pass medians"


def _change(one: Drifting) -> str:
    sign = 1 if one.change > 0 else -1
    low, high = sorted((sign * one.low, sign * one.high))
    return f"{100 * abs(one.change):.3g} % (99 % interval {100 * low:.3g} to {100 * high:.3g} %)"
