"""The end of a report in a few lines: what is fastest, and what is suspicious."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from hpcbench.grouping import grouped
from hpcbench.kinds.registry import presenter_of
from hpcbench.reduce.canary_runs import CANARY_QUALITIES
from hpcbench.reduce.fastest import Race, races, typical_ratio
from hpcbench.reduce.qualities import QUALITIES
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.reduce.spread import launch_spreads
from hpcbench.units import plural
from hpcbench.views.slow_ranks import late_rank_lines
from hpcbench.views.table import Line
from hpcbench.views.timing import FLAGS
from hpcbench.views.words import distinct

MOST_FASTEST, MOST_FLAGS = 3, 2
MOST_WINNERS = 3
CANNOT_TRUST = "?"


def ending_lines(results: Results) -> Iterator[Line]:
    """Yield at most eight lines: what is fastest, then what is suspicious."""
    yield from fastest_lines(results)
    suspicious = [*late_rank_lines(results), *_flag_lines(results), *_spread_lines(results)]
    if suspicious:
        yield from (Line(_begun("suspicious", text, number), "warning")
                    for number, text in enumerate(suspicious))
    elif any(item.timing for item in results.cases):
        yield Line("nothing suspicious: no flag, and no drift of the machine was found")


def fastest_lines(results: Results) -> Iterator[Line]:
    """Yield a line a kind: which way is clearly the fastest how often, and how often none is."""
    found = races((f"{item.case.kind}\0{way[0]}", way[1], item) for item in results.cases
                  if item.status == "ok" and item.case.kind not in results.missing_kinds
                  and (way := presenter_of(item.case.kind).way(item)) is not None)
    kinds = grouped((race.problem.partition("\0")[0], race) for race in found)
    for number, (kind, same) in enumerate([*kinds.items()][:MOST_FASTEST]):
        yield Line(_begun("fastest", f"{kind}: {_fastest_text(same)}", number))


def _begun(word: str, text: str, number: int) -> str:
    return f"{word if number == 0 else '':<11} {text}"


def _fastest_text(same: Sequence[Race]) -> str:
    """Return who wins how many of the comparisons of one kind."""
    clear = grouped((race.ways[0].name, race) for race in same if race.is_clear)
    if len(same) == 1 and clear:
        (race,) = same
        return (f"{race.ways[0].name}; the next one, {race.ways[1].name}, takes "
                f"{race.ratio:.2f} times as long ({_task(race)})")
    winners = sorted(clear.items(), key=lambda pair: -len(pair[1]))
    parts = [f"{name} wins {len(won)} (the next one takes "
             f"{typical_ratio(won):.2f} times as long)" for name, won in winners[:MOST_WINNERS]]
    if more := sum(len(won) for _, won in winners[MOST_WINNERS:]):
        parts.append(f"others win {more}")
    unclear = sum(race.can_tell and not race.is_clear for race in same)
    untold = sum(not race.can_tell for race in same)
    parts += [f"no clear winner in {unclear}"] if unclear else []
    parts += [f"cannot be told in {untold} (an interval is {CANNOT_TRUST})"] if untold else []
    return f"{plural(len(same), 'comparison')}: {'; '.join(parts)}"


def _task(race: Race) -> str:
    return race.problem.partition("\0")[2]


def _flag_lines(results: Results) -> Iterator[str]:
    """Yield which flags rows have, the most frequent ones with their meaning."""
    timings = [item.timing for item in results.cases if item.timing is not None]
    counts = Counter(word for timing in timings for word in timing.quality if word in QUALITIES)
    shown = counts.most_common(MOST_FLAGS if len(counts) > MOST_FLAGS + 1 else MOST_FLAGS + 1)
    for word, count in shown:
        yield (f"{FLAGS.get(word, CANNOT_TRUST)} in {count} of {plural(len(timings), 'row')}: "
               f"{QUALITIES[word]}")
    more = [f"{counts[word]} {FLAGS.get(word, CANNOT_TRUST)}" for word in QUALITIES
            if word in counts and word not in dict(shown)]
    if more:
        yield f"further flags: {', '.join(more)}"


def flag_meaning(word: str) -> str:
    """Return the short form of a word of QUALITIES, and what it says."""
    return f"{FLAGS.get(word, CANNOT_TRUST)}: {QUALITIES[word]}"


def _spread_lines(results: Results) -> Iterator[str]:
    """Yield how far launches lie apart, and whether the machine drifted, in one line."""
    parts = [*_launches(results.cases)]
    canary = results.canary
    if canary is not None and canary.tau is not None:
        parts += [f"{word}: {CANARY_QUALITIES[word]}" for word in canary.quality]
    if parts:
        yield "; ".join(parts)


def _launches(items: Iterable[CaseResult]) -> Iterator[str]:
    """Yield ``launches differ by 11 % (mpi) and 33 % (gloo)``: of the middle case of each."""
    spreads = {backend: spread.middle for backend, same in grouped(
        (item.case.backend, item) for item in items).items()
        if (spread := launch_spreads(same)) is not None}
    if spreads:
        told = distinct(f"{share:.0%} ({backend})" for backend, share in spreads.items())
        yield f"launches differ by {told.replace(',', ', ')} in the middle case"
